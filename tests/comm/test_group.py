"""Groups: collectives, messages and agreement, their checks, and the recorder of all calls."""

import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.agreement import (
    agree,
    broadcast_text,
    gather_texts,
    lowest_rank,
    same_text_on_all,
    unequal_values,
    value_of_first,
)
from hybridnn.comm.recorder import Call, Recorder, bytes_sent_by_rank
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.parallel.grid import ProcessGrid
from reference.emulated_device import ONE_MESSAGE, SMALL_PIECES, TRANSPORTS, device_group
from reference.group_calls import CALLS, Case

LIMITS = (2**30, 24)  # bytes: whole arrays, and a few elements at a time
HOST_SHAPES = ((11, 3), (2, 5), (7,), (4, 0))
DEVICE_SHAPES = ((11, 3), (6, 2), (2, 5), (7,), (1, 4), (5, 0))


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


every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
@every_call
def test_calls_of_ranks_in_one_process(comm: MPI.Intracomm, call: Callable[[Case], None]) -> None:
    for case in cases(comm, "host"):
        call(case)


@pytest.mark.mpi(ranks=[3])
@pytest.mark.parametrize("memory", ["host", *TRANSPORTS])
@every_call
def test_calls_under_mpi(comm: MPI.Intracomm, memory: str, call: Callable[[Case], None]) -> None:
    for case in cases(comm, memory):
        call(case)


@pytest.mark.mpi(ranks=[3])
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


@pytest.mark.in_process(ranks=[2])
def test_wrong_arrays_are_refused_before_anything_is_sent(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    gaps = np.zeros((4, 4))[:, ::2]
    refusals: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "not contiguous", lambda: group.allreduce(gaps)),
        (ValueError, "not contiguous", lambda: group.allgather_rows(gaps)),
        (ValueError, "'sum' or 'max', not 'min'", lambda: group.allreduce(np.zeros(2), "min")),
        (ValueError, "'sum' or 'max', not 'min'", lambda: group.iallreduce(np.zeros(2), "min")),
        (TypeError, "Python objects", lambda: group.allreduce(np.array([{}], object))),
        (ValueError, r"shape \(1, 2\)", lambda: group.scatter_rows(None, np.zeros((2, 2)), [1, 1])),
    ]
    for kind, text, call in refusals:
        with pytest.raises(kind, match=text):
            call()
    comm.Barrier()


@pytest.mark.in_process(ranks=[2, 4])
def test_every_call_is_recorded_with_its_bytes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    grid.world.allreduce(np.zeros(comm.size * 10))
    grid.world.allgather_rows(np.zeros(comm.size * 10))
    grid.world.broadcast(np.zeros(10), 1)
    grid.world.gather_rows(np.zeros(2), np.zeros(2 * comm.size) if comm.rank == 0 else None, [2] * comm.size)
    grid.world.barrier()
    grid.world.iallreduce(np.zeros(comm.size * 10)).wait()
    # Blocking calls have no wait, unless they consist of messages.
    names = [event.name for event in grid.recorder.events]
    calls = "allreduce allgather broadcast gather gather.wait barrier allreduce allreduce.wait"
    assert names == calls.split()
    part = 10 * 8 * (comm.size - 1)
    expected = [2 * part, part, part * (comm.rank == 1), 16 * (comm.rank > 0), 0, 0, 2 * part, 0]
    assert [event.nbytes for event in grid.recorder.events] == expected
    assert (grid.recorder.bytes_sent, grid.recorder.messages) == (sum(expected), 6)


SURROGATE = "\udc80"  # stands for a byte of a file name that is not UTF-8


@pytest.mark.in_process(ranks=[1, 3])
def test_the_lowest_failing_rank_is_known_to_all(comm: MPI.Intracomm) -> None:
    group, last = ProcessGrid(comm).world, comm.size - 1

    def fail() -> None:
        if comm.rank:
            raise SettingError("lr", comm.rank, "is wrong")

    assert agree(group, lambda: comm.rank) == comm.rank
    assert [lowest_rank(group, comm.rank >= first) for first in (0, last, comm.size)] == [0, last, None]
    if comm.size > 1:
        with pytest.raises(HybridnnError, match=f"lr = {max(comm.rank, 1)}") as raised:
            agree(group, fail)
        assert isinstance(raised.value, SettingError) == (comm.rank > 0)


@pytest.mark.in_process(ranks=[1, 3])
def test_texts_and_values_are_compared(comm: MPI.Intracomm) -> None:
    group, own = ProcessGrid(comm).world, "é" * comm.rank
    assert gather_texts(group, own) == ["é" * rank for rank in range(comm.size)]
    assert broadcast_text(group, f"{SURROGATE}{comm.rank}", comm.size - 1) == f"{SURROGATE}{comm.size - 1}"
    assert value_of_first(group, lambda: {"rank": comm.rank, "name": SURROGATE}) == {"rank": 0, "name": SURROGATE}
    assert same_text_on_all(group, SURROGATE)
    assert same_text_on_all(group, own) == (comm.size == 1)
    found = unequal_values(group, lambda: {"lr": "0.1" if comm.rank == 1 else "0.01", "seed": "0"})
    assert [value.text for value in found] == ["lr: rank 1 has 0.1, ranks 0, 2 have 0.01"] * (comm.size > 1)


