"""Starting MPI, and finding out which ranks are there and on which nodes: each step with a time limit.

Nothing here waits for ever for a rank that does not come. Calls that block run in a thread of their own where the MPI
library allows it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hybridnn.comm.mpi import import_mpi, library_version, load_mpi_library
from hybridnn.diagnostics.failsafe import exit_now
from hybridnn.doctor.deadline import Deadline, OutOfTimeError, finish, within

if TYPE_CHECKING:
    from mpi4py import MPI


Result = TypeVar("Result")

REPORT_TAG = 7001
LAST_SECONDS = 5.0
"""What ending the job through MPI may take before this process ends itself."""


def load_mpi() -> str:
    """Load the MPI library but do not start it yet; returns its own name and version.

    Raises
    ------
    EnvironmentProblem
        If there is none.
    """
    if "mpi4py.MPI" not in sys.modules:
        with contextlib.suppress(ImportError):  # `load_mpi_library` says it in better words
            import mpi4py

            mpi4py.rc(initialize=False, finalize=True)
    load_mpi_library()
    return library_version()


def start_mpi() -> str:
    """Start MPI unless it runs; returns the thread level it offers: single, funneled, serialized or multiple."""
    mpi = import_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    names = {
        mpi.THREAD_SINGLE: "single",
        mpi.THREAD_FUNNELED: "funneled",
        mpi.THREAD_SERIALIZED: "serialized",
        mpi.THREAD_MULTIPLE: "multiple",
    }
    return names[mpi.Query_thread()]


def own_communicator(seconds: float) -> MPI.Intracomm:
    """A communicator of all ranks for the tries, so that a try that is given up leaves COMM_WORLD clean; collective.

    Raises
    ------
    OutOfTimeError
        If not every rank comes.
    """
    copy, request = import_mpi().COMM_WORLD.Idup()
    finish([request], Deadline(seconds))
    result: MPI.Intracomm = copy
    return result


def find_nodes(comm: MPI.Intracomm, seconds: float) -> tuple[MPI.Intracomm, list[int]]:
    """Ranks that share this rank's memory, and the lowest rank on the node of every rank; collective.

    Raises
    ------
    OutOfTimeError
        If it takes longer than so many seconds.
    """
    mpi = import_mpi()
    patience = Deadline(seconds)
    node: Any = blocking_call(patience, lambda: comm.Split_type(mpi.COMM_TYPE_SHARED))
    lowest = np.array([comm.Get_rank()], np.int64)
    finish([node.Iallreduce(mpi.IN_PLACE, lowest, mpi.MIN)], patience)
    nodes = np.empty(comm.Get_size(), np.int64)
    finish([comm.Iallgather(lowest, nodes)], patience)
    return node, nodes.tolist()


def all_agree(comm: MPI.Intracomm, ready: bool, seconds: float) -> bool:
    """Whether every rank comes here within so many seconds, and says that it is ready; collective."""
    mpi = import_mpi()
    flag = np.array([ready], np.int64)
    try:
        finish([comm.Iallreduce(mpi.IN_PLACE, flag, mpi.MIN)], Deadline(seconds))
    except OutOfTimeError:
        return False
    return bool(flag[0])


def collect_texts(text: str, seconds: float) -> list[str | None]:
    """Texts of all ranks, on rank 0; None for a rank that sent none in time. Elsewhere an empty list."""
    mpi = import_mpi()
    world = mpi.COMM_WORLD
    patience = Deadline(seconds)
    if world.Get_rank() != 0:
        encoded = np.frombuffer(text.encode(), np.uint8)
        with contextlib.suppress(OutOfTimeError):
            finish([world.Isend(encoded, 0, REPORT_TAG)], patience)
        return []
    texts: list[str | None] = [None] * world.Get_size()
    texts[0] = text
    status = mpi.Status()
    with contextlib.suppress(OutOfTimeError):
        while None in texts:
            if world.Iprobe(mpi.ANY_SOURCE, REPORT_TAG, status):
                source, buffer = status.Get_source(), np.empty(status.Get_count(mpi.BYTE), np.uint8)
                finish([world.Irecv(buffer, source, REPORT_TAG)], patience)
                texts[source] = buffer.tobytes().decode()
            else:
                patience.check()
                time.sleep(1e-3)
    return texts


def spread_code(code: int, seconds: float) -> int | None:
    """The number that rank 0 gives, on every rank; None if it does not come in time."""
    number = np.array([code], np.int64)
    try:
        finish([import_mpi().COMM_WORLD.Ibcast(number, 0)], Deadline(seconds))
    except OutOfTimeError:
        return None
    return int(number[0])


def end_job(code: int) -> None:
    """End every rank, also where MPI is stuck; does not return."""
    sys.stdout.flush()
    backstop = threading.Timer(LAST_SECONDS, exit_now, (code,))
    backstop.daemon = True
    backstop.start()
    import_mpi().COMM_WORLD.Abort(code)


def blocking_call(patience: Deadline, action: Callable[[], Result]) -> Result:
    """Carry out a call that blocks, within a time limit where another thread than the first may call MPI."""
    mpi = import_mpi()
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        return action()
    try:
        return within(patience.left, action)
    except OutOfTimeError:
        raise OutOfTimeError(patience.seconds) from None
