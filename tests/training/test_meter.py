"""Times of a span of training, from constructed recordings with known waits."""

from __future__ import annotations

import pytest

from hybridnn import ProcessGrid
from hybridnn.comm import recorder
from hybridnn.comm.recorder import Recorder
from hybridnn.training import records as meter
from hybridnn.training.records import Meter, Speed


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
    monkeypatch.setattr(meter, "perf_counter", made)
    return made


def test_waits_are_told_apart_from_other_communication(clock: Clock) -> None:
    grid = ProcessGrid(recorder=Recorder())
    measured = Meter(grid)
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
    measured.mark(80)
    assert measured.read() == Speed(
        samples_per_second=4.0, compute_seconds=4.0, communication_seconds=16.0, bytes_sent=100, waiting_seconds=9.5
    )
