"""Every collective of a group against NumPy on all ranks' data, whole and in pieces, blocking and not.

Each rank makes the data of every rank from a seed, so the expected result is computed without a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_sizes, block_slice
from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = [1, 2, 3, 4]
DTYPES = ["float32", "float64", "int64", "uint8"]
LIMITS = [2**30, 24]  # bytes: whole arrays, and a few numbers at a time


def data_of(rank: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Small whole numbers: sums are exact in every dtype."""
    return np.random.default_rng(100 + rank).integers(0, 9, shape).astype(dtype)


def cases() -> list[tuple[str, int, tuple[int, ...]]]:
    return [(d, limit, shape) for d in DTYPES for limit in LIMITS for shape in ((11, 3), (8, 2), (2, 5), (7,), (4, 0))]


def groups(comm: MPI.Intracomm) -> list[tuple[Group, str, tuple[int, ...]]]:
    made = {limit: ProcessGrid(comm, message_limit=limit).world for limit in LIMITS}
    return [(made[limit], dtype, shape) for dtype, limit, shape in cases()]


@pytest.mark.mpi(ranks=RANKS)
def test_allreduce_sums_and_takes_maxima(comm: MPI.Intracomm) -> None:
    for group, dtype, shape in groups(comm):
        everyone = [data_of(rank, shape, dtype) for rank in range(comm.size)]
        for operation, expected in (("sum", sum(everyone[1:], everyone[0])), ("max", np.maximum.reduce(everyone))):
            blocking, later = everyone[comm.rank].copy(), everyone[comm.rank].copy()
            group.allreduce(blocking, operation)
            group.iallreduce(later, operation).wait()
            np.testing.assert_array_equal(blocking, expected)
            np.testing.assert_array_equal(later, expected)


@pytest.mark.mpi(ranks=RANKS)
def test_allgather_rows_fills_everybodys_blocks(comm: MPI.Intracomm) -> None:
    for group, dtype, shape in groups(comm):
        expected = data_of(0, shape, dtype)
        mine = block_slice(shape[0], comm.size, comm.rank)
        for gather in (group.allgather_rows, lambda array, group=group: group.iallgather_rows(array).wait()):
            array = np.full(shape, 99, dtype)
            array[mine] = expected[mine]
            gather(array)
            np.testing.assert_array_equal(array, expected)


@pytest.mark.mpi(ranks=RANKS)
def test_ialltoall_rows_brings_every_rank_its_row_of_all(comm: MPI.Intracomm) -> None:
    for group, dtype, shape in groups(comm):
        rows = (comm.size, *shape)
        expected = np.stack([data_of(rank, rows, dtype)[comm.rank] for rank in range(comm.size)])
        out = np.full(rows, 99, dtype)
        group.ialltoall_rows(data_of(comm.rank, rows, dtype), out).wait()
        np.testing.assert_array_equal(out, expected)


@pytest.mark.mpi(ranks=RANKS)
def test_broadcast_from_every_root(comm: MPI.Intracomm) -> None:
    for group, dtype, shape in groups(comm):
        for root in range(comm.size):
            blocking, later = data_of(comm.rank, shape, dtype), data_of(comm.rank, shape, dtype)
            group.broadcast(blocking, root)
            group.ibroadcast(later, root).wait()
            np.testing.assert_array_equal(blocking, data_of(root, shape, dtype))
            np.testing.assert_array_equal(later, data_of(root, shape, dtype))


@pytest.mark.mpi(ranks=RANKS)
def test_scatter_and_gather_uneven_and_empty_parts(comm: MPI.Intracomm) -> None:
    uneven = [0, 5, 1, 3][: comm.size]
    for group, dtype, shape in groups(comm):
        width = shape[1:]
        for rows in (uneven, block_sizes(7, comm.size)):
            for root in range(comm.size):
                whole = data_of(0, (sum(rows), *width), dtype)
                first = sum(rows[: comm.rank])
                part = np.full((rows[comm.rank], *width), 99, dtype)
                group.scatter_rows(whole if comm.rank == root else None, part, rows, root)
                np.testing.assert_array_equal(part, whole[first : first + rows[comm.rank]])
                back = np.full_like(whole, 99) if comm.rank == root else None
                group.gather_rows(part, back, rows, root)
                if back is not None:
                    np.testing.assert_array_equal(back, whole)


@pytest.mark.mpi(ranks=[2, 3])
def test_a_request_owns_its_arrays_until_done(comm: MPI.Intracomm) -> None:
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


def inner(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.vdot(a, b))


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_collectives_used_in_layers_are_adjoint_pairs(comm: MPI.Intracomm) -> None:
    """<F x, y> = <x, F* y> over all ranks: all-gather and the rank's rows of an all-reduce, and all-reduce with itself.

    x lies in the product of the ranks' spaces. The forward gather of activations belongs to a sum of gradients whose
    own rows each rank keeps; the sum of partial products (a layer split by inputs) belongs to a sum over the ranks
    again.
    """
    group = ProcessGrid(comm).world
    rng = np.random.default_rng(comm.rank)
    block = block_slice(7, comm.size, comm.rank)
    x_part, y_whole = rng.normal(size=(block.stop - block.start, 3)), rng.normal(size=(7, 3))

    gathered = np.zeros((7, 3))
    gathered[block] = x_part
    group.allgather_rows(gathered)
    y_sum = y_whole.copy()
    group.allreduce(y_sum)
    assert total(group, inner(gathered, y_whole)) == pytest.approx(total(group, inner(x_part, y_sum[block])), rel=1e-12)

    x, y = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    summed_x, summed_y = x.copy(), y.copy()
    group.allreduce(summed_x)
    group.allreduce(summed_y)
    assert total(group, inner(summed_x, y)) == pytest.approx(total(group, inner(x, summed_y)), rel=1e-12)

    root_x = x if comm.rank == 0 else np.zeros_like(x)
    spread = root_x.copy()
    group.broadcast(spread)
    # The adjoint of a broadcast is a sum that the root keeps.
    assert total(group, inner(spread, y)) == pytest.approx(total(group, inner(root_x, summed_y)), rel=1e-12)


def total(group: Group, value: float) -> float:
    array = np.array([value])
    group.allreduce(array)
    return float(array[0])


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
    grid.world.barrier()
    names = [event.name for event in grid.recorder.events]
    assert names == ["allreduce", "allgather", "barrier"]
    part = 10 * 8 * (comm.size - 1)
    assert [event.nbytes for event in grid.recorder.events] == [2 * part, part, 0]
    assert grid.recorder.totals.bytes_sent == 3 * part


@pytest.mark.mpi(ranks=[2, 3])
def test_messages_go_around_the_ring(comm: MPI.Intracomm) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for group, dtype, shape in groups(comm):
        for synchronous in (False, True):
            array = np.full(shape, 99, dtype)
            receive = group.ireceive(array, before, tag=3)
            send = group.isend(data_of(comm.rank, shape, dtype), after, tag=3, synchronous=synchronous)
            receive.wait()
            send.wait()
            np.testing.assert_array_equal(array, data_of(before, shape, dtype))


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
