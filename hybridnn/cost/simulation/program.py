"""A schedule compiled once into a list in which everything stands after what it needs, so that a run is one loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, islice

from hybridnn.pipeline.schedules.instructions import Barrier, Instruction
from hybridnn.pipeline.schedules.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.schedule_error import ScheduleError
from hybridnn.pipeline.schedules.timing import COMPUTATIONS

__all__ = ["BARRIER", "Program", "compile_schedule"]

BARRIER = -1
"""Stands for a barrier of all stages in the order of a program."""

NOTHING = -1
"""Stands for the place of a computation where none is needed."""

COMPUTING = frozenset(COMPUTATIONS)


@dataclass(frozen=True)
class Program:
    """A schedule's computations in an order in which they can run.

    Attributes
    ----------
    schedule : Schedule
    computations : tuple of Instruction
        Those of stage 0 in the order of its list, then those of stage 1, and so on.
    stages : tuple of int
        Stage of each computation.
    offsets : tuple of int
        Place of each stage's first computation; at the end, their number.
    needs : tuple of int
        Place of the computation that makes the message which each computation needs; -1 for none.
    messages : tuple of Message or None
        That message.
    order : tuple of int
        All places, each after the one it needs and after those before it on its stage; `BARRIER` where all stages meet.
    """

    schedule: Schedule
    computations: tuple[Instruction, ...]
    stages: tuple[int, ...]
    offsets: tuple[int, ...]
    needs: tuple[int, ...]
    messages: tuple[Message | None, ...]
    order: tuple[int, ...]

    def of(self, stage: int) -> slice:
        """Where a stage's computations stand."""
        return slice(self.offsets[stage], self.offsets[stage + 1])


def compile_schedule(schedule: Schedule) -> Program:
    """Find an order in which all computations of a schedule can run; its loads and messages are passed over.

    Parameters
    ----------
    schedule : Schedule
        With or without loads and messages.

    Returns
    -------
    Program

    Raises
    ------
    ScheduleError
        If a stage waits for something that never happens.
    """
    computations = [[one for one in order if type(one) in COMPUTING] for order in schedule.orders]
    offsets = tuple(accumulate(map(len, computations), initial=0))
    flow = MessageFlow(schedule)
    makers: dict[Message, int] = {}
    messages: list[Message | None] = []
    for stage, own in enumerate(computations):
        for place, computation in enumerate(own, offsets[stage]):
            made = flow.made(stage, computation)
            if made is not None:
                makers[made] = place
            messages.append(flow.needed(stage, computation))
    never = offsets[-1]
    needs = tuple(NOTHING if message is None else makers.get(message, never) for message in messages)
    return Program(
        schedule,
        tuple(chain.from_iterable(computations)),
        tuple(stage for stage, own in enumerate(computations) for _ in own),
        offsets,
        needs,
        tuple(messages),
        _order(schedule, offsets, needs),
    )


def _order(schedule: Schedule, offsets: Sequence[int], needs: Sequence[int]) -> tuple[int, ...]:
    """Let a stage go on until it lacks something, then the stages that waited for it."""
    lists = [_places(instructions, first) for instructions, first in zip(schedule.orders, offsets, strict=False)]
    reached = [0] * schedule.stages
    is_done = bytearray(offsets[-1] + 1)
    waiting: dict[int, int] = {}
    at_barrier: list[int] = []
    order: list[int] = []
    runnable = list(range(schedule.stages))
    while runnable:
        stage = runnable.pop()
        places, position = lists[stage], reached[stage]
        while position < len(places):
            place = places[position]
            if place == BARRIER:
                at_barrier.append(stage)
                break
            need = needs[place]
            if need >= 0 and not is_done[need]:
                waiting[need] = stage
                break
            order.append(place)
            is_done[place] = True
            position += 1
            if place in waiting:
                runnable.append(waiting.pop(place))
        reached[stage] = position
        if len(at_barrier) == schedule.stages:
            order.append(BARRIER)
            reached = [number + 1 for number in reached]
            runnable += at_barrier
            at_barrier.clear()
    _require_all_done(schedule, [len(places) for places in lists], reached)
    return tuple(order)


def _places(instructions: Sequence[Instruction], first: int) -> list[int]:
    """Places of a stage's computations, from `first` on, and its barriers."""
    place = count(first)
    kinds = (type(instruction) for instruction in instructions)
    return [BARRIER if kind is Barrier else next(place) for kind in kinds if kind is Barrier or kind in COMPUTING]


def _require_all_done(schedule: Schedule, lengths: Sequence[int], reached: Sequence[int]) -> None:
    for stage, (length, done) in enumerate(zip(lengths, reached, strict=True)):
        if done < length:
            kept = (
                (number, instruction)
                for number, instruction in enumerate(schedule.orders[stage])
                if isinstance(instruction, (Barrier, *COMPUTATIONS))
            )
            number, instruction = next(islice(kept, done, None))
            raise ScheduleError(stage, number, instruction, "waits for something that never happens")
