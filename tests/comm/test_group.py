"""Every call of a group against NumPy: on host arrays, and on arrays of a device by every transport.

Each rank generates the data of every rank from a seed, so the expected result needs no message. The device is a
stand-in whose memory is filled late, when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_sizes, block_slice
from hybridnn.comm.group import Group
from hybridnn.parallel.grid import ProcessGrid
from reference.stand_in_device import ONE_MESSAGE, SMALL_PIECES, TRANSPORTS, DeviceArray, data_of, device_group

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = [1, 2, 3, 4]
LIMITS = (2**30, 24)  # bytes: whole arrays, and a few elements at a time
HOST_SHAPES = ((11, 3), (8, 2), (2, 5), (7,), (4, 0))
DEVICE_SHAPES = ((11, 3), (6, 2), (2, 5), (7,), (1, 4), (5, 0))

on_host_and_devices = pytest.mark.parametrize("memory", ["host", *TRANSPORTS])


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
        np.testing.assert_array_equal(self.get(found) if isinstance(found, DeviceArray) else found, expected)


def cases(comm: MPI.Intracomm, memory: str) -> Iterator[Case]:
    if memory == "host":
        for limit in LIMITS:
            group = ProcessGrid(comm, message_limit=limit).world
            for dtype in ("float32", "float64", "int64", "uint8"):
                for shape in HOST_SHAPES:
                    yield Case(group, dtype, shape, np.copy, np.asarray)
        return
    for chunk in (ONE_MESSAGE, SMALL_PIECES):
        group, cupy = device_group(comm, memory, chunk)
        for dtype in ("float32", "int64"):
            for shape in DEVICE_SHAPES:
                yield Case(group, dtype, shape, cupy.compute, cupy.numbers)


@pytest.mark.mpi(ranks=RANKS)
@on_host_and_devices
def test_allreduce_returns_sums_and_maxima(comm: MPI.Intracomm, memory: str) -> None:
    for case in cases(comm, memory):
        everyone = [case.data(rank) for rank in range(comm.size)]
        for operation, expected in (("sum", sum(everyone[1:], everyone[0])), ("max", np.maximum.reduce(everyone))):
            blocking, later = case.put(everyone[comm.rank]), case.put(everyone[comm.rank])
            case.group.allreduce(blocking, operation)
            case.group.iallreduce(later, operation).wait()
            case.check(blocking, expected)
            case.check(later, expected)


@pytest.mark.mpi(ranks=RANKS)
@on_host_and_devices
def test_allgather_rows_fills_the_blocks_of_all_ranks(comm: MPI.Intracomm, memory: str) -> None:
    for case in cases(comm, memory):
        expected, own = case.data(0), block_slice(case.shape[0], comm.size, comm.rank)
        start = np.full(case.shape, 99, case.dtype)
        start[own] = expected[own]
        blocking, later = case.put(start), case.put(start)
        case.group.allgather_rows(blocking)
        case.group.iallgather_rows(later).wait()
        case.check(blocking, expected)
        case.check(later, expected)


@pytest.mark.mpi(ranks=RANKS)
@on_host_and_devices
def test_ialltoall_rows_transposes_ranks_and_rows(comm: MPI.Intracomm, memory: str) -> None:
    for case in cases(comm, memory):
        rows = (comm.size, *case.shape)
        expected = np.stack([case.data(rank, rows)[comm.rank] for rank in range(comm.size)])
        out = case.put(np.full_like(expected, 99))
        case.group.ialltoall_rows(case.put(case.data(comm.rank, rows)), out).wait()
        case.check(out, expected)


@pytest.mark.mpi(ranks=RANKS)
@on_host_and_devices
def test_broadcast_from_every_root(comm: MPI.Intracomm, memory: str) -> None:
    for case in cases(comm, memory):
        for root in range(comm.size):
            blocking, later = (case.put(case.data(comm.rank)) for _ in range(2))
            case.group.broadcast(blocking, root)
            case.group.ibroadcast(later, root).wait()
            case.check(blocking, case.data(root))
            case.check(later, case.data(root))


@pytest.mark.mpi(ranks=RANKS)
@on_host_and_devices
def test_scatter_and_gather_of_uneven_and_empty_parts(comm: MPI.Intracomm, memory: str) -> None:
    for case in cases(comm, memory):
        for rows in ([0, 5, 1, 3][: comm.size], block_sizes(7, comm.size)):
            for root in range(comm.size):
                for put in dict.fromkeys((case.put, np.copy)):  # the root's array may lie on the host
                    check_scatter_and_gather(case, rows, root, put)


def check_scatter_and_gather(case: Case, rows: list[int], root: int, put: Callable[[NDArray[Any]], Any]) -> None:
    rank = case.group.rank
    full = case.data(0, (sum(rows), *case.shape[1:]))
    first = sum(rows[:rank])
    own = full[first : first + rows[rank]]
    part = case.put(np.full_like(own, 99))
    case.group.scatter_rows(put(full) if rank == root else None, part, rows, root)
    case.check(part, own)
    back = put(np.full_like(full, 99)) if rank == root else None
    case.group.gather_rows(part, back, rows, root)
    if back is not None:
        case.check(back, full)


@pytest.mark.mpi(ranks=[2, 3])
@on_host_and_devices
def test_messages_keep_their_order_whichever_is_waited_for_first(comm: MPI.Intracomm, memory: str) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for case in cases(comm, memory):
        for synchronous in (False, True):
            arrays = [case.put(np.full(case.shape, 99, case.dtype)) for _ in range(3)]
            sent = [case.put(case.data(3 * comm.rank + number)) for number in range(3)]
            receives = [case.group.ireceive(array, before, tag=3) for array in arrays]
            sends = [case.group.isend(array, after, tag=3, synchronous=synchronous) for array in sent]
            for request in reversed(receives + sends):
                request.wait()
            for number, array in enumerate(arrays):
                case.check(array, case.data(3 * before + number))


@pytest.mark.mpi(ranks=[2])
def test_a_synchronous_send_is_not_done_before_its_receive(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    array = np.arange(2.0)
    if comm.rank == 0:
        request = group.isend(array, 1, tag=0, synchronous=True)
        assert not request.test()
        group.barrier()
        request.wait()
    else:
        group.barrier()
        group.ireceive(array, 0, tag=0).wait()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_request_owns_its_arrays_until_it_is_done(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    array = np.full(1 << 16, comm.rank + 1.0)
    request = group.iallreduce(array)
    del array  # the only other reference: the request alone keeps the memory
    kept = request._arrays[0]
    while not request.test():
        pass
    assert request.test()
    np.testing.assert_array_equal(kept, sum(range(1, comm.size + 1)))
    assert request._arrays == ()


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_collectives_used_in_layers_are_adjoint_pairs(comm: MPI.Intracomm) -> None:
    """<F x, y> = <x, F* y> over all ranks: all-gather and the rank's rows of a sum, and all-reduce with itself.

    x lies in the product of the ranks' spaces. The forward all-gather of activations belongs to a sum of gradients of
    which each rank keeps its own rows; the sum of partial products (a layer split by inputs) belongs to a sum again.
    """
    group = ProcessGrid(comm).world
    rng = np.random.default_rng(comm.rank)
    block = block_slice(7, comm.size, comm.rank)
    x_part, y_full = rng.normal(size=(block.stop - block.start, 3)), rng.normal(size=(7, 3))

    def inner(a: NDArray[Any], b: NDArray[Any]) -> float:
        product = np.array([np.vdot(a, b)])
        group.allreduce(product)
        return float(product[0])

    gathered = np.zeros((7, 3))
    gathered[block] = x_part
    group.allgather_rows(gathered)
    y_sum = y_full.copy()
    group.allreduce(y_sum)
    assert inner(gathered, y_full) == pytest.approx(inner(x_part, y_sum[block]), rel=1e-12)

    x, y = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    summed_x, summed_y = x.copy(), y.copy()
    group.allreduce(summed_x)
    group.allreduce(summed_y)
    assert inner(summed_x, y) == pytest.approx(inner(x, summed_y), rel=1e-12)

    root_x = x if comm.rank == 0 else np.zeros_like(x)
    spread = root_x.copy()
    group.broadcast(spread)
    # The adjoint of a broadcast is a sum that the root keeps.
    assert inner(spread, y) == pytest.approx(inner(root_x, summed_y), rel=1e-12)


@pytest.mark.mpi(ranks=[2])
def test_wrong_arrays_are_refused_before_anything_is_sent(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    gaps = np.zeros((4, 4))[:, ::2]
    refusals: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "not contiguous", lambda: group.allreduce(gaps)),
        (ValueError, "not contiguous", lambda: group.allgather_rows(gaps)),
        (TypeError, "Python objects", lambda: group.allreduce(np.array([{}], object))),
        (TypeError, "expected dtype float64", lambda: group.ialltoall_rows(np.zeros(2), np.zeros(2, "f"))),
        (ValueError, r"shape \(2, 3\)", lambda: group.ialltoall_rows(np.zeros((4, 3)), np.zeros((4, 3)))),
        (ValueError, r"shape \(2, 3\)", lambda: group.ialltoall_rows(np.zeros((2, 3)), np.zeros((2, 2)))),
        (ValueError, r"shape \(1, 2\)", lambda: group.scatter_rows(None, np.zeros((2, 2)), [1, 1])),
    ]
    for kind, text, call in refusals:
        with pytest.raises(kind, match=text):
            call()
    comm.Barrier()


@pytest.mark.mpi(ranks=[2, 4])
def test_every_call_is_recorded_with_its_bytes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    grid.world.allreduce(np.zeros(comm.size * 10))
    grid.world.allgather_rows(np.zeros(comm.size * 10))
    grid.world.broadcast(np.zeros(0))
    grid.world.barrier()
    names = [event.name for event in grid.recorder.events]
    assert names == ["allreduce", "allgather", "broadcast", "barrier"]  # blocking calls have no wait
    part = 10 * 8 * (comm.size - 1)
    assert [event.nbytes for event in grid.recorder.events] == [2 * part, part, 0, 0]
    assert grid.recorder.totals.bytes_sent == 3 * part


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_split_makes_a_group_of_the_ranks_of_one_color_in_the_same_order(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    color = int(grid.rank in (1, 2))
    part = grid.world.split(color, "part")
    members = [rank for rank in range(grid.size) if (rank in (1, 2)) == bool(color)]
    assert (part.axis, part.size, part.rank) == ("part", len(members), members.index(grid.rank))
    ranks = np.full(len(members), -1)
    ranks[part.rank] = grid.rank
    part.allgather_rows(ranks)
    assert ranks.tolist() == members
    assert part.size == 1 or grid.recorder.events[-1].axis == "part"
