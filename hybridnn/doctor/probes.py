"""Small tries of what MPI can do here, each with a time limit: messages, sums, shared memory, a file.

They use MPI as it is, without groups and recorder, so that what they find is about the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.file_io import Rectangle, sync, write_rectangle
from hybridnn.comm.mpi import import_mpi
from hybridnn.doctor.deadline import Deadline, finish
from hybridnn.doctor.roll_call import blocking_call

if TYPE_CHECKING:
    from mpi4py import MPI


PING_TAG = 7002
ROUNDS = 5
"""Turns of which the fastest counts: what is asked is what the machine can do."""
TURN_BYTES = 1 << 22
MOST_REPEATS = 200


@dataclass(frozen=True)
class Timing:
    """How long one message or one all-reduce took.

    Attributes
    ----------
    nbytes : int
        Size of the array.
    seconds : float
    """

    nbytes: int
    seconds: float


def time_ping_pong(comm: MPI.Intracomm, other: int, sizes: Sequence[int], seconds: float) -> list[Timing]:
    """Time messages between rank 0 and the rank `other`, one way; the other ranks return at once with nothing.

    Raises
    ------
    OutOfTimeError
        If it takes longer than so many seconds.
    RuntimeError
        If something else arrives than was sent.
    """
    rank = comm.Get_rank()
    if rank not in (0, other):
        return []
    patience = Deadline(seconds)
    peer = other if rank == 0 else 0

    def there_and_back(array: NDArray[np.uint8]) -> None:
        for step in (comm.Isend, comm.Irecv) if rank == 0 else (comm.Irecv, comm.Isend):
            finish([step(array, peer, PING_TAG)], patience, awake=True)

    timings = []
    for nbytes in sizes:
        array = np.full(nbytes, 7 if rank == 0 else 0, np.uint8)
        timings.append(Timing(nbytes, _fastest(partial(there_and_back, array), nbytes) / 2))
        if not (array == 7).all():
            raise RuntimeError(f"a message of {nbytes:,} bytes arrived with other values than were sent")
    return timings


def time_all_reduce(comm: MPI.Intracomm, sizes: Sequence[int], seconds: float) -> list[Timing]:
    """Time sums over all ranks, and check them; collective.

    Raises
    ------
    OutOfTimeError
        If it takes longer than so many seconds.
    RuntimeError
        If a sum is wrong.
    """
    patience = Deadline(seconds)
    size = comm.Get_size()
    timings = []
    for nbytes in sizes:
        mine = np.full(nbytes // 8, comm.Get_rank() + 1.0)
        total = np.zeros_like(mine)

        def reduce(mine: NDArray[np.float64] = mine, total: NDArray[np.float64] = total) -> None:
            finish([comm.Iallreduce(mine, total)], patience, awake=True)

        timings.append(Timing(nbytes, _fastest(reduce, nbytes)))
        if not (total == size * (size + 1) / 2).all():
            raise RuntimeError(f"an all-reduce of {nbytes:,} bytes gave a wrong sum")
    return timings


def try_window(node: MPI.Intracomm, seconds: float) -> None:
    """Share memory among the ranks of a node: each writes its number, all read all; collective over the node.

    Raises
    ------
    OutOfTimeError
        If it takes longer than so many seconds.
    RuntimeError
        If a rank does not see what another wrote.
    Exception
        The MPI library's own.
    """
    mpi = import_mpi()
    patience = Deadline(seconds)
    rank, size = node.Get_rank(), node.Get_size()
    window = blocking_call(patience, lambda: mpi.Win.Allocate_shared(8 * size if rank == 0 else 0, 8, comm=node))
    window.Lock_all(mpi.MODE_NOCHECK)
    memory, _ = window.Shared_query(0)
    numbers = np.ndarray(size, np.int64, buffer=memory)
    numbers[rank] = rank + 1
    window.Sync()
    finish([node.Ibarrier()], patience)
    window.Sync()
    right = numbers.tolist() == list(range(1, size + 1))
    finish([node.Ibarrier()], patience)  # nobody frees what another still reads
    del numbers, memory
    window.Unlock_all()
    blocking_call(patience, window.Free)
    if not right:
        raise RuntimeError("a rank does not see in shared memory what another rank of its node wrote")


def try_file(comm: MPI.Intracomm, path: Path, seconds: float) -> None:
    """Write one file together, each rank its number, read it back as a plain file, and remove it; collective.

    Raises
    ------
    OutOfTimeError
        If it takes longer than so many seconds.
    RuntimeError
        If this rank cannot write, or does not find in the file what all wrote.
    """
    patience = Deadline(seconds)
    rank, size = comm.Get_rank(), comm.Get_size()
    number = np.array([[rank + 1]], np.int64)
    failed: OSError | None = None
    try:
        write_rectangle(path, number, Rectangle((size, 1), slice(rank, rank + 1), slice(0, 1)), b"")
        sync(path)
    except OSError as error:
        failed = error
    finish([comm.Ibarrier()], patience)
    found = np.fromfile(path, np.int64).tolist() if path.exists() else None
    finish([comm.Ibarrier()], patience)  # nobody removes what another still reads
    if rank == 0:
        path.unlink(missing_ok=True)
    if failed is not None:
        raise RuntimeError(f"it cannot be written: {failed.strerror}")
    if found is None:
        raise RuntimeError("a file that all ranks wrote together is not there for this rank: the folder is not shared")
    if found != list(range(1, size + 1)):
        raise RuntimeError("a file that all ranks wrote together holds other values than were written")


def _fastest(action: Callable[[], Any], nbytes: int) -> float:
    """Seconds of one `action`: the best of some turns, after one that opens connections and touches memory."""
    repeats = max(1, min(MOST_REPEATS, TURN_BYTES // nbytes))
    action()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            action()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best
