"""Every call of a group on arrays of a device, by every transport, against NumPy on all ranks' data.

The device is a stand-in whose memory lags behind until somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from comm.stand_in_device import STALE, DeviceArray, StandInCupy
from comm.stand_in_streams import StandInError
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_sizes, block_slice
from hybridnn.comm.transports.carrier import Carrier
from hybridnn.comm.transports.device import Device
from hybridnn.kernels.cupy_kernels import CupyKernels

if TYPE_CHECKING:
    from mpi4py import MPI

NAMES = ["staging", "mpi", "nccl"]
SHAPES = ((11, 3), (6, 2), (2, 5), (7,), (1, 4), (5, 0))
WHOLE, CHUNKS = 2**22, 40  # bytes: arrays in one message, and in a few numbers at a time


def data_of(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> NDArray[Any]:
    return np.random.default_rng(100 + rank).integers(0, 9, shape).astype(dtype)


def device_group(comm: MPI.Intracomm, name: Any, chunk: int = WHOLE, **how: Any) -> tuple[Group, StandInCupy]:
    """The batch group of all ranks."""
    grid, cupy = ProcessGrid(comm, **how), StandInCupy(comm)
    grid.carry(Carrier(name, Device(cupy, chunk)))
    return grid.batch_group, cupy


def cases(comm: MPI.Intracomm, name: str) -> Iterator[tuple[Group, StandInCupy, str, tuple[int, ...]]]:
    for chunk in (WHOLE, CHUNKS):
        group, cupy = device_group(comm, name, chunk)
        for dtype in ("float32", "int64"):
            for shape in SHAPES:
                yield group, cupy, dtype, shape


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", NAMES)
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
@pytest.mark.parametrize("name", NAMES)
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
@pytest.mark.parametrize("name", NAMES)
def test_each_rank_gets_its_rows_of_the_sum(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        everyone = [data_of(rank, shape, dtype) for rank in range(comm.size)]
        expected = sum(everyone[1:], everyone[0])[block_slice(shape[0], comm.size, comm.rank)]
        out = cupy.compute(np.full_like(expected, 77))
        group.reduce_scatter_rows(cupy.compute(everyone[comm.rank]), out)
        np.testing.assert_array_equal(cupy.numbers(out), expected)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_gets_its_row_of_all(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        rows = (comm.size, *shape)
        expected = np.stack([data_of(rank, rows, dtype)[comm.rank] for rank in range(comm.size)])
        out = cupy.compute(np.full_like(expected, 77))
        group.ialltoall_rows(cupy.compute(data_of(comm.rank, rows, dtype)), out).wait()
        np.testing.assert_array_equal(cupy.numbers(out), expected)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_broadcasts_from_every_root(comm: MPI.Intracomm, name: str) -> None:
    for group, cupy, dtype, shape in cases(comm, name):
        for root in range(comm.size):
            blocking, later = (cupy.compute(data_of(comm.rank, shape, dtype)) for _ in range(2))
            group.broadcast(blocking, root)
            group.ibroadcast(later, root).wait()
            np.testing.assert_array_equal(cupy.numbers(blocking), data_of(root, shape, dtype))
            np.testing.assert_array_equal(cupy.numbers(later), data_of(root, shape, dtype))


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", NAMES)
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
@pytest.mark.parametrize("name", NAMES)
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
@pytest.mark.parametrize("name", NAMES)
def test_collectives_in_flight_end_in_any_order_beside_those_of_the_host(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, CHUNKS)
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
@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_waits_for_the_device_leaves_while_its_rank_waits_for_another(
    comm: MPI.Intracomm, name: str
) -> None:
    """Each rank first waits for what the other sends; on rank 1 both arrays lie on the host."""
    group, cupy = device_group(comm, name)
    peer, numbers = 1 - comm.rank, data_of(comm.rank, (50,))
    sent = cupy.compute(numbers) if comm.rank == 0 else numbers
    room = np.zeros(50, np.float32)
    for _ in range(20):
        cupy.current.give(lambda: None)
    receive = group.ireceive(room, peer, tag=1)
    send = group.isend(sent, peer, tag=1)
    receive.wait()
    send.wait()
    np.testing.assert_array_equal(room, data_of(peer, (50,)))


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", NAMES)
def test_beginning_waits_for_no_device(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, CHUNKS)
    computed = cupy.current.given + 1000
    for _ in range(1000):
        cupy.current.give(lambda: None)
    array, message = cupy.compute(data_of(comm.rank, (40,))), cupy.compute(data_of(comm.rank, (40,)))
    requests = [group.iallreduce(array), group.isend(message, 1 - comm.rank, 5)]
    requests.append(group.ireceive(cupy.compute(data_of(2, (40,))), 1 - comm.rank, 5))
    assert not any(request.test() for request in requests)
    assert cupy.current.done < computed
    for request in requests:
        request.wait()
    np.testing.assert_array_equal(cupy.numbers(array), data_of(0, (40,)) + data_of(1, (40,)))


@pytest.mark.mpi(ranks=[2])
def test_nccl_is_waited_for_by_the_stream_alone(comm: MPI.Intracomm) -> None:
    group, cupy = device_group(comm, "nccl")
    array = cupy.compute(data_of(comm.rank, (40,)))
    group.allreduce(array)
    assert cupy.cuda.nccl.calls == ["allReduce"]
    assert array._memory.tolist() == [STALE] * 40
    assert cupy.pinned_bytes == 0
    np.testing.assert_array_equal(cupy.numbers(array), data_of(0, (40,)) + data_of(1, (40,)))


def record(cupy: StandInCupy, work: Callable[[], None]) -> Callable[[], None]:
    kernels: Any = SimpleNamespace(_cupy=cupy)
    return CupyKernels.record(kernels, work)


@pytest.mark.mpi(ranks=[2])
def test_recorded_collectives_of_nccl_happen_at_every_replay(comm: MPI.Intracomm) -> None:
    group, cupy = device_group(comm, "nccl")
    array, rows = (cupy.compute(data_of(comm.rank, (40,))) for _ in range(2))

    def work() -> None:
        first = group.iallreduce(array)
        rows[block_slice(40, 2, 1 - comm.rank)] = 5  # computed beside it
        second = group.iallgather_rows(rows)
        assert not first.test()
        for request in (first, second):
            request.wait()
        array[:20] = array[20:]

    cupy.numbers(array)
    replay = record(cupy, work)
    sums = data_of(0, (40,)) + data_of(1, (40,))
    np.testing.assert_array_equal(cupy.numbers(array), data_of(comm.rank, (40,)))
    for times in (1, 2, 4):
        replay()
        np.testing.assert_array_equal(cupy.numbers(array), times * np.tile(sums[20:], 2))
    np.testing.assert_array_equal(cupy.numbers(rows), np.r_[data_of(0, (40,))[:20], data_of(1, (40,))[20:]])


@pytest.mark.mpi(ranks=[2])
def test_what_cannot_be_recorded_is_refused_and_spoils_nothing(comm: MPI.Intracomm) -> None:
    group, cupy = device_group(comm, "nccl")
    array = cupy.compute(data_of(comm.rank, (40,)))
    before = group.iallreduce(array)
    for work, problem in (
        (lambda: group.iallreduce(array), "does not wait for"),
        (lambda: group.isend(array, 1 - comm.rank, 3), "nobody can know"),
        (lambda: before.wait(), "waits for what is not recorded"),
        (lambda: cupy.numbers(array), "the host waits"),
    ):
        with pytest.raises(StandInError, match=problem):
            record(cupy, work)
    before.wait()
    group.allreduce(array)
    np.testing.assert_array_equal(cupy.numbers(array), 2 * (data_of(0, (40,)) + data_of(1, (40,))))


@pytest.mark.mpi(ranks=[2])
def test_what_an_array_was_used_for_before_ends_before_it_is_filled(comm: MPI.Intracomm) -> None:
    for name in NAMES:
        group, cupy = device_group(comm, name)
        array = cupy.compute(np.full(30, 1, np.float32))
        seen: list[float] = []
        cupy.current.give(lambda seen=seen, array=array: seen.append(float(array._memory.sum())))
        receive = group.ireceive(array, 1 - comm.rank, 2)
        group.isend(cupy.compute(np.full(30, 5, np.float32)), 1 - comm.rank, 2).wait()
        receive.wait()
        assert cupy.numbers(array).tolist() == [5] * 30
        assert seen == [30]


@pytest.mark.mpi(ranks=[2])
def test_pinned_memory_is_used_again(comm: MPI.Intracomm) -> None:
    group, cupy = device_group(comm, "staging", 2**14)
    taken = []
    for step in range(6):
        arrays = [cupy.compute(np.full(20_000, comm.rank + step, np.float32)) for _ in range(2)]
        for request in [group.iallreduce(array) for array in arrays]:
            request.wait()
        for array in arrays:
            assert set(cupy.numbers(array)) == {2 * step + 1}
        taken.append(cupy.pinned_bytes)
    assert taken[0] == 2 * 5 * 2**14
    assert taken == taken[:1] * 6


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", NAMES)
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
    assert group.recorder.now is None


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_compared_collectives_and_groups_divided_further(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, CHUNKS, check_collectives=True)
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


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_comparison_of_collectives_keeps_no_message_from_leaving(comm: MPI.Intracomm, blocking: bool) -> None:
    """Rank 1 enters the collective only when it has the message, which rank 0 begins to send before it."""
    group, cupy = device_group(comm, "staging", check_collectives=True)
    numbers, total = data_of(0, (50,)), np.full(3, 1.0 + comm.rank)
    requests = []
    if comm.rank == 0:
        for _ in range(20):
            cupy.current.give(lambda: None)
        requests.append(group.isend(cupy.compute(numbers), 1, tag=1))
    else:
        room = cupy.compute(np.zeros_like(numbers))
        group.ireceive(room, 0, tag=1).wait()
        np.testing.assert_array_equal(cupy.numbers(room), numbers)
    if blocking:
        group.barrier()
    requests.append(group.iallreduce(total))
    for request in reversed(requests):
        request.wait()
    np.testing.assert_array_equal(total, 3.0)
