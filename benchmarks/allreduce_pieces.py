"""All-reduce of a large array between the ranks of a node: at once, in pieces, and non-blocking.

``mpirun -n 2 python -m benchmarks.allreduce_pieces`` prints medians of seven alternating runs in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.timing import seconds_of

NUMBERS = 36_000_000
RUNS = 7


def blocking(array: Any, piece: int) -> None:
    """All-reduce `array` in blocking calls of `piece` bytes."""
    step = piece // array.itemsize
    for start in range(0, array.size, step):
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array[start : start + step])


def in_flight(array: Any, piece: int, most: int) -> None:
    """All-reduce `array` in non-blocking calls of `piece` bytes, at most `most` at a time."""
    step, requests = piece // array.itemsize, deque[Any]()
    for start in range(0, array.size, step):
        if len(requests) == most:
            requests.popleft().Wait()
        requests.append(MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, array[start : start + step]))
    MPI.Request.Waitall(list(requests))


def main() -> None:
    """Time all variants alternately; rank 0 prints."""
    array = np.zeros(NUMBERS, np.float32)
    ways: dict[str, Callable[[], None]] = {
        "blocking, at once": lambda: blocking(array, array.nbytes),
        "blocking, 8 MiB": lambda: blocking(array, 1 << 23),
        "blocking, 2 MiB": lambda: blocking(array, 1 << 21),
        "blocking, 512 KiB": lambda: blocking(array, 1 << 19),
        "non-blocking, at once": lambda: in_flight(array, array.nbytes, 1),
        "non-blocking, 2 of 512 KiB": lambda: in_flight(array, 1 << 19, 2),
        "non-blocking, 8 of 512 KiB": lambda: in_flight(array, 1 << 19, 8),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            MPI.COMM_WORLD.Barrier()
            seconds[name].append(seconds_of(way))
    if MPI.COMM_WORLD.rank == 0:
        print(f"all-reduce of {array.nbytes / 1e6:.0f} MB over {MPI.COMM_WORLD.size} ranks, ms")
        for name, times in seconds.items():
            print(f"{name:28} {1e3 * median(times):6.1f}")


if __name__ == "__main__":
    main()
