"""Transports of device arrays, on an emulated device: calls in flight, records, captures, and NCCL's connections."""

import gc
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.blocks import block_slice
from hybridnn.comm.group import Group, Request
from hybridnn.gpu.device import Device
from hybridnn.gpu.nccl import start_nccl
from hybridnn.gpu.setup import TransportFactory
from hybridnn.parallel.grid import ProcessGrid
from mpi_runner.launch import run_mpi
from reference.emulated_device import (
    SMALL_PIECES,
    STALE,
    TRANSPORTS,
    EmulatedCupy,
    data_of,
    device_group,
    device_of,
)
from reference.emulated_streams import CudaError


def keep_busy(cupy: EmulatedCupy, operations: int) -> None:
    for _ in range(operations):
        cupy.current.enqueue(lambda: None)


def send_when_computed(group: Group, cupy: EmulatedCupy) -> Request | None:
    """Rank 0 sends what its busy device has yet to compute, and returns the request; rank 1 waits for it."""
    message = cupy.compute(data_of(0, (50,)))
    if group.rank == 1:
        group.ireceive(message, 0, tag=1).wait()
        np.testing.assert_array_equal(cupy.numbers(message), data_of(0, (50,)))
        return None
    keep_busy(cupy, 10)
    sent = group.isend(message, 1, tag=1)
    keep_busy(cupy, 100)
    return sent


@pytest.mark.mpi(ranks=[3])
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
    assert group.recorder.bytes_sent == 400
    request.wait()
    message = group.isend(array, 1 - comm.rank, 4)
    group.ireceive(cupy.compute(data_of(0, (100,))), 1 - comm.rank, 4).wait()
    message.wait()
    names = [event.name for event in group.recorder.events]
    assert names == ["allreduce", "allreduce.wait", "send", "receive", "receive.wait", "send.wait"]
    assert group.recorder.bytes_sent == 800
    assert group.recorder.current_call is None


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_groups_divided_further(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, SMALL_PIECES)
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
@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_deferred_message_starts_while_its_rank_waits_for_another(comm: MPI.Intracomm, name: str) -> None:
    """Each rank first waits for the message of the other; on rank 1 both arrays lie on the host."""
    group, cupy = device_group(comm, name)
    peer, numbers = 1 - comm.rank, data_of(comm.rank, (50,))
    sent = cupy.compute(numbers) if comm.rank == 0 else numbers
    received = np.zeros(50, np.float32)
    keep_busy(cupy, 20)
    receive = group.ireceive(received, peer, tag=1)
    send = group.isend(sent, peer, tag=1)
    receive.wait()
    send.wait()
    np.testing.assert_array_equal(received, data_of(peer, (50,)))


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", TRANSPORTS)
def test_starting_a_call_does_not_wait_for_the_device(comm: MPI.Intracomm, name: str) -> None:
    group, cupy = device_group(comm, name, SMALL_PIECES)
    computed = cupy.current.given + 1000
    keep_busy(cupy, 1000)
    array, message = cupy.compute(data_of(comm.rank, (40,))), cupy.compute(data_of(comm.rank, (40,)))
    requests = [group.iallreduce(array), group.isend(message, 1 - comm.rank, 5)]
    requests.append(group.ireceive(cupy.compute(data_of(2, (40,))), 1 - comm.rank, 5))
    assert not any(request.test() for request in requests)
    assert cupy.current.done < computed
    comm.Barrier()  # a rank that waits sends what the other one receives
    for request in requests:
        request.wait()
    np.testing.assert_array_equal(cupy.numbers(array), data_of(0, (40,)) + data_of(1, (40,)))


@pytest.mark.mpi(ranks=[2])
def test_only_the_stream_waits_for_nccl(comm: MPI.Intracomm) -> None:
    group, cupy = device_group(comm, "nccl")
    array = cupy.compute(data_of(comm.rank, (40,)))
    group.allreduce(array)
    assert cupy.cuda.nccl.calls == ["allReduce"]
    assert array._memory.tolist() == [STALE] * 40
    assert cupy.pinned_bytes == 0
    np.testing.assert_array_equal(cupy.numbers(array), data_of(0, (40,)) + data_of(1, (40,)))


def record(cupy: EmulatedCupy, work: Callable[[], None]) -> Callable[[], None]:
    return cupy.kernels().record(work)


