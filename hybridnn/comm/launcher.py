"""Launchers of ranks: ``mpirun``, ``srun`` and those that users name, their options, and the choice of one that fits.

``python -m hybridnn.comm.launcher RANKS NODES`` tries a launcher: its exit code is 0 if MPI sees that many ranks on
that many nodes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from hybridnn.comm.mpi import (
    NO_MPI,
    detect_launch,
    first_number,
    import_mpi,
    is_in_process,
    library_version,
    mpirun_settings,
    own_cores,
    short_version,
)
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.utils.processes import run_child
from hybridnn.utils.text import counted

LAUNCHER_PREFIXES = ("OMPI_COMM_", "OMPI_UNIVERSE_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDI_", "MPI_LOCAL")
"""Prefixes of the variables that make a process a rank of a job."""

NODE_LISTS = (
    *("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"),
    *("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE"),
)
"""Where ``mpirun`` finds the nodes of a job, or those of the user; the cores of this node are then not the limit."""

FAMILIES: Mapping[str, str] = {
    "open mpi": "Open MPI",
    "openrte": "Open MPI",
    "intel": "Intel MPI",
    "hydra": "MPICH",
    "mpich": "MPICH",
}
"""Words in the version texts of libraries and launchers, in the order of the search, and their family."""

FIRST_MESSAGE_SECONDS = 0.25
"""Pause of Open MPI's ranks under srun before they send. One may leave the initialization of Open MPI 5 while another
is still in it, and an early message ends that other one with a segmentation fault: once in some forty starts on busy
nodes (open-mpi/ompi#12495). Not observed under mpirun."""

VERSION_SECONDS = 60.0  # time limit of a program that prints a version or a list
MPIRUNS = ("mpirun", "mpiexec", "prterun", "orterun")
BIND_OPTIONS = {"--bind-to", "-bind-to"}

Binding = Literal["none", "core", "socket"]
BINDINGS: tuple[Binding, ...] = get_args(Binding)


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a run are; what is None is left to the launcher.

    `ranks_per_node` is that of a full node. `threads` are the BLAS threads of a rank, each of which needs a core. With
    the `binding` ``"core"``, a rank may use as many cores as it has threads; with ``"socket"``, those of one socket.
    """

    nodes: int | None = None
    ranks_per_node: int | None = None
    threads: int = 1
    binding: Binding | None = None

    def texts(self) -> dict[str, str]:
        """The values as texts by name; empty texts for those that are left to the launcher."""
        return {name: "" if value is None else str(value) for name, value in asdict(self).items()}


ANYWHERE = Placement()

RankCommand = Callable[[int, Sequence[str], Placement], list[str]]
"""``command(ranks, program, placement)`` returns the command that starts a program on several ranks; it raises
`SettingError` if the launcher cannot place them so."""


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that would make a child process a rank of this job."""
    return {name: value for name, value in environment.items() if not name.startswith(LAUNCHER_PREFIXES)}


@dataclass(frozen=True)
class RankLauncher:
    """A launcher that fits the MPI library which mpi4py loads."""

    prefix: tuple[str, ...]  # the command up to the option before the number of ranks: ``("/usr/bin/mpirun", "-n")``

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> RankLauncher:
        """``srun`` inside a Slurm allocation, else the ``mpirun`` beside Python, else the one on ``PATH``.

        Raises `EnvironmentProblem` if there is no MPI library, or no launcher that fits it.
        """
        if environment.get("SLURM_JOB_ID") and shutil.which("srun", path=environment.get("PATH")):
            if environment.get("SLURM_MPI_TYPE"):  # the user's choice, which srun reads too
                return cls(("srun", "-n"))
            option = srun_option(_library(environment))
            if option in srun_plugins(environment):
                return cls(("srun", f"--mpi={option}", "-n"))
        return cls((_fitting_mpirun(environment), "-n"))

    @property
    def is_srun(self) -> bool:
        """Whether Slurm starts the ranks."""
        return self.prefix[0] == "srun"

    def ends_ranks_on_signals(self, environment: Mapping[str, str]) -> bool:
        """Whether SIGINT and SIGTERM end the ranks without reaching them, as under Open MPI's ``mpirun``."""
        return not self.is_srun and family_of_program(self.prefix[0], environment) == "Open MPI"

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        environment: Mapping[str, str],
        placement: Placement = ANYWHERE,
    ) -> list[str]:
        """The command that starts a program on `ranks` ranks.

        With ``srun``, in a job with a number of ranks per node, they fill one node before the next, unless the
        placement names the nodes. Raises `SettingError` if the launcher cannot place the ranks so.
        """
        if self.is_srun:
            nodes = _filled_nodes(ranks, environment) if placement.nodes is None else ""
            options = [f"--nodes={nodes}"] * bool(nodes) + srun_options(placement)
        else:
            options = self._mpirun_options(ranks, environment, placement)
        return [*self.prefix[:-1], *options, self.prefix[-1], str(ranks), *program]

    def settings(self, ranks: int, environment: Mapping[str, str], placement: Placement = ANYWHERE) -> dict[str, str]:
        """Variables that starting `ranks` ranks needs and the environment does not have."""
        if self.is_srun:
            # From version 22.05 on, srun does not take the cores of a rank from the job by itself.
            cores = environment.get("SLURM_CPUS_PER_TASK")
            needed = mpirun_settings(as_root=False, oversubscribed=False, bound=True)
            needed |= {"SRUN_CPUS_PER_TASK": cores} if cores else {}
        else:
            crowded = _is_crowded(ranks, environment)
            bound = placement.binding is not None or not (crowded or in_job(environment))
            needed = mpirun_settings(as_root=os.geteuid() == 0, oversubscribed=crowded, bound=bound)
        return {name: value for name, value in needed.items() if name not in environment}

    def _mpirun_options(self, ranks: int, environment: Mapping[str, str], placement: Placement) -> list[str]:
        if placement == ANYWHERE:
            return []
        if (placement.nodes or 1) > 1 and not in_job(environment):
            raise SettingError(
                "nodes", placement.nodes, "needs a job of a batch system, a host file of mpirun, or a --launcher"
            )
        crowded = _is_crowded(ranks, environment)
        if placement.binding == "core" and _is_crowded(ranks * placement.threads, environment):
            needs = f"{ranks} ranks of {counted(placement.threads, 'thread')} need more cores than this machine has"
            raise SettingError("binding", placement.binding, needs)
        return mpirun_options(family_of_program(self.prefix[0], environment), placement, crowded=crowded)


