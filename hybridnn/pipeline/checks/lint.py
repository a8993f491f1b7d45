"""The linter's rules about each stage's list by itself: what stands in it, once, and in which order.

Whether a schedule can be run and means what it should: each instruction once, in order, without deadlock, in bounds.

The rules are those of the data: what an instruction reads must have been made before, on its stage or, by way of a
message, on another. They hold for every method; none is known by name.
"""

from __future__ import annotations

from hybridnn.pipeline.checks.deadlock import check_messages
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    LoadInput,
    LoadTarget,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError

Kind = type[Instruction]
Key = tuple[Kind, int, int, int]
"""Kind, minibatch, microbatch and chunk of an instruction."""

_ONCE_PER_MINIBATCH: tuple[Kind, ...] = (ReduceGradients, Update)
_BACKWARDS: tuple[Kind, ...] = (Backward, InputGradient, WeightGradient)
_WITH_GRADIENTS = (*_BACKWARDS, *_ONCE_PER_MINIBATCH)

_BEFORE: dict[Kind, tuple[Kind, ...]] = {
    Forward: (LoadInput, LoadTarget, ReceiveActivations),
    SendActivations: (Forward,),
    Recompute: (Forward,),
    Backward: (Forward, Recompute, ReceiveGradients),
    InputGradient: (Forward, Recompute, ReceiveGradients),
    WeightGradient: (InputGradient,),
    SendGradients: (Backward, InputGradient),
}
"""What has to come before an instruction of a kind, of the same minibatch, microbatch and chunk."""


def check_stages(schedule: Schedule) -> None:
    """Refuse a schedule whose lists and bounds are not as many as its stages.

    Raises
    ------
    ScheduleError
    """
    for name, lists in (("lists", schedule.orders), ("bounds of activations", schedule.activation_bound)):
        if len(lists) != schedule.stages:
            raise ScheduleError(0, 0, None, f"there are {len(lists)} {name} for {schedule.stages} stages")


def trains(schedule: Schedule) -> bool:
    """Whether a schedule has anything to do with gradients; one that has not evaluates."""
    return any(isinstance(instruction, _WITH_GRADIENTS) for order in schedule.orders for instruction in order)


def check_contents(schedule: Schedule, stage: int, training: bool) -> dict[Key, int]:
    """Refuse a list in which something is done twice, not at all, or is not the stage's to do.

    Parameters
    ----------
    schedule : Schedule
    stage : int
    training : bool
        Whether gradients are computed.

    Returns
    -------
    dict
        Place of each instruction but the barriers.

    Raises
    ------
    ScheduleError
    """
    places = _places(schedule, stage, training)
    if training:
        _check_backward_passes(schedule, stage, places)
    return places


def check_order(schedule: Schedule, stage: int, places: dict[Key, int]) -> None:
    """Refuse a list in which something is read before it is made, or overwritten before it is read.

    Parameters
    ----------
    schedule : Schedule
    stage : int
    places : dict
        Place of each instruction, as `check_contents` returns it.

    Raises
    ------
    ScheduleError
    """
    updated = 0
    for place, instruction in enumerate(schedule.orders[stage]):
        t, m, chunk = instruction.minibatch, instruction.microbatch, instruction.chunk
        if isinstance(instruction, ReduceGradients):
            parts = [(part, c) for c in range(schedule.chunks) for part in (*_microbatches(schedule), ALL_MICROBATCHES)]
            before: list[Key] = [(kind, t, part, c) for part, c in parts for kind in (Backward, WeightGradient)]
        elif isinstance(instruction, WeightGradient) and m == ALL_MICROBATCHES:
            before = [(InputGradient, t, part, chunk) for part in _microbatches(schedule)]
        elif isinstance(instruction, Update):
            # An update of an exact method is collective: a stage that meets the others there sends no gradient later.
            parts = [(part, c) for c in range(schedule.chunks) for part in _microbatches(schedule)]
            before = [(ReduceGradients, t, 0, 0), *((SendGradients, t, part, c) for part, c in parts)]
        else:
            before = [(kind, t, m, chunk) for kind in _BEFORE.get(type(instruction), ())]
        for key in before:
            if places.get(key, -1) > place:
                raise ScheduleError(stage, place, instruction, f"comes before {_named(key)}, which it needs")
        # There is one buffer for gradients.
        if type(instruction) in _WITH_GRADIENTS and t != updated:
            reason = f"comes where the gradients of minibatch {updated} have to be computed and applied"
            raise ScheduleError(stage, place, instruction, reason)
        updated += isinstance(instruction, Update)


