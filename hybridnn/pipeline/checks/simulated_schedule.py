"""Simulation of a schedule in unit time: when each instruction runs, and what a stage holds meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.compiled_schedule import COMPUTING, CompiledSchedule, Times, compile_schedule
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    WeightGradient,
)
from hybridnn.pipeline.schedules.program import MemoryPlan, plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.weight_policies import WeightRead
from hybridnn.utils.checks import require_number

if TYPE_CHECKING:
    from hybridnn.pipeline.layout import Layout


@dataclass(frozen=True)
class Durations:
    """Times of a stage's passes over one microbatch, with all its chunks; seconds or any other unit.

    A SettingError names a time that is negative or not a finite number, and a `weight` larger than `backward`.
    """

    forward: float = 1.0  # forward pass; a recomputation takes the same time
    backward: float = 2.0  # complete backward pass
    weight: float = 1.0  # the part of the backward pass that computes the gradients of the weights
    message: float = 0.0  # from the end of a computation to the arrival of its result at another stage

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "weight", "message"):
            object.__setattr__(self, name, require_number(name, getattr(self, name), at_least=0))
        if self.weight > self.backward:
            allowed = f"at most {self.backward}, the whole backward pass"
            raise SettingError("weight", self.weight, allowed)

    def of(self, program: CompiledSchedule) -> list[float]:
        """Durations of the computations of a schedule, each of which is of one chunk."""
        schedule = program.schedule
        seconds: dict[type[Instruction], float] = {
            Forward: self.forward / schedule.chunks,
            Recompute: self.forward / schedule.chunks,
            Backward: self.backward / schedule.chunks,
            InputGradient: (self.backward - self.weight) / schedule.chunks,
            WeightGradient: self.weight / schedule.chunks,
        }
        return [
            seconds.get(type(item), 0.0) * (schedule.microbatches if item.microbatch == ALL_MICROBATCHES else 1)
            for item in program.computations
        ]


class TimedInstruction(NamedTuple):
    """An instruction, its time, and the weights that it reads.

    A message, at both of its ends, starts when its content has been computed and ends when it has arrived; a barrier
    lasts while the stage waits; a load takes no time.
    """

    instruction: Instruction
    start: float
    end: float
    read: WeightRead | None


@dataclass(frozen=True)
class Timeline:
    """A schedule with its times: a list per stage in the order of the schedule, and the end of the last instruction."""

    schedule: Schedule
    stages: tuple[tuple[TimedInstruction, ...], ...]
    makespan: float

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Per stage, the time in which it computes."""
        return tuple(
            sum(timed.end - timed.start for timed in stage if type(timed.instruction) in COMPUTING)
            for stage in self.stages
        )

    @property
    def bubble_fraction(self) -> float:
        """Share of the stages' time in which they compute nothing; 0 if nothing takes time."""
        return 1 - sum(self.busy) / (self.schedule.stages * self.makespan) if self.makespan else 0.0

    @cached_property
    def plans(self) -> tuple[MemoryPlan, ...]:
        """Per stage, what it holds at a time."""
        return tuple(plan_memory(self.schedule, stage) for stage in range(self.schedule.stages))


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """Run a schedule, which must pass the linter, on the clock.

    All stages have the same durations, and messages do not occupy a stage. Raises `ScheduleError` if a stage waits for
    something that never happens.
    """
    program = compile_schedule(schedule)
    transfers = [0.0 if message is None else durations.message for message in program.messages]
    times = program.times(durations.of(program), transfers)
    stages = tuple(tuple(_timed(program, times, stage, durations.message)) for stage in range(schedule.stages))
    return Timeline(schedule, stages, max((timed.end for stage in stages for timed in stage), default=0.0))


def split_idle(idle: float, bubble: float) -> tuple[float, float]:
    """Split idle time into the bubble, at most that of the schedule, and waiting for messages and slower ranks."""
    return min(idle, bubble), max(0.0, idle - bubble)


@lru_cache(256)
def schedule_bubble(layout: Layout, minibatches: int) -> float:
    """Share of the time in which ranks are idle by the schedule of a layout alone: the bubble.

    All stages are equally fast, a backward pass takes as long as two forward passes, and messages take no time: with
    K stages and M microbatches it is (K - 1) / (M + K - 1) for GPipe and 1F1B (Huang et al. 2019, section 2.3;
    Narayanan et al. 2021, section 2.2.1), and 2 (K - 1) / (3 M + 2 (K - 1)) with merged weight gradients, a third of
    the work, which later stages compute in the bubble. Minibatches that follow one another without a flush share one.
    """
    stages, durations = len(layout.stages), Durations()
    if stages == 1:
        return 0.0
    most = 1 if layout.drains else min(minibatches, 4 * stages)
    long = simulate(layout.schedule(most), durations)
    if layout.drains or minibatches == most:
        return long.bubble_fraction
    added = (long.makespan - simulate(layout.schedule(most // 2), durations).makespan) / (most - most // 2)
    busy = sum(long.busy) / (stages * most)
    return 1 - busy * minibatches / (long.makespan + (minibatches - most) * added)


def _timed(program: CompiledSchedule, times: Times, stage: int, message_seconds: float) -> Iterator[TimedInstruction]:
    """All instructions of a stage with their times."""
    schedule, own = program.schedule, program.of(stage)
    made = program.made(times)
    computations = zip(times.starts[own], times.ends[own], strict=True)
    barriers = iter(times.barriers)
    now = 0.0
    for instruction in schedule.orders[stage]:
        message = program.flow.carried(stage, instruction)
        if message is not None:
            yield TimedInstruction(instruction, made[message], made[message] + message_seconds, None)
            continue
        start = now
        if isinstance(instruction, Barrier):
            now = next(barriers)
        elif type(instruction) in COMPUTING:
            start, now = next(computations)
        yield TimedInstruction(instruction, start, now, schedule.weights_read(stage, instruction))
