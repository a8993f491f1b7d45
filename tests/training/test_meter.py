"""Times of a span of training, from constructed recordings with known waits."""

import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid
from hybridnn.comm import recorder
from hybridnn.comm.recorder import Recorder
from hybridnn.in_process import run_ranks
from hybridnn.training import epoch as training_epoch
from hybridnn.training.epoch import EPOCH, RECORD, StepClock
from hybridnn.training.records import MeasuredStep, Speed


class Clock:
    """Stands for ``time.perf_counter``."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recorder, "perf_counter", made)
    monkeypatch.setattr(training_epoch, "perf_counter", made)
    return made


def test_waits_are_told_apart_from_other_communication(clock: Clock) -> None:
    grid = ProcessGrid(recorder=Recorder())
    steps = StepClock(grid)
    for name, seconds, nbytes in (
        ("receive.wait", 8.0, 0),
        ("send", 0.5, 40),
        ("send.wait", 1.0, 0),
        ("allreduce", 2.0, 60),
        ("allreduce.wait", 3.0, 0),
        ("barrier", 1.5, 0),
    ):
        start = clock.now
        clock.now += seconds
        grid.recorder.end_communication(name, "pipeline", start, nbytes)
    clock.now += 4.0  # computing
    steps.samples += 80
    steps.mark(RECORD)
    assert steps.read(RECORD) == Speed(
        samples_per_second=4.0, compute_seconds=4.0, communication_seconds=16.0, bytes_sent=100, waiting_seconds=9.5
    )


def test_steps_are_measured_as_means_and_with_the_rank_that_computes_most(clock: Clock) -> None:
    """Four ranks compute 1, 2, 3 and 4 times 1.5 s, and wait for the rest of 10 s, in five steps."""

    def measure(comm: MPI.Intracomm) -> MeasuredStep:
        grid = ProcessGrid(comm, batch=4)
        factor, start = grid.world.rank + 1, 100.0
        clock.now = start
        steps = StepClock(grid)
        for name, seconds in (("forward", 0.5 * factor), ("backward", 1.0 * factor)):
            clock.now = start + seconds
            grid.recorder.end_compute(name, start)
            start = clock.now
        clock.now = 110.0
        grid.recorder.end_communication("barrier", "world", start, 0)
        steps.mark(EPOCH)
        return steps.measured_step(epoch=2, steps=5)

    for measured in run_ranks(4, measure).results:
        assert measured.instructions == pytest.approx({"forward": 0.25, "backward": 0.5})
        assert (measured.seconds_per_step, measured.waiting) == (pytest.approx(2.0), pytest.approx(1.25))
        assert measured.communication == pytest.approx(0)
        assert measured.most_computing == pytest.approx(4 * 1.5 / 5)


def test_a_pause_is_no_part_of_a_span(clock: Clock) -> None:
    grid = ProcessGrid(recorder=Recorder())
    steps = StepClock(grid)
    clock.now += 2.0
    with steps.paused():
        start = clock.now
        clock.now += 5.0
        grid.recorder.end_communication("receive.wait", "pipeline", start, 40)
        grid.recorder.end_compute("forward", start)
        clock.now += 1.0
    clock.now += 2.0
    steps.samples += 8
    steps.mark(EPOCH)
    measured = steps.measured_step(1, 2)
    assert steps.read(EPOCH) == Speed(2.0, 4.0, 0.0, 0, 0.0)
    assert (measured.seconds_per_step, measured.waiting, measured.instructions) == (2.0, 0.0, {})
