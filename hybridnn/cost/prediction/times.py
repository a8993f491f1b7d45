"""Times of a step: where its seconds go, and schedules on the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.compiled_schedule import BARRIER, CompiledSchedule, Message, compile_schedule
from hybridnn.pipeline.schedules.instructions import Instruction
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


PARTS = ("compute", "smaller products", "overhead", "communicate", "bubble", "wait")
"""Parts of the ranks' time, of which *smaller products* need the comparison with a base."""


def parts_of_efficiency(own: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Shares of `PARTS` in the ranks' time: compute is the parallel efficiency, the others what it lacks.

    Parameters
    ----------
    own, base : mapping of str to float
        Seconds of all ranks for the same work, by part but smaller products.

    Returns
    -------
    dict of str to float
        They add up to 1. Compute is the whole time of the base, and every other part the time beyond that of the base;
        what takes less time than on the base, as with a larger cache, is subtracted from compute.
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


class MessageTimes(NamedTuple):
    """Seconds of a message between two stages."""

    transit: float = 0.0  # from the moment at which it is sent to its arrival
    link: float = 0.0  # in which it occupies the link from its sender to its receiver: the next one waits for it


class InstructionCosts(Protocol):
    """Costs of the instructions of a schedule, in seconds."""

    @property
    def hidden(self) -> float:
        """Fraction of a message's time that overlaps with the receiver's computation, from 0 to 1."""

    def duration(self, stage: int, instruction: Instruction) -> float:
        """Time of a computation."""

    def message(self, message: Message) -> MessageTimes:
        """Times of a message."""

    def barrier_seconds(self) -> float:
        """Time of a barrier, after its last stage has arrived."""


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


def run(program: CompiledSchedule, costs: InstructionCosts) -> ScheduleTimes:
    """Time a compiled schedule: see `CompiledSchedule.times`, with ``exposed = 1 - hidden``."""
    durations = [costs.duration(stage, item) for stage, item in zip(program.stages, program.computations, strict=True)]
    none = MessageTimes()
    messages = [none if message is None else costs.message(message) for message in program.messages]
    transfers, links = [times.transit for times in messages], [times.link for times in messages]
    barrier = costs.barrier_seconds() if BARRIER in program.order else 0.0
    exposed = 1.0 - costs.hidden
    times = program.times(durations, transfers, barrier, exposed, links if any(links) else None)
    return ScheduleTimes(program, np.array(times.starts), np.array(times.ends), exposed * np.array(transfers))


def seconds_per_added_minibatch(short: ScheduleTimes, long: ScheduleTimes) -> float:
    """Seconds per step in the steady state: what the minibatches add that only the longer schedule has."""
    added = long.program.schedule.minibatches - short.program.schedule.minibatches
    return (long.makespan - short.makespan) / added
