"""Every call of a group, with its result by NumPy: each rank generates the data of all ranks, without a message."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_sizes, block_slice
from hybridnn.comm.group import Group
from reference.emulated_device import data_of


class Case(NamedTuple):
    """A group, the dtype and shape of its arrays, and copies from NumPy to the memory of the group and back."""

    group: Group
    dtype: str
    shape: tuple[int, ...]
    put: Callable[[NDArray[Any]], Any]
    get: Callable[[Any], NDArray[Any]]

    def data(self, rank: int, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Small integers, whose sums are exact in every dtype."""
        return data_of(rank, self.shape if shape is None else shape, self.dtype)

    def check(self, found: Any, expected: NDArray[Any]) -> None:
        np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else self.get(found), expected)


def allreduce(case: Case) -> None:
    everyone = [case.data(rank) for rank in range(case.group.size)]
    for operation, expected in (("sum", sum(everyone[1:], everyone[0])), ("max", np.maximum.reduce(everyone))):
        blocking, later = case.put(everyone[case.group.rank]), case.put(everyone[case.group.rank])
        case.group.allreduce(blocking, operation)
        case.group.iallreduce(later, operation).wait()
        case.check(blocking, expected)
        case.check(later, expected)


def allgather_rows(case: Case) -> None:
    expected, own = case.data(0), block_slice(case.shape[0], case.group.size, case.group.rank)
    start = np.full(case.shape, 99, case.dtype)
    start[own] = expected[own]
    blocking, later = case.put(start), case.put(start)
    case.group.allgather_rows(blocking)
    case.group.iallgather_rows(later).wait()
    case.check(blocking, expected)
    case.check(later, expected)


def broadcast(case: Case) -> None:
    for root in range(case.group.size):
        blocking, later = (case.put(case.data(case.group.rank)) for _ in range(2))
        case.group.broadcast(blocking, root)
        case.group.ibroadcast(later, root).wait()
        case.check(blocking, case.data(root))
        case.check(later, case.data(root))


def scatter_and_gather(case: Case) -> None:
    """Of uneven and empty parts; the root's array may lie on the host."""
    size, rank = case.group.size, case.group.rank
    for rows in ([0, 5, 1, 3][:size], block_sizes(7, size)):
        for root, put in product(range(size), dict.fromkeys((case.put, np.copy))):
            full = case.data(0, (sum(rows), *case.shape[1:]))
            own = full[sum(rows[:rank]) : sum(rows[: rank + 1])]
            part = case.put(np.full_like(own, 99))
            case.group.scatter_rows(put(full) if rank == root else None, part, rows, root)
            case.check(part, own)
            back = put(np.full_like(full, 99)) if rank == root else None
            case.group.gather_rows(part, back, rows, root)
            if back is not None:
                case.check(back, full)


def messages(case: Case) -> None:
    """They keep their order, whichever is waited for first."""
    size, rank = case.group.size, case.group.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return
    arrays = [case.put(np.full(case.shape, 99, case.dtype)) for _ in range(3)]
    sent = [case.put(case.data(3 * rank + number)) for number in range(3)]
    receives = [case.group.ireceive(array, before, tag=3) for array in arrays]
    sends = [case.group.isend(array, after, tag=3) for array in sent]
    for request in reversed(receives + sends):
        request.wait()
    for number, array in enumerate(arrays):
        case.check(array, case.data(3 * before + number))


CALLS = (allreduce, allgather_rows, broadcast, scatter_and_gather, messages)