def test_memory_is_bounded_and_totals_are_not() -> None:
    recorder = Recorder(capacity=10)
    for number in range(25):
        recorder.end_communication("allreduce", "batch", perf_counter(), number)
    assert len(recorder.events) == 10
    assert [event.nbytes for event in recorder.events] == list(range(15, 25))
    assert recorder.bytes_sent == sum(range(25))
    assert recorder.messages == 25


def test_unsuccessful_tests_are_not_among_the_last_events() -> None:
    recorder = Recorder()
    for name in ("send", "recv.test", "recv.wait", "recv.test"):
        recorder.end_communication(name, "model", perf_counter(), 0)
    assert [event.name for event in recorder.last_events(2)] == ["send", "recv.wait"]


def test_communication_inside_an_instruction_is_not_computing() -> None:
    recorder = Recorder()
    recorder.end_communication("allreduce", "batch", perf_counter() - 5.0, 0)  # before the instruction
    start = perf_counter()
    recorder.end_communication("allgather", "model", start, 0)
    recorder.end_communication("allgather.wait", "model", perf_counter() - 1e-3, 0, 0)
    recorder.end_compute("forward", start - 2.0)
    *calls, computed = recorder.events
    assert (computed.kind, computed.name, computed.start, recorder.finished) == ("compute", "forward", start - 2.0, 4)
    before, *inside = (call.stop - call.start for call in calls)
    assert recorder.communication_seconds == pytest.approx(before + sum(inside), abs=1e-9)
    expected = computed.stop - computed.start - sum(inside)
    assert recorder.computing_seconds["forward"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.mpi(ranks=[2])
def test_the_current_call_is_recorded(comm: MPI.Intracomm) -> None:
    """Read by a thread, because the rank itself is inside the call."""
    grid = ProcessGrid(comm, batch=1, model=2)
    recorder, seen = grid.recorder, []
    numbers = np.zeros(10, "float32")

    def watch() -> None:
        while recorder.current_call is None:
            pass
        seen.append((Call._make(recorder.current_call), recorder.finished))
        comm.Send(np.zeros(1), 1, tag=9)  # only now does rank 1 arrive

    if comm.rank == 0:
        thread = threading.Thread(target=watch)
        thread.start()
        grid.model_group.allreduce(numbers, "max")
        thread.join()
        ((call, finished),) = seen
        channel = call.channel
        assert (call.name, call.number, call.nbytes, call.dtype, call.detail) == ("allreduce", 1, 40, "float32", "max")
        assert (channel.axis, channel.members, channel.entered) == ("model", (0, 1), 1)
        assert finished == 0
    else:
        comm.Recv(np.zeros(1), 0, tag=9)
        grid.model_group.allreduce(numbers, "max")
    assert recorder.current_call is None
    assert recorder.finished == 1


@pytest.mark.in_process(ranks=[2])
def test_unsuccessful_tests_are_no_progress(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    recorder = grid.recorder
    request = grid.world.ireceive(np.zeros(3), 1 - comm.rank, tag=5)
    begun = recorder.finished
    for _ in range(3):
        assert not request.test()
    assert recorder.finished == begun
    assert recorder.current_call is None
    assert Call._make(recorder.last_poll[0]).name == "receive"
    comm.Barrier()
    grid.world.isend(np.ones(3), 1 - comm.rank, tag=5).wait()
    while not request.test():
        pass
    assert recorder.finished == begun + 3  # a send, its wait, and the receive


@pytest.mark.in_process(ranks=[4])
def test_members_of_groups_are_ranks_in_the_grid(comm: MPI.Intracomm) -> None:
    backwards = comm.Split(0, -comm.rank)
    grid = ProcessGrid(backwards, batch=2, model=2)
    assert grid.world.members == (0, 1, 2, 3)
    assert grid.model_group.members == ((0, 1) if grid.batch_rank == 0 else (2, 3))
    assert grid.batch_group.members == ((0, 2) if grid.model_rank == 0 else (1, 3))
    assert grid.node_group.members == (0, 1, 2, 3)
    halves = grid.world.split(grid.rank // 2, "half")
    assert halves.members == ((0, 1) if grid.rank < 2 else (2, 3))
    assert (halves.axis, halves.size, halves.rank) == ("half", 2, grid.rank % 2)
    ranks = np.full(2, -1)
    ranks[halves.rank] = grid.rank
    halves.allgather_rows(ranks)
    assert (tuple(ranks), grid.recorder.events[-1].axis) == (halves.members, "half")
    assert grid.world.split(grid.rank // 2, "half") is halves
    again = grid.world.split(grid.rank // 2, "half", "again")
    channels = [(channel.axis, channel.members, channel.ordinal) for channel in grid.recorder.channels]
    assert channels[-2:] == [("half", halves.members, 0), ("half", again.members, 1)]


def test_a_single_rank_sends_nothing_and_an_unknown_operation_is_refused() -> None:
    assert bytes_sent_by_rank("allreduce", 10, 1) == 0
    with pytest.raises(ValueError, match="unknown operation 'gossip'"):
        bytes_sent_by_rank("gossip", 1, 2)
