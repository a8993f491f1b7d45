"""Checks of a schedule: an error for one that cannot run, or that computes something else than its method.

The rules follow from the data: whatever an instruction reads must have been computed before, on its stage or, by way of
a message, on another. They hold for every method and refer to none by name.

Messages are run with a rendezvous: every send is taken to block until its receive is reached, and every receive until
its send. So no schedule relies on buffered messages, which MPI guarantees for no size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import NamedTuple

from hybridnn.pipeline.schedules.compiled_schedule import BARRIER, NO_NEED, Message, MessageFlow, advance
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    QUEUES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    Kinds,
    Load,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.program import plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError
from hybridnn.pipeline.schedules.weight_policies import WeightRead

Key = tuple[type[Instruction], int, int, int]
"""Kind, minibatch, microbatch and chunk: an instruction, faster to make and to look up."""

Positions = dict[Key, int]  # position of each instruction in the list of a stage

BACKWARD_PASSES: Kinds = (Backward, InputGradient, WeightGradient)
ONCE_PER_MINIBATCH: Kinds = (ReduceGradients, Update)
USES_GRADIENTS: Kinds = (*BACKWARD_PASSES, *ONCE_PER_MINIBATCH)

NEEDS: dict[type[Instruction], Kinds] = {
    Forward: (Load, ReceiveActivations),
    SendActivations: (Forward,),
    Recompute: (Forward,),
    Backward: (Forward, Recompute, ReceiveGradients),
    InputGradient: (Forward, Recompute, ReceiveGradients),
    WeightGradient: (InputGradient,),
    SendGradients: (Backward, InputGradient),
}
"""Kinds that must precede a kind, for the same minibatch, microbatch and chunk."""

KNOWN = {*ONCE_PER_MINIBATCH, *NEEDS, *chain.from_iterable(NEEDS.values())}


def lint(schedule: Schedule) -> None:
    """Refuse a schedule that breaks a rule.

    Each stage does everything it has to do exactly once, in an order in which all data are there when they are read;
    both ends of a channel agree on the order of its messages, and compute in it; the lists cannot deadlock even where
    every send blocks until its receive is reached; every weight version that is read exists and is stored; and no stage
    holds more weight versions or activations than the schedule states.

    Raises
    ------
    ScheduleError
        With the stage, the instruction and the reason, for the first rule that is broken.
    """
    for name, lists in (("lists", schedule.orders), ("bounds of activations", schedule.activation_bound)):
        if len(lists) != schedule.stages:
            raise ScheduleError(0, 0, None, f"there are {len(lists)} {name} for {schedule.stages} stages")
    training = any(isinstance(instruction, USES_GRADIENTS) for order in schedule.orders for instruction in order)
    for stage in range(schedule.stages):
        positions = _check_contents(schedule, stage, training)
        if training:
            _check_backward_passes(schedule, stage, positions)
        _check_order(schedule, stage, positions)
    check_messages(schedule)
    for stage in range(schedule.stages):
        _check_queues(schedule, stage)
        _check_versions(schedule, stage)
        _check_bounds(schedule, stage)


def _check_contents(schedule: Schedule, stage: int, training: bool) -> Positions:
    """Each instruction is known, in range, one of the stage's, and there once; none is missing. Ignores barriers."""
    required = _required(schedule, stage, training)
    optional: Kinds = (*BACKWARD_PASSES, Recompute) if training else ()
    positions: Positions = {}
    for position, instruction in enumerate(schedule.orders[stage]):
        kind = type(instruction)
        if kind is Barrier:
            continue
        key = (kind, *instruction.part)
        if key in positions:
            raise schedule.error(stage, position, f"is there twice, first as instruction {positions[key]}")
        if key not in required and not (kind in optional and _in_range(schedule, key)):
            raise schedule.error(stage, position, _unwanted(schedule, key, kind in optional))
        positions[key] = position
    missing = required - positions.keys()
    if missing:
        raise _missing(schedule, stage, min(missing, key=lambda key: (key[1:], key[0].name)))
    return positions