def _places(schedule: Schedule, stage: int, training: bool) -> dict[Key, int]:
    """Place of each instruction but the barriers, all of them known, in range, wanted, and there once."""
    required = _required(schedule, stage, training)
    optional = (*_BACKWARDS, Recompute) if training else ()
    places: dict[Key, int] = {}
    for place, instruction in enumerate(schedule.orders[stage]):
        kind = type(instruction)
        if kind is Barrier:
            continue
        key = (kind, instruction.minibatch, instruction.microbatch, instruction.chunk)
        if key in places:
            raise ScheduleError(stage, place, instruction, f"is there twice, first as instruction {places[key]}")
        if key not in required and not (kind in optional and _in_range(schedule, key)):
            raise ScheduleError(stage, place, instruction, _unwanted(schedule, key, kind in optional))
        places[key] = place
    missing = required - places.keys()
    if missing:
        key = min(missing, key=lambda key: (key[1:], key[0].name))
        raise ScheduleError(stage, len(schedule.orders[stage]), None, f"{_named(key)} is missing")
    return places


def _required(schedule: Schedule, stage: int, training: bool) -> set[Key]:
    """What a stage has to do, but for the backward passes, of which there are several forms."""
    required: set[Key] = set()
    for chunk in range(schedule.chunks):
        first, last = schedule.is_first(stage, chunk), schedule.is_last(stage, chunk)
        kinds: list[Kind] = [Forward, LoadInput if first else ReceiveActivations]
        kinds.append(LoadTarget if last else SendActivations)
        if training:
            kinds += [] if first else [SendGradients]
            kinds += [] if last else [ReceiveGradients]
        required |= {
            (kind, t, m, chunk) for t in range(schedule.minibatches) for m in _microbatches(schedule) for kind in kinds
        }
    if training:
        required |= {(kind, t, 0, 0) for t in range(schedule.minibatches) for kind in _ONCE_PER_MINIBATCH}
    return required


def _check_backward_passes(schedule: Schedule, stage: int, places: dict[Key, int]) -> None:
    """Each part has one backward pass: whole, or an input gradient and one weight gradient, its own or a common one."""
    for chunk in range(schedule.chunks):
        for t in range(schedule.minibatches):
            common = (WeightGradient, t, ALL_MICROBATCHES, chunk)
            for m in _microbatches(schedule):
                own = (WeightGradient, t, m, chunk)
                whole, of_input = (Backward, t, m, chunk), (InputGradient, t, m, chunk)
                weights = [key for key in (own, common) if key in places]
                parts = [key for key in (whole, of_input) if key in places]
                if not parts:
                    _refuse_missing(schedule, stage, of_input if weights else whole)
                if len(parts) == 2 or len(weights) == 2 or (whole in places and weights):
                    place = max(places[key] for key in (*parts, *weights))
                    reason = f"computes a gradient of microbatch {m} of minibatch {t} once more"
                    raise ScheduleError(stage, place, schedule.orders[stage][place], reason)
                if of_input in places and not weights:
                    _refuse_missing(schedule, stage, own)


def _refuse_missing(schedule: Schedule, stage: int, key: Key) -> None:
    raise ScheduleError(stage, len(schedule.orders[stage]), None, f"{_named(key)} is missing")


def _unwanted(schedule: Schedule, key: Key, optional: bool) -> str:
    """Why an instruction is not one of the stage's."""
    if key[0] not in (*_ONCE_PER_MINIBATCH, *_BEFORE, *(kind for kinds in _BEFORE.values() for kind in kinds)):
        return "is not a known instruction"
    if optional or not _in_range(schedule, key):
        return (
            f"is out of range: there are {schedule.minibatches} minibatches, {schedule.microbatches} microbatches "
            f"and {schedule.chunks} chunks"
        )
    return "has no place on this stage"


def _in_range(schedule: Schedule, key: Key) -> bool:
    kind, t, m, chunk = key
    whole = kind is WeightGradient and m == ALL_MICROBATCHES
    return 0 <= t < schedule.minibatches and (whole or 0 <= m < schedule.microbatches) and 0 <= chunk < schedule.chunks


def _microbatches(schedule: Schedule) -> range:
    return range(schedule.microbatches)


def _named(key: Key) -> str:
    kind, t, m, chunk = key
    return str(kind(t, m, chunk))


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
        place = plan.peak_versions_at
        reason = f"keeps {plan.peak_weight_versions} weight versions, but the bound is {versions}"
        raise ScheduleError(stage, place, order[place], reason)
    bound = schedule.activation_bound[stage]
    if plan.peak_live_activations > bound:
        place = plan.peak_activations_at
        reason = f"holds the activations of {plan.peak_live_activations} microbatches, but the bound is {bound}"
        raise ScheduleError(stage, place, order[place], reason)
