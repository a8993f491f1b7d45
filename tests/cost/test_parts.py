"""Parts of an efficiency: they add up, and compute is the efficiency."""

from __future__ import annotations

import numpy as np
import pytest

from hybridnn.cost.prediction.times import PARTS, parts_of_efficiency
from hybridnn.pipeline.checks.simulated_schedule import split_idle

NAMES = ("compute", "overhead", "communicate", "bubble", "wait")


def test_parts_add_up_to_the_efficiency() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        base = dict(zip(NAMES, random.random(5), strict=True))
        own = {name: seconds + random.random() for name, seconds in base.items()}
        parts = parts_of_efficiency(own, base)
        assert tuple(parts) == PARTS
        assert sum(parts.values()) == pytest.approx(1)
        assert parts["compute"] == pytest.approx(sum(base.values()) / sum(own.values()))
        assert parts["smaller products"] == pytest.approx((own["compute"] - base["compute"]) / sum(own.values()))


def test_time_that_is_saved_is_subtracted_from_compute() -> None:
    base, own = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
    base |= {"compute": 4.0, "overhead": 1.0}
    own |= {"compute": 3.0, "overhead": 1.0, "wait": 4.0}
    parts = parts_of_efficiency(own, base)
    assert {name: share for name, share in parts.items() if share} == {"compute": 0.5, "wait": 0.5}


def test_idle_time_beyond_the_bubble_is_waiting() -> None:
    assert split_idle(0.69, 0.11) == (0.11, pytest.approx(0.58))
    assert split_idle(0.05, 0.11) == (0.05, 0)