@pytest.mark.mpi(ranks=[2])
def test_captured_nccl_collectives_run_at_every_replay(comm: MPI.Intracomm) -> None:
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
def test_calls_that_cannot_be_captured_are_refused_without_damage(comm: MPI.Intracomm) -> None:
    group, cupy = device_group(comm, "nccl")
    array = cupy.compute(data_of(comm.rank, (40,)))
    before = group.iallreduce(array)
    for work, problem in (
        (lambda: group.iallreduce(array), "does not wait for"),
        (lambda: group.isend(array, 1 - comm.rank, 3), "D2H transfers are disallowed"),
        (lambda: before.wait(), "waits for an event outside the capture"),
        (lambda: cupy.numbers(array), "the host waits"),
    ):
        with pytest.raises(CudaError, match=problem):
            record(cupy, work)
    before.wait()
    group.allreduce(array)
    np.testing.assert_array_equal(cupy.numbers(array), 2 * (data_of(0, (40,)) + data_of(1, (40,))))


@pytest.mark.mpi(ranks=[2])
def test_an_array_is_filled_after_the_work_that_used_it_before(comm: MPI.Intracomm) -> None:
    for name in TRANSPORTS:
        group, cupy = device_group(comm, name)
        array = cupy.compute(np.full(30, 1, np.float32))
        seen: list[float] = []
        cupy.current.enqueue(lambda seen=seen, array=array: seen.append(float(array._memory.sum())))
        receive = group.ireceive(array, 1 - comm.rank, 2)
        group.isend(cupy.compute(np.full(30, 5, np.float32)), 1 - comm.rank, 2).wait()
        receive.wait()
        assert cupy.numbers(array).tolist() == [5] * 30
        assert seen == [30]


@pytest.mark.mpi(ranks=[2])
def test_pinned_memory_is_reused(comm: MPI.Intracomm) -> None:
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
def test_deferred_messages_start_while_a_rank_waits_for_its_device(comm: MPI.Intracomm) -> None:
    """Rank 1 sums only after it has the message; rank 0 copies the sum to the host before it tests the send."""
    group, cupy = device_group(comm, "nccl")
    total, sent = cupy.compute(data_of(comm.rank, (40,))), send_when_computed(group, cupy)
    group.allreduce(total)
    kernels = cupy.kernels(progress=device_of(group).progress)
    np.testing.assert_array_equal(kernels.to_host(total), data_of(0, (40,)) + data_of(1, (40,)))
    if sent is not None:
        sent.wait()


@pytest.mark.mpi(ranks=[2])
def test_deferred_messages_start_while_own_rows_are_copied_to_the_host(comm: MPI.Intracomm) -> None:
    """Rank 1 sends its rows only after it has the message, which rank 0 sends when its device has computed it."""
    group, cupy = device_group(comm, "staging")
    rows, gathered = cupy.compute(data_of(comm.rank, (2, 3))), np.empty((4, 3), np.float32)
    sent = send_when_computed(group, cupy)
    if sent is not None:
        polls: list[int] = []
        device = device_of(group)
        progress = device.progress

        def counted() -> None:
            polls.append(1)
            progress()

        device.progress = counted  # type: ignore[method-assign]
        group.transport._copy(rows, gathered[:2])  # type: ignore[attr-defined]
        np.testing.assert_array_equal(gathered[:2], data_of(0, (2, 3)))
        assert len(polls) > 10
        sent.wait()


def connected(comm: MPI.Intracomm) -> tuple[ProcessGrid, EmulatedCupy]:
    grid, cupy = ProcessGrid(comm), EmulatedCupy(comm)
    assert grid.attach_device(TransportFactory("nccl", Device(cupy))) == ""
    return grid, cupy


def check_sum(group: Group, cupy: EmulatedCupy) -> None:
    array = cupy.compute(data_of(group.rank, (40,)))
    group.allreduce(array)
    np.testing.assert_array_equal(cupy.numbers(array), sum(data_of(rank, (40,)) for rank in range(group.size)))


@pytest.mark.mpi(ranks=[2, 3])
def test_disconnect_ends_the_connection_on_all_ranks_and_arrays_are_staged_then(comm: MPI.Intracomm) -> None:
    grid, cupy = connected(comm)
    array = cupy.compute(data_of(comm.rank, (40,)))
    grid.batch_group.allreduce(array)  # not complete when the connection is to end
    if comm.rank == 0:
        sleep(0.2)
    grid.disconnect()
    assert cupy.ended == ["connection"]
    np.testing.assert_array_equal(cupy.numbers(array), sum(data_of(rank, (40,)) for rank in range(comm.size)))
    assert cupy.pinned_bytes == 0
    check_sum(grid.batch_group, cupy)
    assert cupy.pinned_bytes > 0
    grid.disconnect()
    assert cupy.ended == ["connection"]


@pytest.mark.mpi(ranks=[2])
def test_connecting_again_ends_the_earlier_connection(comm: MPI.Intracomm) -> None:
    grid, cupy = connected(comm)
    for times in (1, 2):
        grid.attach_device(TransportFactory("nccl", Device(cupy)))
        assert cupy.ended == ["connection"] * times
        check_sum(grid.batch_group, cupy)
    assert cupy.cuda.nccl.calls == ["allReduce"] * 2
    grid.batch_group.split(0, "batch")
    assert cupy.cuda.nccl.connections == 3  # a part has no connection
    grid.disconnect()


