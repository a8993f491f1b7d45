"""Jitter and slow ranks: moments, independence of what was drawn before, and whom they hold up."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.cost.simulation.disturbance import Disturbance, DisturbedCosts, make_lanes
from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    ReduceGradients,
    WeightGradient,
)


@pytest.mark.parametrize("jitter", [0.05, 0.5])
def test_lognormal_with_mean_1(jitter: float) -> None:
    factors = Disturbance(jitter).factors(3, Forward(0), 200_000)
    assert factors.mean() == pytest.approx(1, abs=5 * jitter / 200_000**0.5)
    assert factors.std() == pytest.approx(jitter, rel=0.05)
    logs = np.log(factors)
    assert ((logs - logs.mean()) ** 3).mean() / logs.std() ** 3 == pytest.approx(0, abs=0.03)  # no skew


def test_factors_depend_on_what_they_are_of_alone() -> None:
    some = Disturbance(0.1, seed=4)
    wanted = some.factors(2, Forward(1), 5).tolist()
    others = [
        some.factors(3, Forward(1), 5),
        some.factors(2, Forward(2), 5),
        some.factors(2, Backward(1), 5),
        Disturbance(0.1, seed=5).factors(2, Forward(1), 5),
    ]
    assert all(other.tolist() != wanted for other in others)
    assert some.factors(2, Forward(1), 5).tolist() == wanted
    assert some.factors(2, Forward(1), 9).tolist()[:5] == wanted
    assert Disturbance(0.1, {2: 3.0}, 4).factors(2, Forward(1), 5) == pytest.approx(3 * np.array(wanted))


def test_the_slowest_of_a_model_group_counts(make_machine: Callable[..., Machine], workload: Workload) -> None:
    """Two stages of 2 x 2 ranks and 3 microbatches; ranks vary fastest along the model group."""
    layout = Layout(((2, 2), (2, 2)), (4, 4), method="zb-h1", microbatches=3)
    disturbance, lanes = Disturbance(0.2, {5: 2.0}, 1), make_lanes([2, 2])
    costs = StageCosts(workload, layout, make_machine())
    disturbed = DisturbedCosts(costs, lanes, disturbance)
    for stage in range(2):
        for instruction, number in ((Forward(0, 2), 2), (WeightGradient(0, 1), 1), (Forward(0, 0), 0)):
            base = costs.duration(stage, instruction)
            factors = [disturbance.factors(4 * stage + rank, instruction, 4)[number] for rank in range(4)]
            wanted = [base * max(factors[:2]), base * max(factors[2:])]
            assert np.asarray(disturbed.duration(stage, instruction)).tolist() == pytest.approx(wanted)


def test_chunks_and_products_over_all_microbatches_have_factors_of_their_own(
    make_machine: Callable[..., Machine], workload: Workload
) -> None:
    layout = Layout(((1, 1), (1, 1)), (2, 2, 2, 2), method="interleaved", microbatches=2, chunks=2, merges=True)
    costs = StageCosts(workload, layout, make_machine())
    disturbed = DisturbedCosts(costs, make_lanes([1, 1]), Disturbance(0.2))
    found = [
        float(np.asarray(disturbed.duration(0, one))[0] / costs.duration(0, one))
        for microbatch in (0, 1, ALL_MICROBATCHES)
        for one in (WeightGradient(0, microbatch, 0), WeightGradient(0, microbatch, 1))
    ]
    assert len(set(found)) == 6


def test_communication_is_not_disturbed(make_machine: Callable[..., Machine], workload: Workload) -> None:
    layout = Layout(((4, 1),), (8,))
    costs = StageCosts(workload, layout, make_machine(alpha_seconds=1.0))
    disturbed = DisturbedCosts(costs, make_lanes([4]), Disturbance(0.5, {1: 7.0}))
    wanted = costs.duration(0, ReduceGradients(0))
    assert wanted > 1
    assert np.asarray(disturbed.duration(0, ReduceGradients(0))).tolist() == [wanted] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jitter": -0.1}, "jitter = -0.1: a number from 0 to 10"),
        ({"jitter": nan}, "jitter = nan"),
        ({"jitter": inf}, "jitter = inf"),
        ({"jitter": 1e300}, "jitter = 1e"),
        ({"slow": {0: 0.0}}, "slow = 0.0: a finite factor above 0"),
        ({"slow": {-1: 2.0}}, "slow = -1"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Disturbance(**options)
