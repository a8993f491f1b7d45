"""Whether a schedule can be run and means what it should: each instruction once, in order, without deadlock, in bounds.

The rules are those of the data: what an instruction reads must have been made before, on its stage or, by way of a
message, on another. They hold for every method; none is known by name.
"""

from __future__ import annotations

from hybridnn.pipeline.checks.deadlock import check_messages
from hybridnn.pipeline.checks.lint_lists import check_contents, check_order, check_stages, trains
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    ReceiveActivations,
    ReceiveGradients,
    SendActivations,
    SendGradients,
    Update,
)
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.schedule_error import ScheduleError

__all__ = ["ScheduleError", "lint"]


def lint(schedule: Schedule) -> None:
    """Refuse a schedule that breaks a rule.

    Each stage does everything it has to do exactly once, in an order in which everything is there when it is read;
    both ends of a channel agree on the order of its messages, and compute in it; the lists cannot deadlock even where
    every send blocks until its receive is reached; every weight version that is read exists and is kept; and no stage
    holds more weight versions or activations than the schedule states.

    Parameters
    ----------
    schedule : Schedule

    Raises
    ------
    ScheduleError
        With the stage, the instruction and the reason, for the first rule that is broken.
    """
    check_stages(schedule)
    training = trains(schedule)
    for stage in range(schedule.stages):
        check_order(schedule, stage, check_contents(schedule, stage, training))
    check_messages(schedule)
    for stage in range(schedule.stages):
        _check_turns(schedule, stage)
        _check_versions(schedule, stage)
        _check_bounds(schedule, stage)


_TURNS = (
    ((ReceiveActivations,), (Forward,)),
    ((Forward,), (SendActivations,)),
    ((ReceiveGradients,), (Backward, InputGradient)),
    ((Backward, InputGradient), (SendGradients,)),
)
"""Instructions, and those that take up what they leave: first come, first served."""


def _check_turns(schedule: Schedule, stage: int) -> None:
    """What a channel brings is used in the order in which it comes, and what it takes is sent as it was computed."""
    order = schedule.orders[stage]
    for chunk in range(schedule.chunks):
        mine = [(place, item) for place, item in enumerate(order) if item.chunk == chunk]
        for leaves, takes in _TURNS:
            left = [item for _, item in mine if isinstance(item, leaves)]
            taken = [(place, item) for place, item in mine if isinstance(item, takes)]
            for other, (place, item) in zip(left, taken, strict=False):
                if (other.minibatch, other.microbatch) != (item.minibatch, item.microbatch):
                    raise ScheduleError(stage, place, item, f"is not its turn: {other} came before")


def _check_versions(schedule: Schedule, stage: int) -> None:
    """Each read is of a version that there is, and of the current one where no other is kept."""
    kept = schedule.policy.versions(stage, schedule.stages)
    current = 0
    for place, instruction in enumerate(schedule.orders[stage]):
        if isinstance(instruction, Update):
            current += 1
            continue
        read = schedule.weights_read(stage, instruction)
        if read is None:
            continue
        if not 0 <= read.version <= current:
            reason = f"reads weight version {read.version}, but the newest is {current}"
            raise ScheduleError(stage, place, instruction, reason)
        if kept == 1 and read.version != current:
            reason = f"reads weight version {read.version}, but only the current one is kept, version {current}"
            raise ScheduleError(stage, place, instruction, reason)


def _check_bounds(schedule: Schedule, stage: int) -> None:
    """No more weight versions and activations are alive at a time than the schedule states."""
    plan = plan_memory(schedule, stage)
    order = schedule.orders[stage]
    versions = schedule.policy.versions(stage, schedule.stages)
    if plan.peak_weight_versions > versions:
        place = plan.most_versions_at
        reason = f"keeps {plan.peak_weight_versions} weight versions, but the bound is {versions}"
        raise ScheduleError(stage, place, order[place], reason)
    bound = schedule.activation_bound[stage]
    if plan.peak_live_activations > bound:
        place = plan.most_activations_at
        reason = f"holds the activations of {plan.peak_live_activations} microbatches, but the bound is {bound}"
        raise ScheduleError(stage, place, order[place], reason)
