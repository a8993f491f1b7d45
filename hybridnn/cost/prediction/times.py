"""Times of a step: where its seconds go, schedules on the clock, the steady state, and means over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.clock import ScheduleTimes
from hybridnn.pipeline.schedules.compiled_schedule import CompiledSchedule, compile_schedule
from hybridnn.utils.checks import require_whole


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Seconds of an instruction, a stage or a step, by activity."""

    computing: float = 0.0  # passes, loss and update
    communication: float = 0.0  # exposed communication: the messages and collectives that the rank waits for
    bubble: float = 0.0  # waiting for other stages
    # loading samples, copying messages, and Python between instructions. Simulations count it as computing.
    overhead: float = 0.0
    communication_hidden: float = 0.0  # communication during computation; not part of the total

    @property
    def total(self) -> float:
        """Elapsed time: the sum of `parts`."""
        return self.computing + self.communication + self.overhead + self.bubble

    @property
    def parts(self) -> dict[str, float]:
        """The activities that add up to the total, by name."""
        return {
            "computing": self.computing,
            "communication": self.communication,
            "bubble": self.bubble,
            "overhead": self.overhead,
        }

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(
            self.computing + other.computing,
            self.communication + other.communication,
            self.bubble + other.bubble,
            self.overhead + other.overhead,
            self.communication_hidden + other.communication_hidden,
        )

    def __mul__(self, factor: float) -> TimeBreakdown:
        return TimeBreakdown(
            self.computing * factor,
            self.communication * factor,
            self.bubble * factor,
            self.overhead * factor,
            self.communication_hidden * factor,
        )


def pipeline_of(layout: Layout) -> Layout:
    """The pipeline with one rank and layer in every stage; layouts with equal ones have equal schedules."""
    return Layout(
        ((1, 1),) * len(layout.stages),
        (1,) * len(layout.layers),
        method=layout.method,
        microbatches=layout.microbatches,
        chunks=layout.chunks,
        merges=layout.merges,
    )


def compile_layout(layout: Layout, minibatches: int) -> CompiledSchedule:
    """Compiled schedule of a layout; layouts that differ in their ranks and layers only have one in common.

    Raises
    ------
    SettingError
        If `minibatches` is not a whole number, 1 or more.
    """
    require_whole("minibatches", minibatches, 1)
    return _compiled(pipeline_of(layout), minibatches)


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
