"""Lanes against samples counted one by one."""

from __future__ import annotations

from math import lcm

import numpy as np
import pytest

from hybridnn.cost.simulation.disturbance import make_lanes
from hybridnn.pipeline.schedules.instructions import Forward, ReduceGradients


@pytest.mark.parametrize("widths", [[1], [4, 4], [1, 3], [2, 3], [3, 2, 4], [6, 1, 4]])
def test_two_samples_share_a_lane_where_they_share_all_ranks(widths: list[int]) -> None:
    samples = lcm(*widths)
    ranks_of_sample = [tuple(sample * width // samples for width in widths) for sample in range(samples)]
    lanes = make_lanes(widths)
    found = list(zip(*(ranks.tolist() for ranks in lanes.ranks), strict=True))
    assert found == list(dict.fromkeys(ranks_of_sample))
    assert len(lanes) == len(found) <= sum(widths)


@pytest.mark.parametrize("widths", [[2, 3], [3, 2, 4], [5, 5]])
def test_who_meets(widths: list[int]) -> None:
    """The lanes of a rank wait for each other in a pass, those of a stage in a reduction."""
    lanes = make_lanes(widths)
    times = np.random.default_rng(0).random(len(lanes))
    for stage, ranks in enumerate(lanes.ranks):
        latest = [max(time for time, other in zip(times, ranks, strict=True) if other == rank) for rank in ranks]
        assert lanes.meet(stage, Forward(0), times).tolist() == latest
        assert lanes.meet(stage, ReduceGradients(0), times).tolist() == [times.max()] * len(times)
