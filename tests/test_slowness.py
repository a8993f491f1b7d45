"""Measurement of the slowness of the machine, by which deadlines are multiplied."""

from __future__ import annotations

import pytest

from mpi_runner import slowness
from mpi_runner.slowness import MOST, NOMINAL_SECONDS, SLOWNESS, measure


@pytest.mark.parametrize(
    ("seconds", "factor"),
    [((0.01, 0.02, 0.01), 1.0), ((0.2, 2.0, 0.2), 2.0 / NOMINAL_SECONDS), ((1e4, 0.0, 0.0), MOST)],
)
def test_slowest_of_three_attempts_counts(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], factor: float
) -> None:
    now = iter([reading for taken in seconds for reading in (0.0, taken)])
    monkeypatch.setattr(slowness.time, "monotonic", lambda: next(now))
    assert measure() == pytest.approx(factor)


@pytest.mark.parametrize("given", ["0.5", "nan", "inf"])
def test_slowness_less_than_one_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(SLOWNESS, given)
    with pytest.raises(ValueError, match=f"{SLOWNESS}={given}: must be a number of at least 1"):
        slowness.slowness.__wrapped__()