def _required(schedule: Schedule, stage: int, training: bool) -> set[Key]:
    """All instructions of a stage but the backward passes, which may be split."""
    required: set[Key] = set()
    for chunk in range(schedule.chunks):
        kinds: list[type[Instruction]] = [Forward, Load] if schedule.loads(stage, chunk) else [Forward]
        kinds += [ReceiveActivations, SendGradients][: 1 + training] if schedule.receives(stage, chunk) else []
        kinds += [SendActivations, ReceiveGradients][: 1 + training] if schedule.sends(stage, chunk) else []
        parts = product(range(schedule.minibatches), range(schedule.microbatches))
        required |= {(kind, t, m, chunk) for t, m in parts for kind in kinds}
    if training:
        required |= {(kind, t, 0, 0) for t in range(schedule.minibatches) for kind in ONCE_PER_MINIBATCH}
    return required


def _unwanted(schedule: Schedule, key: Key, optional: bool) -> str:
    """The reason why an instruction is not one of the stage's."""
    if key[0] not in KNOWN:
        return "is not a known instruction"
    if optional or not _in_range(schedule, key):
        return (
            f"is out of range: there are {schedule.minibatches} minibatches, {schedule.microbatches} microbatches "
            f"and {schedule.chunks} chunks"
        )
    return "has no place on this stage"


def _in_range(schedule: Schedule, key: Key) -> bool:
    kind, t, m, chunk = key
    merged = kind is WeightGradient and m == ALL_MICROBATCHES
    return 0 <= t < schedule.minibatches and (merged or 0 <= m < schedule.microbatches) and 0 <= chunk < schedule.chunks


def _missing(schedule: Schedule, stage: int, key: Key) -> ScheduleError:
    return schedule.error(stage, len(schedule.orders[stage]), f"{_named(key)} is missing")


def _named(key: Key) -> str:
    kind, t, m, chunk = key
    return str(kind(t, m, chunk))


def _check_backward_passes(schedule: Schedule, stage: int, positions: Positions) -> None:
    """Each microbatch has one backward pass, or an input gradient and a weight gradient, its own or a merged one."""
    for chunk, t, m in product(range(schedule.chunks), range(schedule.minibatches), range(schedule.microbatches)):
        backward, of_input, of_weights = ((kind, t, m, chunk) for kind in BACKWARD_PASSES)
        weights = [key for key in (of_weights, (WeightGradient, t, ALL_MICROBATCHES, chunk)) if key in positions]
        passes = [key for key in (backward, of_input) if key in positions]
        if not passes:
            raise _missing(schedule, stage, of_input if weights else backward)
        if len(passes) == 2 or len(weights) == 2 or (backward in positions and weights):
            reason = f"computes a gradient of microbatch {m} of minibatch {t} once more"
            raise schedule.error(stage, max(positions[key] for key in (*passes, *weights)), reason)
        if of_input in positions and not weights:
            raise _missing(schedule, stage, of_weights)


def _check_order(schedule: Schedule, stage: int, positions: Positions) -> None:
    """Each instruction comes after those that it needs, and gradients are applied before others are computed."""
    updated = 0
    for position, instruction in enumerate(schedule.orders[stage]):
        for needed in _needed(schedule, stage, instruction):
            if positions.get(needed, -1) > position:
                raise schedule.error(stage, position, f"comes before {_named(needed)}, which it needs")
        # There is one buffer for gradients.
        if type(instruction) in USES_GRADIENTS and instruction.minibatch != updated:
            reason = f"comes where the gradients of minibatch {updated} have to be computed and applied"
            raise schedule.error(stage, position, reason)
        updated += isinstance(instruction, Update)