def trial_command(ranks: str, nodes: str) -> list[str]:
    """The program that a launcher is tried with."""
    return [sys.executable, "-m", "hybridnn.comm.launcher", ranks, nodes]


def rank_command(launcher: str | None, most_ranks: int) -> RankCommand:
    """Check a launcher, and return the function that makes its commands.

    It is split as a shell does; ``{ranks}`` stands for the number of ranks, which it must hold where a run has several,
    and ``{nodes}`` for the nodes of the placement, or those that the ranks fill in a Slurm job with a number of ranks
    per node; ``{ranks_per_node}``, ``{threads}`` and ``{binding}`` stand for the parts of the placement. ``srun`` and
    ``mpirun`` get their options for the placement. None is the launcher of this environment. Raises `SettingError` if
    it is no such command, `EnvironmentProblem` without its program.
    """
    if launcher is None:
        found = RankLauncher.find(os.environ)

        def own_command(ranks: int, program: Sequence[str], placement: Placement) -> list[str]:
            settings = [f"{name}={value}" for name, value in found.settings(ranks, os.environ, placement).items()]
            return ["env", *settings, *found.command(ranks, program, os.environ, placement)]

        return own_command
    try:
        template = shlex.split(launcher)
    except ValueError as error:
        raise SettingError("--launcher", launcher, f"cannot be split into words: {error}") from error
    if most_ranks > 1 and "{ranks}" not in launcher:
        raise SettingError("--launcher", launcher, "must hold {ranks}, for example 'mpirun -n {ranks}'")
    if template and shutil.which(template[0]) is None:
        raise EnvironmentProblem(f"--launcher: there is no program {template[0]!r}")

    def command(ranks: int, program: Sequence[str], placement: Placement) -> list[str]:
        values = {"ranks": str(ranks), **placement.texts()}
        if "{nodes}" in launcher and placement.nodes is None:
            values["nodes"] = _filled_nodes(ranks, os.environ)
            if not values["nodes"]:
                raise SettingError("--launcher", launcher, "{nodes} needs a Slurm job that was given --ntasks-per-node")
        words = _place(template, launcher, placement)
        for name, value in values.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return [*words, *program]

    return command


