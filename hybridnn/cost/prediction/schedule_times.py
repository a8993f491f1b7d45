"""Schedules of layouts on the clock: compilation, steady state, and means over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from hybridnn.cost.breakdowns import TimeBreakdown
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.clock import ScheduleTimes
from hybridnn.pipeline.schedules.compiled_schedule import CompiledSchedule, compile_schedule
from hybridnn.utils.checks import require_whole


def compile_layout(layout: Layout, minibatches: int) -> CompiledSchedule:
    """Compiled schedule of a layout; layouts that differ in their ranks and layers only have one in common.

    Raises
    ------
    SettingError
        If `minibatches` is not a whole number, 1 or more.
    """
    require_whole("minibatches", minibatches, 1)
    return _compiled(layout.pipeline_only, minibatches)


@lru_cache(64)
def _compiled(pipeline: Layout, minibatches: int) -> CompiledSchedule:
    return compile_schedule(pipeline.schedule(minibatches, messages=False))


def makespan(times: ScheduleTimes) -> float:
    """Seconds until the last computation of any replica has ended."""
    return float(np.max(times.makespan))


def seconds_per_added_minibatch(short: ScheduleTimes, long: ScheduleTimes) -> float:
    """Seconds per step in the steady state: what the minibatches add that only the longer schedule has."""
    added = long.program.schedule.minibatches - short.program.schedule.minibatches
    return (makespan(long) - makespan(short)) / added


def mean_over_ranks(layout: Layout, stages: Sequence[TimeBreakdown]) -> TimeBreakdown:
    """Mean of the stages' breakdowns, weighted by their ranks."""
    weights = [prod(shape) / layout.ranks for shape in layout.stages]
    return sum((stage * weight for stage, weight in zip(stages, weights, strict=True)), TimeBreakdown())
