"""Disturbances: moments of the jitter, independence of earlier draws, lanes, and the ranks that wait."""

from __future__ import annotations

from functools import partial
from math import inf, lcm, nan
from typing import Any

import numpy as np
import pytest

from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.workload import Workload
from hybridnn.cost.simulation import Disturbance, DisturbedCosts, make_lanes
from hybridnn.errors import SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    ReduceGradients,
    WeightGradient,
)
from reference.machines import make_machine

WORKLOAD = Workload(MLP([16] * 9), samples=640, batch_size=64, optimizer=SGD(momentum=0.0))
"""Eight layers of 16 x 16 weights and a minibatch of 64 samples."""

plain_machine = partial(make_machine, multiply_add=1e-6)


@pytest.mark.parametrize("jitter", [0.05, 0.5])
def test_lognormal_with_mean_1(jitter: float) -> None:
    factors = Disturbance(jitter).factors(3, Forward(0), 200_000)
    assert factors.mean() == pytest.approx(1, abs=5 * jitter / 200_000**0.5)
    assert factors.std() == pytest.approx(jitter, rel=0.05)
    logs = np.log(factors)
    assert ((logs - logs.mean()) ** 3).mean() / logs.std() ** 3 == pytest.approx(0, abs=0.03)  # no skew


def test_factors_depend_on_seed_rank_kind_and_minibatch() -> None:
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


def test_the_slowest_rank_of_a_model_group_counts() -> None:
    """Two stages of 2 x 2 ranks and 3 microbatches; ranks vary fastest along the model group."""
    layout = Layout(((2, 2), (2, 2)), (4, 4), method="zb-h1", microbatches=3)
    disturbance, lanes = Disturbance(0.2, {5: 2.0}, 1), make_lanes([2, 2])
    costs = StageCosts(WORKLOAD, layout, plain_machine())
    disturbed = DisturbedCosts(costs, lanes, disturbance)
    for stage in range(2):
        for instruction, number in ((Forward(0, 2), 2), (WeightGradient(0, 1), 1), (Forward(0, 0), 0)):
            base = costs.duration(stage, instruction)
            factors = [disturbance.factors(4 * stage + rank, instruction, 4)[number] for rank in range(4)]
            wanted = [base * max(factors[:2]), base * max(factors[2:])]
            assert np.asarray(disturbed.duration(stage, instruction)).tolist() == pytest.approx(wanted)


def test_chunks_and_merged_weight_gradients_have_factors_of_their_own() -> None:
    layout = Layout(((1, 1), (1, 1)), (2, 2, 2, 2), method="interleaved", microbatches=2, chunks=2, merges=True)
    costs = StageCosts(WORKLOAD, layout, plain_machine())
    disturbed = DisturbedCosts(costs, make_lanes([1, 1]), Disturbance(0.2))
    found = [
        float(np.asarray(disturbed.duration(0, one))[0] / costs.duration(0, one))
        for microbatch in (0, 1, ALL_MICROBATCHES)
        for one in (WeightGradient(0, microbatch, 0), WeightGradient(0, microbatch, 1))
    ]
    assert len(set(found)) == 6


def test_communication_is_not_disturbed() -> None:
    layout = Layout(((4, 1),), (8,))
    costs = StageCosts(WORKLOAD, layout, plain_machine(alpha=1.0))
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
def test_invalid_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Disturbance(**options)


@pytest.mark.parametrize("widths", [[1], [4, 4], [1, 3], [2, 3], [3, 2, 4], [6, 1, 4]])
def test_two_samples_of_a_lane_have_all_ranks_in_common(widths: list[int]) -> None:
    samples = lcm(*widths)
    ranks_of_sample = [tuple(sample * width // samples for width in widths) for sample in range(samples)]
    lanes = make_lanes(widths)
    found = list(zip(*(ranks.tolist() for ranks in lanes.ranks), strict=True))
    assert found == list(dict.fromkeys(ranks_of_sample))
    assert len(lanes) == len(found) <= sum(widths)


@pytest.mark.parametrize("widths", [[2, 3], [3, 2, 4], [5, 5]])
def test_lanes_of_a_rank_wait_for_each_other(widths: list[int]) -> None:
    """In a pass; in a reduction, all lanes of the stage do."""
    lanes = make_lanes(widths)
    times = np.random.default_rng(0).random(len(lanes))
    for stage, ranks in enumerate(lanes.ranks):
        latest = [max(time for time, other in zip(times, ranks, strict=True) if other == rank) for rank in ranks]
        assert lanes.meet(stage, Forward(0), times).tolist() == latest
        assert lanes.meet(stage, ReduceGradients(0), times).tolist() == [times.max()] * len(times)