def _needed(schedule: Schedule, stage: int, instruction: Instruction) -> list[Key]:
    """Instructions of the same stage that must precede an instruction if they are there."""
    t, m, chunk = instruction.part
    microbatches, chunks = range(schedule.microbatches), range(schedule.chunks)
    if isinstance(instruction, ReduceGradients):
        parts = product(chunks, (*microbatches, ALL_MICROBATCHES))
        return [(kind, t, part, c) for c, part in parts for kind in (Backward, WeightGradient)]
    if isinstance(instruction, WeightGradient) and m == ALL_MICROBATCHES:
        return [(InputGradient, t, part, chunk) for part in microbatches]
    if isinstance(instruction, Update):
        # An update of an exact method is collective: a stage that meets the others there sends no gradient later.
        sends = [(SendGradients, t, part, c) for c, part in product(chunks, microbatches)]
        return [(ReduceGradients, t, 0, 0), *sends]
    needs = [(kind, t, m, chunk) for kind in NEEDS.get(type(instruction), ())]
    # A neighbour on the same stage hands its array over.
    if isinstance(instruction, Forward) and not schedule.receives(stage, chunk):
        needs.append((Forward, t, m, chunk - 1))
    if isinstance(instruction, (Backward, InputGradient)) and not schedule.sends(stage, chunk):
        needs += [(kind, t, m, chunk + 1) for kind in (Backward, InputGradient)]
    return needs


def _check_queues(schedule: Schedule, stage: int) -> None:
    """Messages are used in the order in which they arrive, and results sent in the order in which they are computed."""
    for chunk in range(schedule.chunks):
        items = [(position, item) for position, item in enumerate(schedule.orders[stage]) if item.chunk == chunk]
        for puts, takes in QUEUES.values():
            put = [item for _, item in items if isinstance(item, puts)]
            taken = [(position, item) for position, item in items if isinstance(item, takes)]
            for source, (position, item) in zip(put, taken, strict=False):
                if (source.minibatch, source.microbatch) != (item.minibatch, item.microbatch):
                    raise schedule.error(stage, position, f"is not its turn: {source} came before")


def _check_versions(schedule: Schedule, stage: int) -> None:
    """Each version that is read exists, and is the current one where no other is stored."""
    stored = schedule.policy.versions(stage, schedule.stages)
    for position, _, current, read in schedule.versions(stage):
        if read is None:
            continue
        if not 0 <= read.version <= current:
            reason = f"reads weight version {read.version}, but the newest is {current}"
            raise schedule.error(stage, position, reason)
        if stored == 1 and read.version != current:
            reason = f"reads weight version {read.version}, but only the current one is kept, version {current}"
            raise schedule.error(stage, position, reason)


def _check_bounds(schedule: Schedule, stage: int) -> None:
    """No more weight versions and activations are alive at a time than the schedule states."""
    plan = plan_memory(schedule, stage)
    versions = schedule.policy.versions(stage, schedule.stages)
    if plan.peak_weight_versions > versions:
        reason = f"keeps {plan.peak_weight_versions} weight versions, but the bound is {versions}"
        raise schedule.error(stage, plan.peak_versions_at, reason)
    bound = schedule.activation_bound[stage]
    if plan.peak_live_activations > bound:
        reason = f"holds the activations of {plan.peak_live_activations} microbatches, but the bound is {bound}"
        raise schedule.error(stage, plan.peak_activations_at, reason)


@dataclass(frozen=True)
class StalenessRow:
    """Weights of one minibatch on one stage; its gradient is applied to the version `applied_at`."""

    stage: int
    minibatch: int
    forward: WeightRead
    backward: WeightRead
    applied_at: int

    @property
    def staleness(self) -> int:
        """Updates between the version of the forward pass and the one that the gradient is applied to."""
        return self.applied_at - self.forward.version

    @property
    def consistent(self) -> bool:
        """Whether both passes read the same version, or aim at it with predictions, which may differ."""
        return sum(self.forward) == sum(self.backward)


def audit(schedule: Schedule) -> tuple[StalenessRow, ...]:
    """List the weights that every minibatch reads on every stage of a schedule, which must pass the linter.

    The rows are in the order of the updates, stage by stage; without updates there are none.
    """
    return tuple(row for stage in range(schedule.stages) for row in _rows(schedule, stage))