def _place(template: Sequence[str], launcher: str, placement: Placement) -> list[str]:
    """The words of a launcher with its options for the placement."""
    if not template or placement == ANYWHERE:
        return list(template)
    program, *words = template
    name = Path(program).name
    if name == "srun":
        return [program, *srun_options(placement), *words]
    if name.startswith(MPIRUNS):
        options = mpirun_options(family_of_program(program, os.environ), placement)
        if BIND_OPTIONS & set(options):  # Open MPI refuses the option twice
            words = [word for last, word in zip(template, words, strict=False) if not {last, word} & BIND_OPTIONS]
        return [program, *options, *words]
    needs = {"nodes": ("{nodes}", "{ranks_per_node}"), "binding": ("{binding}",)}
    for part, names in needs.items():
        if (text := placement.texts()[part]) and not any(name in launcher for name in names):
            problem = f"does not place ranks: {part} = {text} needs {names[0]} in it, or srun or mpirun as the program"
            raise SettingError("--launcher", launcher, problem)
    return list(template)


def _filled_nodes(ranks: int, environment: Mapping[str, str]) -> str:
    """Nodes that ranks fill in a Slurm job with a number of ranks per node; empty elsewhere."""
    per_node = first_number(environment, "SLURM_NTASKS_PER_NODE")
    return str(-(-ranks // per_node)) if per_node else ""


def srun_options(placement: Placement) -> list[str]:
    """Options of ``srun``."""
    if placement == ANYWHERE:
        return []
    options = [f"--nodes={placement.nodes}"] if placement.nodes else []
    options += [f"--ntasks-per-node={placement.ranks_per_node}"] if placement.ranks_per_node else []
    options += [f"--cpus-per-task={placement.threads}"]
    units = {"none": "none", "core": "cores", "socket": "sockets"}
    return options + ([f"--cpu-bind={units[placement.binding]}"] if placement.binding else [])


def srun_on_every_node(nodes: int | str) -> list[str]:
    """The command that starts a program once on each of the `nodes` of a Slurm job, without MPI."""
    return ["srun", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]


def mpirun_options(family: str, placement: Placement, *, crowded: bool = False) -> list[str]:
    """Options of ``mpirun`` of an MPI library, whose `family` is named by `mpi_family`.

    `crowded` is whether there are more ranks than cores, which Open MPI has to be told again with the ranks per node.
    Raises `SettingError` if this ``mpirun`` cannot place ranks so; it names the part.
    """
    if family == "Open MPI":
        return _open_mpi_options(placement, crowded=crowded)
    options = ["-ppn", str(placement.ranks_per_node)] if placement.ranks_per_node else []
    if placement.binding is None:
        return options
    if family != "MPICH":
        problem = f"the mpirun of {family or 'an unknown MPI library'} has no option for it that is known here"
        raise SettingError("binding", placement.binding, f"{problem}; name a --launcher with {{binding}} in it")
    cores = f"core:{placement.threads}" if placement.threads > 1 else "core"
    return [*options, "-bind-to", cores if placement.binding == "core" else placement.binding]


def _open_mpi_options(placement: Placement, *, crowded: bool) -> list[str]:
    """Open MPI binds up to two ranks to one core each, with all their threads, unless it is told otherwise."""
    binding = placement.binding or ("none" if placement.threads > 1 else None)
    cores = f":PE={placement.threads}" if binding == "core" and placement.threads > 1 else ""
    options = []
    if placement.ranks_per_node or cores:
        unit = f"ppr:{placement.ranks_per_node}:node" if placement.ranks_per_node else "slot"
        options = ["--map-by", f"{unit}{cores}" + ":OVERSUBSCRIBE" * crowded]
    return options + (["--bind-to", binding] if binding else [])


def in_job(environment: Mapping[str, str]) -> bool:
    """Whether a batch system names the nodes."""
    return any(environment.get(name) for name in NODE_LISTS)


def _is_crowded(ranks: int, environment: Mapping[str, str]) -> bool:
    """Whether there are more ranks than cores, outside of a job."""
    return not in_job(environment) and ranks > _physical_cores()


def find_mpirun(environment: Mapping[str, str]) -> str | None:
    """Path of ``mpirun``: the one beside the interpreter, where packages put it, else the one on ``PATH``."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun", path=environment.get("PATH", ""))


def mpi_family(text: str) -> str:
    """Family of a library or launcher from its version text; empty for an unknown one."""
    lowered = text.lower()
    return next((family for word, family in FAMILIES.items() if word in lowered), "")


def srun_option(library: str) -> str:
    """Value of ``srun --mpi=`` for an MPI library by its name and version, such as ``Open MPI v5.0.11``."""
    return "pmix" if mpi_family(library) == "Open MPI" else "pmi2"


def srun_plugins(environment: Mapping[str, str]) -> list[str]:
    """Words of ``srun --mpi=list``, among them its plugins; some versions of Slurm print them to standard error."""
    listed = run_child(["srun", "--mpi=list"], VERSION_SECONDS, environment)
    return re.findall(r"\w+", listed.output + listed.errors)


def family_of_program(program: str, environment: Mapping[str, str]) -> str:
    """Family of an ``mpirun``, by the version that it prints."""
    return _family_of_file(shutil.which(program, path=environment.get("PATH")) or program)


@lru_cache(maxsize=8)
def _family_of_file(program: str) -> str:
    printed = run_child([program, "--version"], VERSION_SECONDS, without_launcher(os.environ))
    return mpi_family(printed.output + printed.errors)


def _fitting_mpirun(environment: Mapping[str, str]) -> str:
    """The ``mpirun`` of the MPI library.

    Raises `EnvironmentProblem` if there is none, or only one of another MPI library than mpi4py loads.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py is not installed")
    program = find_mpirun(environment)
    if program is not None and Path(program).parent == Path(sys.executable).parent:
        return program
    library = _library(environment)
    if program is None:
        raise EnvironmentProblem(f"mpi4py uses {library}, but there is no mpirun beside {sys.executable} or on PATH")
    found, needed = family_of_program(program, environment), mpi_family(library)
    if found and needed and found != needed:
        raise EnvironmentProblem(f"{program} is of {found}, but mpi4py uses {library}: each rank would be alone")
    return program


def _library(environment: Mapping[str, str]) -> str:
    """Name and version of the MPI library, loaded by another process: this one may initialize it later.

    Raises `EnvironmentProblem` if mpi4py finds none.
    """
    command = [sys.executable, "-m", "mpi4py", "--mpi-lib-version"]
    result = run_child(command, VERSION_SECONDS, without_launcher(environment))
    if result.code != 0 or not result.output.strip():
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py {result.summary}")
    return short_version(result.output)


def _physical_cores() -> int:
    """Cores that this process may use, as Open MPI counts them: the hardware threads of a core are one."""
    return len({_siblings(thread) for thread in own_cores()})


def _siblings(thread: int) -> str:
    """Hardware threads of the core of `thread`, as Linux lists them; elsewhere `thread` alone."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(thread)


def launch_problem(environment: Mapping[str, str], size: int, library: str) -> str | None:
    """What is wrong with a launch, in one line, where MPI sees `size` ranks; None if nothing is.

    A launcher and an MPI library that do not fit give no error: each process is alone, and ``srun`` with a wrong
    ``--mpi`` trains the same network N times, into one folder, with exit code 0.
    """
    launch = detect_launch(environment)
    if launch is None or launch.ranks == size:
        return None
    seen = f"{launch.launcher} started {launch.ranks} processes, but MPI sees {counted(size, 'rank')}"
    if launch.by_srun:
        command = f"srun --mpi={srun_option(library)}"
        return f"{seen}: start {library} with {command} (srun --mpi=list shows what is there), or with its mpirun"
    return f"{seen}: mpi4py uses {library}; start it with the mpirun of that library"


def require_complete_launch() -> None:
    """Refuse to go on if MPI does not see all processes of the launch.

    To be called before the first message: on return, all ranks can be assumed to have left MPI's initialization.

    Raises `EnvironmentProblem` on every process: each is alone, so they cannot agree.
    """
    if is_in_process():
        return
    size, library = import_mpi().COMM_WORLD.Get_size(), library_version()
    problem = launch_problem(os.environ, size, library)
    if problem is not None:
        raise EnvironmentProblem(problem)
    launch = detect_launch(os.environ)
    if size > 1 and launch is not None and launch.by_srun and srun_option(library) == "pmix":
        time.sleep(FIRST_MESSAGE_SECONDS)


def _main(arguments: Sequence[str]) -> int:
    ranks, nodes = map(int, arguments)
    world = import_mpi().COMM_WORLD
    if world.Get_size() == ranks:
        require_complete_launch()
    hosts = set(world.allgather(socket.gethostname()))
    if (world.Get_size(), len(hosts)) == (ranks, nodes):
        return 0
    if world.Get_rank() == 0:
        print(f"MPI sees {world.Get_size()} ranks on {len(hosts)} nodes, not {ranks} on {nodes}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
