"""What each process finds by itself, before MPI runs: software, folders, clock, GPU, and the MPI library on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybridnn.comm.roll_call import load_mpi
from hybridnn.doctor.clock import check_clock
from hybridnn.doctor.finding import Check, Finding, guarded
from hybridnn.doctor.folders import check_cache_folder, check_shared_memory_room, check_working_folder
from hybridnn.doctor.gpu import CHILD_SECONDS, Gpus, check_cupy, check_device_mpi, check_gpus, look_for_gpus
from hybridnn.doctor.launch import check_library, check_mpirun, check_slurm, launched_place
from hybridnn.doctor.software import check_packages, check_python
from hybridnn.doctor.threads import check_blas

__all__ = ["look_alone", "thread_pools"]


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
