"""What a schedule costs: when every instruction runs, how long stages wait, and what they hold meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    COMPUTATIONS,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    WeightGradient,
)
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.pipeline.schedules.message_flow import MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.timing import Duration, Times, time_computations
from hybridnn.pipeline.schedules.weight_policies import WeightRead
from hybridnn.utils.checks import require_number


@dataclass(frozen=True)
class Durations:
    """How long a stage's passes over one microbatch take, with all its chunks; seconds or any other unit.

    Attributes
    ----------
    forward : float
        Forward pass; a recomputation takes as long.
    backward : float
        Whole backward pass.
    weight : float
        The part of the backward pass that computes the gradients of the weights.
    message : float
        From the end of a computation to the arrival of its result at another stage.

    Raises
    ------
    SettingError
        If one is negative or not a finite number, or `weight` is larger than `backward`.
    """

    forward: float = 1.0
    backward: float = 2.0
    weight: float = 1.0
    message: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "weight", "message"):
            require_number(name, getattr(self, name), 0, inf, "a finite number, 0 or more")
        if self.weight > self.backward:
            allowed = f"at most {self.backward}, the whole backward pass"
            raise SettingError("weight", self.weight, allowed)

    def of(self, schedule: Schedule) -> Duration:
        """Durations of the computations of a schedule, each of which is of one chunk."""
        of_kinds = {
            Forward: self.forward / schedule.chunks,
            Recompute: self.forward / schedule.chunks,
            Backward: self.backward / schedule.chunks,
            InputGradient: (self.backward - self.weight) / schedule.chunks,
            WeightGradient: self.weight / schedule.chunks,
        }

        def duration(stage: int, instruction: Instruction) -> float:
            microbatches = schedule.microbatches if instruction.microbatch == ALL_MICROBATCHES else 1
            return of_kinds.get(type(instruction), 0.0) * microbatches

        return duration


class TimedInstruction(NamedTuple):
    """An instruction and when it runs.

    Attributes
    ----------
    instruction : Instruction
    start, end : float
        A message starts when its content is computed and ends when it has arrived, at both of its ends; a barrier
        lasts while the stage waits; a load has the moment at which the stage comes to it.
    read : WeightRead or None
        Weights that it reads.
    """

    instruction: Instruction
    start: float
    end: float
    read: WeightRead | None


@dataclass(frozen=True)
class Timeline:
    """A schedule with its times.

    Attributes
    ----------
    schedule : Schedule
    stages : tuple of tuple of TimedInstruction
        One list per stage, in the order of the schedule.
    makespan : float
        End of the last instruction.
    bubble_fraction : float
        Share of the stages' time in which they compute nothing; 0 if nothing takes time.
    peak_live_activations, peak_live_inputs, peak_weight_versions : tuple of int
        Per stage, as in `hybridnn.pipeline.memory_plan.MemoryPlan`.
    busy : tuple of float
        Per stage, the time in which it computes.
    """

    schedule: Schedule
    stages: tuple[tuple[TimedInstruction, ...], ...]
    makespan: float
    bubble_fraction: float
    peak_live_activations: tuple[int, ...]
    peak_live_inputs: tuple[int, ...]
    peak_weight_versions: tuple[int, ...]
    busy: tuple[float, ...]


_UNIT = Durations()


def simulate(schedule: Schedule, durations: Durations = _UNIT, duration: Duration | None = None) -> Timeline:
    """Run a schedule on a model of the machine.

    A stage runs its computations in the order of its list. One starts when the stage is free and the message it needs
    has arrived; at a barrier all stages meet. Messages do not occupy a stage.

    Parameters
    ----------
    schedule : Schedule
        Must pass the linter.
    durations : Durations
        The same for all stages.
    duration : callable, optional
        From (stage, computation) to its duration, in place of `durations`, of which only `message` is then used.

    Returns
    -------
    Timeline

    Raises
    ------
    ScheduleError
        If a stage waits for something that never happens.
    """
    times = time_computations(schedule, duration or durations.of(schedule), durations.message)
    stages = tuple(_timed(schedule, stage, times, durations.message) for stage in range(schedule.stages))
    makespan = max((timed.end for stage in stages for timed in stage), default=0.0)
    busy = tuple(
        sum(timed.end - timed.start for timed in stage if type(timed.instruction) in COMPUTATIONS) for stage in stages
    )
    plans = [plan_memory(schedule, stage) for stage in range(schedule.stages)]
    return Timeline(
        schedule,
        stages,
        makespan,
        1 - sum(busy) / (schedule.stages * makespan) if makespan else 0.0,
        tuple(plan.peak_live_activations for plan in plans),
        tuple(plan.peak_live_inputs for plan in plans),
        tuple(plan.peak_weight_versions for plan in plans),
        busy,
    )


def _timed(schedule: Schedule, stage: int, times: Times, message: float) -> tuple[TimedInstruction, ...]:
    """The stage's list with its times, those of messages from the computations that make them."""
    flow = MessageFlow(schedule)
    timed: list[TimedInstruction] = []
    for instruction, start, end in zip(schedule.orders[stage], times.starts[stage], times.ends[stage], strict=True):
        travels = flow.carried(stage, instruction)
        if travels is None:
            timed.append(TimedInstruction(instruction, start, end, schedule.weights_read(stage, instruction)))
        else:
            moment = times.made[travels]
            timed.append(TimedInstruction(instruction, moment, moment + message, None))
    return tuple(timed)
