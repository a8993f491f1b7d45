"""Starting NCCL on the ranks of a group, so that all of them learn of it where one cannot.

NCCL's own start blocks until every rank has come, and a rank that fails does not tell the others. So it runs in a
thread, and the rank's own thread meanwhile listens to the others over MPI.
"""

from __future__ import annotations

from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np

from hybridnn.comm.mpi import import_mpi

__all__ = ["START_SECONDS", "start_nccl"]

START_SECONDS = 120.0
"""In which NCCL connects the ranks, however many they are."""

POLL_SECONDS = 0.001
BAD_NEWS_TAG = 32_766


def start_nccl(comm: Any, cupy: Any, seconds: float = START_SECONDS) -> tuple[Any, str]:
    """Connect the ranks by NCCL; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        On which nothing else is under way.
    cupy : module
        With this rank's GPU as the current device.
    seconds : float
        After which a rank that is not connected has failed.

    Returns
    -------
    NcclCommunicator or None
        None on all ranks where one of them failed.
    str
        What failed on this rank; empty if nothing did. NCCL may then still wait for the others in a thread of its own,
        which ends with the program.
    """
    identifier, problem = _identifier(comm, cupy.cuda.nccl)
    if identifier is None:
        return None, problem
    start = _begin(comm.Get_size(), comm.Get_rank(), identifier, cupy)
    problem = _problem_of(start, comm, monotonic() + seconds)
    if _all_are_connected(comm, problem):
        return start.result(), ""
    start.add_done_callback(_abort)
    return None, problem


def _identifier(comm: Any, nccl: Any) -> tuple[Any, str]:
    """What rank 0 names the connection by, on all ranks; or None and, on rank 0, the reason."""
    identifier, problem = None, ""
    if comm.Get_rank() == 0:
        try:
            identifier = nccl.get_unique_id()
        except Exception as error:
            problem = _in_words(error)
    # A pickle, once: CuPy says nothing of what the identifier is.
    return comm.bcast(identifier), problem


def _begin(size: int, rank: int, identifier: Any, cupy: Any) -> Future[Any]:
    """Let a thread connect this rank; no program waits at its end for one that never does."""
    start: Future[Any] = Future()
    gpu = cupy.cuda.runtime.getDevice()

    def connect() -> None:
        try:
            cupy.cuda.runtime.setDevice(gpu)  # every thread has a current device of its own
            start.set_result(cupy.cuda.nccl.NcclCommunicator(size, identifier, rank))
        except Exception as error:  # CuPy has no name for the newer of NCCL's errors, and fails with others there
            start.set_exception(error)

    Thread(target=connect, daemon=True).start()
    return start


def _problem_of(start: Future[Any], comm: Any, deadline: float) -> str:
    """What failed on this rank; empty if nothing did, or if another rank says that it failed."""
    while True:
        with suppress(TimeoutError):
            error = start.exception(POLL_SECONDS)
            return "" if error is None else _in_words(error)
        if comm.Iprobe(tag=BAD_NEWS_TAG):
            return ""
        if monotonic() > deadline:
            return "it does not connect in time"


def _all_are_connected(comm: Any, problem: str) -> bool:
    """Whether every rank is, the same answer on all; those that still wait for a rank that failed are told of it."""
    size, rank = comm.Get_size(), comm.Get_rank()
    failed, nothing = np.zeros(size, np.uint8), np.empty(0, np.uint8)
    failed[rank] = bool(problem)
    news = [comm.Isend(nothing, peer, BAD_NEWS_TAG) for peer in range(size) if problem and peer != rank]
    comm.Allgather(import_mpi().IN_PLACE, failed)
    for peer in np.flatnonzero(failed).tolist():
        if peer != rank:
            comm.Recv(nothing, peer, BAD_NEWS_TAG)
    import_mpi().Request.Waitall(news)
    return not failed.any()


def _abort(start: Future[Any]) -> None:
    """End a connection that came although another rank has none."""
    if start.exception() is None:
        start.result().abort()


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