def _rows(schedule: Schedule, stage: int) -> Iterator[StalenessRow]:
    for _, item, updates, _ in schedule.versions(stage):
        if isinstance(item, Update):
            forward, backward = (schedule.weights_read(stage, kind(item.minibatch)) for kind in (Forward, Backward))
            assert forward is not None
            assert backward is not None
            yield StalenessRow(stage, item.minibatch, forward, backward, updates)


# -- messages and deadlocks --------------------------------------------------------------------------------------------


class _Wait(NamedTuple):
    """A position of a stage's list at which it waits: an end of a message, or the barrier of a number."""

    position: int
    meeting: Message | int
    sends: bool


def check_messages(schedule: Schedule) -> None:
    """Run the messages and barriers of a schedule, in which every send has its receive, and refuse it if it stops.

    The `ScheduleError` has the stages that wait for each other in a cycle, as where the ends of a channel disagree on
    the order of its messages, or for a stage whose list has ended.
    """
    flow = MessageFlow(schedule)
    waits = [_waits(schedule, flow, stage) for stage in range(schedule.stages)]
    stopped = _stopped(waits)
    if not stopped:
        return
    path = _path_of_waits(stopped, schedule.stages)
    descriptions = [
        f"stage {stage} waits at instruction {position} ({schedule.orders[stage][position]}) for stage {target}"
        for (stage, target), position in ((pair, stopped[pair[0]].position) for pair in pairwise(path))
    ]
    reason = "deadlock where every send blocks until it is received: " + ", ".join(descriptions)
    has_ended = "" if path[-1] in stopped else ", which has ended"
    raise schedule.error(path[0], stopped[path[0]].position, reason + has_ended)


def _waits(schedule: Schedule, flow: MessageFlow, stage: int) -> list[_Wait]:
    waits: list[_Wait] = []
    for position, instruction in enumerate(schedule.orders[stage]):
        message = flow.carried(stage, instruction)
        if message is not None:
            waits.append(_Wait(position, message, isinstance(instruction, (SendActivations, SendGradients))))
        elif isinstance(instruction, Barrier):
            waits.append(_Wait(position, instruction.minibatch, False))
    return waits


def _stopped(waits: Sequence[Sequence[_Wait]]) -> dict[int, _Wait]:
    """Where each stage stops that cannot go on.

    Each end of a message is two steps: its stage arrives, and goes on when the other end has arrived. Those of the
    sender have the numbers 4n and 4n + 1, those of the receiver 4n + 2 and 4n + 3.
    """
    numbers: dict[Message, int] = {}
    lists: list[list[int]] = []
    for own in waits:
        lists.append([])
        for _, meeting, sends in own:
            if isinstance(meeting, int):
                lists[-1].append(BARRIER - meeting)
            else:
                arrives = 4 * numbers.setdefault(meeting, len(numbers)) + (0 if sends else 2)
                lists[-1] += [arrives, arrives + 1]
    needs = [need for first in range(0, 4 * len(numbers), 4) for need in (NO_NEED, first + 2, NO_NEED, first)]
    _, reached = advance(lists, needs)
    stopped: dict[int, _Wait] = {}
    for stage, (own, steps, done) in enumerate(zip(waits, lists, reached, strict=True)):
        # A barrier is one step of its list, and the end of a message two, of which the second waits.
        passed = sum(step <= BARRIER or step % 2 for step in steps[:done])
        if passed < len(own):
            stopped[stage] = own[passed]
    return stopped


def _path_of_waits(stopped: dict[int, _Wait], stages: int) -> list[int]:
    """Stages each of which waits for the next: a cycle back to the first, or up to one that has ended."""
    path = [min(stopped)]
    while path[-1] in stopped and path[-1] not in path[:-1]:
        _, meeting, sends = stopped[path[-1]]
        if isinstance(meeting, int):
            absent = (stage for stage in range(stages) if stage not in stopped or stopped[stage].meeting != meeting)
            path.append(next(absent))
        else:
            path.append(meeting[0].receiver if sends else meeting[0].sender)
    return path[path.index(path[-1]) :] if path[-1] in stopped else path
