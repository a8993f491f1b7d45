"""How the command line behaves on several ranks: rank 0 speaks, and all leave together."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from hybridnn.errors import EnvironmentProblem

__all__ = ["launch_rank", "leave"]

LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Set by mpirun, mpiexec and srun for every rank, before MPI is loaded."""

PATIENCE = 5.0
"""Seconds that a rank waits for the others to meet the same error."""


def launch_rank() -> int | None:
    """Rank of this process as its launcher numbered it; None without a launcher. Loads nothing."""
    for name in LAUNCHER_RANKS:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def leave(message: str, exit_code: int) -> NoReturn:
    """Print one error line on rank 0 and exit on every rank.

    The ranks leave together, because mpirun ends a job at the first rank that fails, perhaps before rank 0 has spoken.
    An error that the other ranks do not have ends the job after a few seconds, with the line of the rank that has it.
    """
    world = _world()
    if world is None or world.Get_rank() == 0:
        print(f"Error: {message}", file=sys.stderr, flush=True)
    if world is not None and not _all_arrive(world):
        if world.Get_rank() != 0:
            print(f"Error on rank {world.Get_rank()}: {message}", file=sys.stderr, flush=True)
        world.Abort(exit_code)
    sys.exit(exit_code)


def _world() -> Any:
    """COMM_WORLD of a job with several ranks, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        if launch_rank() is None:
            return None
        from hybridnn.comm.mpi import import_mpi

        try:
            mpi = import_mpi()
        except EnvironmentProblem:  # without an MPI library every rank speaks for itself
            return None
    if not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi.COMM_WORLD


def _all_arrive(world: Any) -> bool:
    request = world.Ibarrier()
    deadline = time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
