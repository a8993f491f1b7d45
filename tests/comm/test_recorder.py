"""Recorder: bounded memory, totals, the current call, and the rule of bytes sent."""

from __future__ import annotations

import threading
from time import perf_counter

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.recorder import Call, Recorder, bytes_sent_by_rank
from hybridnn.parallel.grid import ProcessGrid


def test_memory_is_bounded_and_totals_are_not() -> None:
    recorder = Recorder(capacity=10)
    for number in range(25):
        recorder.end_communication("allreduce", "batch", perf_counter(), number)
    assert len(recorder.events) == 10
    assert [event.nbytes for event in recorder.events] == list(range(15, 25))
    assert recorder.totals.bytes_sent == sum(range(25))
    assert recorder.totals.messages == 25


def test_compute_is_recorded_but_not_counted_as_communication() -> None:
    recorder = Recorder()
    start = perf_counter()
    recorder.end_compute("forward", start)
    (event,) = recorder.events
    assert (event.kind, event.name, event.start) == ("compute", "forward", start)
    assert event.stop >= start
    assert recorder.totals.communication_seconds == 0
    assert recorder.finished == 1


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
    inside = [event for event in recorder.events if event.name.startswith("allgather")]
    whole = recorder.events[-1].stop - recorder.events[-1].start
    expected = whole - sum(event.stop - event.start for event in inside)
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
    assert recorder.last_poll is not None
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
    assert grid.world.split(grid.rank // 2, "half") is halves
    again = grid.world.split(grid.rank // 2, "half", "again")
    channels = [(channel.axis, channel.members, channel.ordinal) for channel in grid.recorder.channels]
    assert channels[-2:] == [("half", halves.members, 0), ("half", again.members, 1)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
def test_ring_collectives_match_a_count_by_rounds(ranks: int) -> None:
    nbytes = 96 * ranks
    gathered = sum(nbytes // ranks for _ in range(ranks - 1))  # each round passes one block on
    assert bytes_sent_by_rank("allgather", nbytes, ranks) == gathered
    # A ring all-reduce is a reduce-scatter and then an all-gather.
    assert bytes_sent_by_rank("allreduce", nbytes, ranks) == 2 * gathered


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_rooted_collectives(ranks: int) -> None:
    part = 40
    assert bytes_sent_by_rank("scatter", part * ranks, ranks, is_root=True) == part * (ranks - 1)
    assert bytes_sent_by_rank("scatter", part * ranks, ranks) == 0
    assert bytes_sent_by_rank("gather", part * ranks, ranks) == part
    assert bytes_sent_by_rank("gather", part * ranks, ranks, is_root=True) == 0
    assert bytes_sent_by_rank("broadcast", part, ranks, is_root=True) == part * (ranks - 1)
    assert bytes_sent_by_rank("broadcast", part, ranks) == 0


def test_a_single_rank_sends_nothing() -> None:
    assert bytes_sent_by_rank("allreduce", 10, 1) == 0


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown operation 'gossip'"):
        bytes_sent_by_rank("gossip", 1, 2)
