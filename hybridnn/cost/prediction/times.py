"""Times of a step: where its seconds go, and schedules on the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import add, attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.compiled_schedule import CompiledSchedule, compile_schedule


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
        return {name: getattr(self, name) for name in ("computing", "communication", "bubble", "overhead")}

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(*map(add, _seconds(self), _seconds(other)))

    def __mul__(self, factor: float) -> TimeBreakdown:
        return TimeBreakdown(*(seconds * factor for seconds in _seconds(self)))


_seconds = attrgetter(*(item.name for item in fields(TimeBreakdown)))


PARTS = ("compute", "smaller products", "overhead", "communicate", "bubble", "wait")
"""Parts of the ranks' time, of which *smaller products* need the comparison with a base."""


def parts_of_efficiency(own: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Shares of `PARTS` in the ranks' time: compute is the parallel efficiency, the others what it lacks.

    `own` and `base` are the seconds of all ranks for the same work, by part but smaller products. The shares add up to
    1. Compute is the whole time of the base, and every other part the time beyond that of the base; what takes less
    time than on the base, as with a larger cache, is subtracted from compute.
    """
    total = sum(own.values())
    beyond = {name: seconds - base[name] for name, seconds in own.items()}
    lost = {name: max(0.0, seconds) / total for name, seconds in beyond.items()}
    parts = {"compute": 1 - sum(lost.values()), "smaller products": lost.pop("compute"), **lost}
    return {name: parts[name] for name in PARTS}


def pipeline_of(layout: Layout) -> Layout:
    """The pipeline with one rank and layer in every stage; layouts with equal ones have equal schedules."""
    return Layout(
        ((1, 1),) * len(layout.stages),
        (1,) * len(layout.layers),
        method=layout.method,
        microbatches=layout.microbatches,
        chunks=layout.chunks,
        merges=layout.merges,
        barriers=layout.barriers,
        order=layout.order,
    )


def compile_layout(layout: Layout, minibatches: int) -> CompiledSchedule:
    """Compiled schedule of a layout; layouts that differ in their ranks and layers only have one in common."""
    return _compiled(pipeline_of(layout), minibatches)


@lru_cache(64)
def _compiled(pipeline: Layout, minibatches: int) -> CompiledSchedule:
    return compile_schedule(pipeline.schedule(minibatches, messages=False))


class MessageTimes(NamedTuple):
    """Seconds of a message between two stages."""

    transit: float = 0.0  # from the moment at which it is sent to its arrival
    link: float = 0.0  # in which it occupies the link from its sender to its receiver: the next one waits for it


@dataclass(frozen=True)
class ScheduleTimes:
    """When the computations of a program run.

    The arrays have an element per computation. `receiving` is the time directly before the start of a computation in
    which a message occupies the stage, the part of it that is not hidden.
    """

    program: CompiledSchedule
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    receiving: NDArray[np.float64]

    @property
    def makespan(self) -> float:
        """End of the last computation."""
        return float(self.ends.max())

    @property
    def busy(self) -> list[float]:
        """Per stage, the time in which it computes."""
        return self._per_stage(self.ends - self.starts)

    @property
    def communication(self) -> list[float]:
        """Per stage, the time in which messages occupy it."""
        return self._per_stage(self.receiving)

    def _per_stage(self, seconds: NDArray[np.float64]) -> list[float]:
        return [float(seconds[self.program.of(stage)].sum()) for stage in range(self.program.schedule.stages)]


def seconds_per_added_minibatch(short: ScheduleTimes, long: ScheduleTimes) -> float:
    """Seconds per step in the steady state: what the minibatches add that only the longer schedule has."""
    added = long.program.schedule.minibatches - short.program.schedule.minibatches
    return (long.makespan - short.makespan) / added
