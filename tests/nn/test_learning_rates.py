"""Learning-rate schedules against their closed forms, and at their first and last updates."""

from __future__ import annotations

from typing import Any

import pytest

from hybridnn import Constant, Cosine, Step, WarmupLinear
from reference.serial import Schedule

PER_EPOCH, UPDATES = 7, 35

PAIRS = [
    (Constant(), Schedule()),
    (Step((1, 3)), Schedule("step", milestones=(1, 3), factor=0.1)),
    (Step((2,), 0.5), Schedule("step", milestones=(2,), factor=0.5)),
    (WarmupLinear(), Schedule("linear", warmup_epochs=1.0)),
    (WarmupLinear(0), Schedule("linear")),
    (WarmupLinear(1.5), Schedule("linear", warmup_epochs=1.5)),
    (Cosine(), Schedule("cosine")),
    (Cosine(2), Schedule("cosine", warmup_epochs=2.0)),
]


@pytest.mark.parametrize(("schedule", "expected"), PAIRS)
def test_closed_forms(schedule: Any, expected: Schedule) -> None:
    for update in range(UPDATES):
        factor = schedule.multiplier(update, PER_EPOCH, UPDATES)
        assert factor == pytest.approx(expected.at(update, PER_EPOCH, UPDATES), rel=1e-13), update


@pytest.mark.parametrize("schedule", [WarmupLinear(2), Cosine(2)])
def test_warm_up_rises_to_one_and_the_rate_of_the_last_update_is_zero(schedule: Any) -> None:
    factors = [schedule.multiplier(u, PER_EPOCH, UPDATES) for u in range(UPDATES)]
    assert 0 < factors[0] < 0.1
    assert factors[:15] == sorted(factors[:15])
    assert factors[14] == 1.0
    assert factors[14:] == sorted(factors[14:], reverse=True)
    assert factors[-1] == 0.0


@pytest.mark.parametrize("schedule", [WarmupLinear(0), Cosine(0), WarmupLinear(9), Cosine(9)])
@pytest.mark.parametrize("updates", [1, 2])
def test_runs_of_one_or_two_updates_have_rates(schedule: Any, updates: int) -> None:
    for update in range(updates):
        assert 0 <= schedule.multiplier(update, 1, updates) <= 1
    assert schedule.multiplier(0, 1, updates) > 0
