"""What each process finds by itself, before MPI runs: software, folders, clock, GPU, and the MPI library on disk.

Python and the packages hybridnn stands on.

Folders that hybridnn writes to, the shared memory of the node, and the room that is left there.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hybridnn._version import __version__
from hybridnn.doctor.clock import check_clock
from hybridnn.doctor.cores import check_blas
from hybridnn.doctor.finding import Check, Finding, Verdict, guarded
from hybridnn.doctor.gpu import CHILD_SECONDS, Gpus, check_cupy, check_device_mpi, check_gpus, look_for_gpus
from hybridnn.doctor.launch import check_library, check_mpirun, check_slurm, launched_place
from hybridnn.doctor.roll_call import load_mpi
from hybridnn.parallel.node_memory import SHARED_MEMORY
from hybridnn.utils.text import format_bytes

LEAST_PYTHON = (3, 10)
LEAST_MAJOR: Mapping[str, int] = {"numpy": 2, "scipy": 1, "mpi4py": 4, "pydantic": 2}
"""Packages whose versions matter, with the first major version that hybridnn works with."""


def check_python(version: tuple[int, ...] = sys.version_info[:3], executable: str = sys.executable) -> Finding:
    """Whether this Python is new enough, and which one it is."""
    what = f"{'.'.join(map(str, version))} ({executable})"
    if version < LEAST_PYTHON:
        return Finding("python", "failure", what, "hybridnn needs Python 3.10 or newer")
    return Finding("python", "ok", what)


def check_packages(version_of: Callable[[str], str] = metadata.version) -> Finding:
    """Whether the packages are there and new enough.

    Parameters
    ----------
    version_of : callable
        Gives the version of a package by its name, or raises ``PackageNotFoundError``.
    """
    found, missing, old = [f"hybridnn {__version__}"], [], []
    for name, least in LEAST_MAJOR.items():
        try:
            version = version_of(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        found.append(f"{name} {version}")
        major = version.split(".")[0]
        if major.isdigit() and int(major) < least:
            old.append(f"'{name}>={least}'")
    if missing or old:
        what = "; ".join(filter(None, [", ".join(found), f"missing: {', '.join(missing)}" if missing else ""]))
        verdict: Verdict = "warning" if [*missing, *old] == ["mpi4py"] else "failure"  # one process needs no MPI
        return Finding("packages", verdict, what, f"pip install --upgrade {' '.join([*missing, *old])}")
    return Finding("packages", "ok", ", ".join(found))


LITTLE_DISK = 1 << 30
LITTLE_SHARED_MEMORY = 256 << 20
WINDOWS = Path(SHARED_MEMORY)

Free = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """Bytes that are free where a path lies."""
    return shutil.disk_usage(path).free


def _at_least(room: int) -> str:
    """The room in words that stay the same while other programs write: rounded down to a power of two."""
    return f"at least {format_bytes(1 << room.bit_length() - 1 if room else 0, binary=True)} free"


def check_cache_folder(folder: Path, free: Free = free_bytes) -> Finding:
    """Whether data sets can be downloaded to their folder, which need not be there yet."""
    return _check_folder("cache folder", folder, "export HYBRIDNN_CACHE=FOLDER with one that you can write to", free)


def check_working_folder(folder: Path, free: Free = free_bytes) -> Finding:
    """Whether runs and checkpoints can be written where hybridnn was started."""
    return _check_folder("working folder", folder, "go to a folder that you can write to, or set output.folder", free)


def check_shared_memory_room(folder: Path = WINDOWS, free: Free = free_bytes) -> Finding | None:
    """Whether the ranks of a node have room for what they share; None where shared memory is no folder."""
    if not folder.is_dir():
        return None
    room = free(folder)
    what = f"{_at_least(room)} in {folder}"
    if room < LITTLE_SHARED_MEMORY:
        advice = "messages and data of a node's ranks pass there: enlarge it (docker run --shm-size=2g), or empty it"
        return Finding("shared memory room", "warning", what, advice)
    return Finding("shared memory room", "ok", what)


def _check_folder(name: str, folder: Path, advice: str, free: Free) -> Finding:
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is not a folder")
        # A file that is really written: permissions do not tell of quotas and read-only mounts.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"hybridnn")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(name, "failure", f"{folder} cannot be written to: {error.strerror or error}", advice)
    room = free(place)
    what = f"{folder} can be written to, {_at_least(room)}"
    if room < LITTLE_DISK:
        return Finding(name, "warning", what, f"make room, or {advice}")
    return Finding(name, "ok", what)


def look_alone(environment: Mapping[str, str], limit: float) -> tuple[list[Finding], str | None]:
    """Carry out the checks that need no other rank, and load the MPI library without starting it.

    Parameters
    ----------
    environment : mapping
        Of this process.
    limit : float
        Seconds for each check.

    Returns
    -------
    list of Finding
    str or None
        Name and version of the MPI library; None if there is none.
    """
    place, place_on_node = launched_place(environment)
    findings: list[Finding] = []

    def look(name: str, check: Check, seconds: float = limit) -> Finding | None:
        found = guarded(name, check, seconds)
        if found is not None:
            findings.append(found)
        return found

    look("python", check_python)
    look("packages", check_packages)
    look("BLAS", lambda: check_blas(thread_pools()))
    found = look("MPI library", lambda: check_library(load_mpi, environment))
    library = found.what if found is not None and found.verdict == "ok" else None
    if library is not None and not place:
        look("mpirun", lambda: check_mpirun(library, environment))
    look("Slurm", lambda: check_slurm(environment))
    look("clock", check_clock)
    look("shared memory room", check_shared_memory_room)
    look("working folder", lambda: check_working_folder(Path.cwd()))
    look("cache folder", lambda: check_cache_folder(_cache_folder()))
    _look_at_gpus(environment, look, is_first_of_node=not place_on_node)
    return findings, library


def thread_pools() -> list[dict[str, Any]]:
    """Thread pools of the libraries that NumPy has loaded."""
    import numpy  # noqa: F401 - loads them
    from threadpoolctl import threadpool_info

    pools: list[dict[str, Any]] = threadpool_info()
    return pools


def _look_at_gpus(
    environment: Mapping[str, str], look: Callable[[str, Check, float], Finding | None], *, is_first_of_node: bool
) -> None:
    gpus: list[Gpus] = []

    def check() -> Finding:
        gpus.append(look_for_gpus(environment))
        return check_cupy(gpus[0])

    seconds = 2 * CHILD_SECONDS  # the child has a limit of its own
    look("CuPy", check, seconds)
    if gpus:
        look("GPU", lambda: check_gpus(gpus[0]), seconds)
        if is_first_of_node:
            look("device-aware MPI", lambda: check_device_mpi(gpus[0], environment), seconds)


def _cache_folder() -> Path:
    from hybridnn.datasets.download import cache_folder

    return cache_folder()
