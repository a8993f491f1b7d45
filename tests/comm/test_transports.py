"""Every call of a group on arrays of a device, by every transport, against NumPy on all ranks' data.

The device is a stand-in whose memory lags behind until somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_sizes, block_slice
from hybridnn.parallel.grid import ProcessGrid
from reference.stand_in_device import (
    ONE_MESSAGE,
    SMALL_PIECES,
    TRANSPORTS,
    DeviceArray,
    StandInCupy,
    data_of,
    device_group,
)

if TYPE_CHECKING:
    from mpi4py import MPI

SHAPES = ((11, 3), (6, 2), (2, 5), (7,), (1, 4), (5, 0))


def cases(comm: MPI.Intracomm, name: str) -> Iterator[tuple[Group, StandInCupy, str, tuple[int, ...]]]:
    for chunk in (ONE_MESSAGE, SMALL_PIECES):
        group, cupy = device_group(comm, name, chunk)
        for dtype in ("float32", "int64"):
            for shape in SHAPES:
                yield group, cupy, dtype, shape


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_sums_and_maxima(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        everyone = [data_of(rank, shape, dtype) for rank in range(comm.size)]
        for operation, expected in (("sum", sum(everyone[1:], everyone[0])), ("max", np.maximum.reduce(everyone))):
            blocking, later = cupy.compute(everyone[comm.rank]), cupy.compute(everyone[comm.rank])
            group.allreduce(blocking, operation)
            group.iallreduce(later, operation).wait()
            np.testing.assert_array_equal(cupy.numbers(blocking), expected)
            np.testing.assert_array_equal(cupy.numbers(later), expected)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_rows_are_gathered_everywhere(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        expected = data_of(0, shape, dtype)
        mine = block_slice(shape[0], comm.size, comm.rank)
        start = np.full(shape, 77, dtype)
        start[mine] = expected[mine]
        blocking, later = cupy.compute(start), cupy.compute(start)
        group.allgather_rows(blocking)
        group.iallgather_rows(later).wait()
        np.testing.assert_array_equal(cupy.numbers(blocking), expected)
        np.testing.assert_array_equal(cupy.numbers(later), expected)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_every_rank_gets_its_row_of_all(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        rows = (comm.size, *shape)
        expected = np.stack([data_of(rank, rows, dtype)[comm.rank] for rank in range(comm.size)])
        out = cupy.compute(np.full_like(expected, 77))
        group.ialltoall_rows(cupy.compute(data_of(comm.rank, rows, dtype)), out).wait()
        np.testing.assert_array_equal(cupy.numbers(out), expected)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_broadcasts_from_every_root(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        for root in range(comm.size):
            blocking, later = (cupy.compute(data_of(comm.rank, shape, dtype)) for _ in range(2))
            group.broadcast(blocking, root)
            group.ibroadcast(later, root).wait()
            np.testing.assert_array_equal(cupy.numbers(blocking), data_of(root, shape, dtype))
            np.testing.assert_array_equal(cupy.numbers(later), data_of(root, shape, dtype))


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("whole_on_host", [False, True])
def test_rows_are_dealt_out_and_collected(comm: MPI.Intracomm, name: str, whole_on_host: bool) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        place: Callable[[NDArray[Any]], Any] = np.copy if whole_on_host else cupy.compute
        for rows in ([0, 5, 1][: comm.size], block_sizes(7, comm.size)):
            for root in range(comm.size):
                whole = data_of(0, (sum(rows), *shape[1:]), dtype)
                first = sum(rows[: comm.rank])
                mine = whole[first : first + rows[comm.rank]]
                part = cupy.compute(np.full_like(mine, 77))
                group.scatter_rows(place(whole) if comm.rank == root else None, part, rows, root)
                np.testing.assert_array_equal(cupy.numbers(part), mine)
                back = place(np.full_like(whole, 77)) if comm.rank == root else None
                group.gather_rows(part, back, rows, root)
                if back is not None:
                    found = cupy.numbers(back) if isinstance(back, DeviceArray) else back
                    np.testing.assert_array_equal(found, whole)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_messages_keep_their_order_whoever_is_waited_for_first(comm: MPI.Intracomm, name: str) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for group, cupy, dtype, shape in cases(comm, name):
        for synchronous in (False, True):
            sent = [data_of(3 * comm.rank + number, shape, dtype) for number in range(3)]
            arrays = [cupy.compute(np.full(shape, 77, dtype)) for _ in range(3)]
            receives = [group.ireceive(array, before, tag=3) for array in arrays]
            sends = [group.isend(cupy.compute(numbers), after, tag=3, synchronous=synchronous) for numbers in sent]
            for request in reversed(receives + sends):
                request.wait()
            for number, array in enumerate(arrays):
                np.testing.assert_array_equal(cupy.numbers(array), data_of(3 * before + number, shape, dtype))


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_collectives_in_flight_end_in_any_order_beside_those_of_the_host(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, SMALL_PIECES)
    arrays = [cupy.compute(data_of(comm.rank, (size,))) for size in (40, 3, 25)]
    hosts = [data_of(comm.rank, (size,)) for size in (30, 2)]
    requests = [group.iallreduce(arrays[0]), group.iallreduce(hosts[0]), group.iallreduce(arrays[1])]
    group.allreduce(hosts[1])
    group.barrier()
    requests.append(group.iallreduce(arrays[2]))
    turns = (3, 0, 2, 1) if comm.rank == 0 else (1, 2, 3, 0)
    for turn in turns:
        while not requests[turn].test():
            pass
    for array in arrays:
        expected = sum(data_of(rank, (array.size,)) for rank in range(comm.size))
        np.testing.assert_array_equal(cupy.numbers(array), expected)
    for host in hosts:
        np.testing.assert_array_equal(host, sum(data_of(rank, (host.size,)) for rank in range(comm.size)))


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_calls_are_recorded_with_their_bytes_and_message_limits_hold(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, message_limit=64)
    array = cupy.compute(data_of(comm.rank, (100,)))
    request = group.iallreduce(array)
    assert group.recorder.totals.bytes_sent == 400
    request.wait()
    message = group.isend(array, 1 - comm.rank, 4)
    group.ireceive(cupy.compute(data_of(0, (100,))), 1 - comm.rank, 4).wait()
    message.wait()
    names = [event.name for event in group.recorder.events]
    assert names == ["allreduce", "allreduce.wait", "send", "receive", "receive.wait", "send.wait"]
    assert group.recorder.totals.bytes_sent == 800
    assert group.recorder.current_call is None


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_compared_collectives_and_groups_divided_further(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, SMALL_PIECES, check_collectives=True)
    part = group.split(0, "part")
    expected = sum(data_of(rank, (40,)) for rank in range(comm.size))
    for one in (group, part):
        arrays = [cupy.compute(data_of(comm.rank, (40,))) for _ in range(3)]
        requests = [one.iallreduce(arrays[0]), one.iallreduce(arrays[1])]
        one.barrier()
        one.allreduce(arrays[2])
        requests[1].wait()
        while not requests[0].test():
            pass
        for array in arrays:
            np.testing.assert_array_equal(cupy.numbers(array), expected)


@pytest.mark.mpi(ranks=[2])
def test_without_a_device_blocking_calls_go_straight_to_mpi(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    array = np.full(8, comm.rank + 1.0)
    grid.world.allreduce(array)
    grid.world.allgather_rows(array)
    grid.world.broadcast(array)
    assert [event.name for event in grid.recorder.events] == ["allreduce", "allgather", "broadcast"]
    np.testing.assert_array_equal(array, 3.0)