@pytest.mark.mpi(ranks=[2])
def test_a_connection_that_failed_ends_the_wait_for_the_device(comm: MPI.Intracomm) -> None:
    """As when a rank or a link is lost: NCCL's kernel, and so the stream, would wait for ever."""
    grid, cupy = connected(comm)
    device = device_of(grid.batch_group)
    keep_busy(cupy, 3)
    device.wait_for(device.record_event())
    keep_busy(cupy, 3)
    cupy.cuda.nccl.problem = "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error"
    with pytest.raises(RuntimeError, match=r"connection of the ranks by NCCL failed: .*NCCL_ERROR_REMOTE_ERROR"):
        device.wait_for(device.record_event())
    cupy.cuda.nccl.problem = ""
    grid.disconnect()
    assert device.checks == []


@pytest.mark.mpi(ranks=[2])
def test_an_abandoned_connection_is_aborted_without_the_other_ranks(comm: MPI.Intracomm) -> None:
    grid, cupy = connected(comm)
    check_sum(grid.batch_group, cupy)
    if comm.rank == 0:
        device = device_of(grid.batch_group)
        del grid
        gc.collect()
        assert cupy.ended == ["aborted connection"]
        device.progress()  # no longer asks the connection for errors
    comm.Barrier()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_rank_that_fails_to_connect_does_not_block_the_others(comm: MPI.Intracomm) -> None:
    grid, cupy, last = ProcessGrid(comm), EmulatedCupy(comm), comm.size - 1
    cupy.cuda.nccl.failing = {last}
    problem = grid.attach_device(TransportFactory("nccl", Device(cupy)))
    found = "NCCL cannot connect the ranks (KeyError: 6; NCCL_DEBUG=INFO makes it say more)"
    assert problem == (found if comm.rank == last else "")
    check_sum(grid.batch_group, cupy)
    assert cupy.cuda.nccl.calls == []
    cupy.cuda.nccl.late.set()  # the other ranks connect after the failure
    while comm.rank != last and not cupy.ended:
        sleep(0.001)
    assert cupy.ended == ["aborted connection"]


@pytest.mark.mpi(ranks=[2])
def test_a_failure_of_the_identifier_is_reported_by_rank_0(comm: MPI.Intracomm) -> None:
    cupy = EmulatedCupy(comm)

    def fail() -> Any:
        raise RuntimeError("no socket interface found\nmore of it")

    cupy.cuda.nccl.get_unique_id = fail
    problem = "RuntimeError: no socket interface found"
    assert start_nccl(comm, cupy) == (None, problem if comm.rank == 0 else "")


@pytest.mark.mpi(ranks=[2])
def test_connecting_has_a_time_limit(comm: MPI.Intracomm) -> None:
    cupy = EmulatedCupy(comm)
    cupy.cuda.nccl.failing = {comm.size}  # a rank that never connects
    connection, problem = start_nccl(comm, cupy, seconds=0.05)
    assert connection is None
    # A rank that receives the failure of another first has none of its own.
    assert sorted(comm.allgather(problem))[-1] == "it does not connect in time"
    assert problem in ("", "it does not connect in time")


FAILS_DURING_A_TRAINING = """
import sys
sys.path[:0] = [{tests!r}]
from mpi4py import MPI
from hybridnn import ProcessGrid
from reference.callbacks import Calling
from reference.cases import Case, data, make_trainer
from training.emulated_training import cupy_of, emulated
grid = ProcessGrid(batch=2)
device = emulated(grid, "nccl", MPI.COMM_WORLD)
def lose_a_link(record):
    if record.step == 3 and grid.rank == 1:
        cupy_of(device).cuda.nccl.problem = "NCCL_ERROR_REMOTE_ERROR: a link is down"
make_trainer(Case(), grid, device=device).fit(*data(Case()), epochs=3, callbacks=[Calling(on_step=lose_a_link)])
print("unreachable")
"""


def test_an_error_that_nccl_notices_during_a_training_ends_the_job() -> None:
    """On the rank that waits for its device; the other rank would wait for ever."""
    result = run_mpi(2, FAILS_DURING_A_TRAINING.format(tests=str(Path(__file__).parents[1])), timeout=60)
    assert not result.timed_out
    assert result.returncode != 0
    assert "unreachable" not in result.stdout
    assert "=== rank 1 of 2 failed" in result.stderr
    assert "NCCL_ERROR_REMOTE_ERROR: a link is down" in result.stderr
