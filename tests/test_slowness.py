"""Measurement of the slowness of the machine, by which deadlines are multiplied."""

from __future__ import annotations

import pytest

from mpi_runner import slowness
from mpi_runner.slowness import FRESH_SECONDS, MOST, NOMINAL_SECONDS, SLOWNESS, deadline, measure


@pytest.mark.parametrize(
    ("seconds", "load", "factor"),
    [
        (NOMINAL_SECONDS / 2, 0.0, 1.0),
        (4 * NOMINAL_SECONDS, 0.0, 4.0),
        (NOMINAL_SECONDS, 6.0, 3.0),  # of two cores
        (1e4, 0.0, MOST),
    ],
)
def test_slowness_is_the_worse_of_work_and_load(
    monkeypatch: pytest.MonkeyPatch, seconds: float, load: float, factor: float
) -> None:
    now = iter([0.0, seconds])
    monkeypatch.setattr(slowness.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(slowness.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(slowness.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert measure() == pytest.approx(factor)


def test_deadline_is_that_of_the_machine_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOWNESS, raising=False)
    clock, factors = [1e9], iter([2.0, 7.0])
    monkeypatch.setattr(slowness.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(slowness, "measure", lambda: next(factors))
    assert [deadline(10), deadline(10)] == [20, 20]
    clock[0] += FRESH_SECONDS
    assert deadline(10) == 70


@pytest.mark.parametrize("given", ["0.5", "nan", "inf"])
def test_slowness_less_than_one_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(SLOWNESS, given)
    with pytest.raises(ValueError, match=f"{SLOWNESS}={given}: must be a number of at least 1"):
        slowness.slowness()
