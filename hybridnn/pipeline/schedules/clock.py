"""A schedule run on a clock: every computation starts when its stage is free and what it needs has arrived.

Times are numbers or arrays: one figure per replica of the pipeline, or per candidate that shares the schedule.

A schedule compiled once into a list in which everything stands after what it needs, so that a run is one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Barrier, Instruction
from hybridnn.pipeline.schedules.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError

BARRIER = -1
"""Stands for a barrier of all stages in the order of a program."""

NOTHING = -1
"""Stands for the place of a computation where none is needed."""

COMPUTING = frozenset(COMPUTATIONS)


@dataclass(frozen=True)
class CompiledSchedule:
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


def compile_schedule(schedule: Schedule) -> CompiledSchedule:
    """Find an order in which all computations of a schedule can run; its loads and messages are passed over.

    Parameters
    ----------
    schedule : Schedule
        With or without loads and messages.

    Returns
    -------
    CompiledSchedule

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
    return CompiledSchedule(
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


Seconds = float | NDArray[np.float64]
"""A time, or one per replica or candidate."""

Meet = Callable[[int, Instruction, NDArray[np.float64]], NDArray[np.float64]]
"""From (stage, computation, moments at which it could start) to when it starts."""


class InstructionCosts(Protocol):
    """What a schedule costs on a machine."""

    @property
    def hidden(self) -> float:
        """Fraction of a message's time that can pass before its receiver waits for it, from 0 to 1."""

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Time of a computation."""

    def message(self, message: Message) -> Seconds:
        """Time from the end of the computation that makes a message to its arrival."""

    def barrier_seconds(self) -> Seconds:
        """Time of a barrier, after its last stage has come."""


@dataclass(frozen=True)
class ScheduleTimes:
    """When the computations of a program run.

    All arrays have a row for each computation of `program`; where costs are arrays, a row has their shape.

    Attributes
    ----------
    program : CompiledSchedule
    starts, ends : NDArray of float64
    receiving : NDArray of float64
        Time directly before each start in which a message occupies the stage: what cannot be hidden.
    """

    program: CompiledSchedule
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    receiving: NDArray[np.float64]

    @property
    def makespan(self) -> Any:
        """End of the last computation, a number or an array."""
        return self.ends.max(axis=0)

    @property
    def waits(self) -> NDArray[np.float64]:
        """Time before each computation, and before its message is received, in which the stage waits.

        Barriers are part of it; the time after a stage's last computation is not.
        """
        before = np.zeros_like(self.ends)
        before[1:] = self.ends[:-1]
        before[list(self.program.offsets[:-1])] = 0.0
        waits: NDArray[np.float64] = self.starts - before - self.receiving
        return waits

    @property
    def busy(self) -> NDArray[np.float64]:
        """Per stage, the time in which it computes."""
        return self._per_stage(self.ends - self.starts)

    @property
    def communication(self) -> NDArray[np.float64]:
        """Per stage, the time in which messages occupy it."""
        return self._per_stage(self.receiving)

    @property
    def bubble(self) -> NDArray[np.float64]:
        """Per stage, the rest of the makespan."""
        bubble: NDArray[np.float64] = self.makespan - self.busy - self.communication
        return bubble

    @property
    def bubble_fraction(self) -> Any:
        """Share of the stages' time that is bubble; 0 if nothing takes time."""
        stages = self.program.schedule.stages
        return self.bubble.sum(axis=0) / np.maximum(stages * self.makespan, np.finfo(float).tiny)

    def _per_stage(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        stages = range(self.program.schedule.stages)
        return np.array([seconds[self.program.of(stage)].sum(axis=0) for stage in stages])


def run(program: CompiledSchedule, costs: InstructionCosts, meet: Meet | None = None) -> ScheduleTimes:
    """Run a program.

    A computation that needs a message made at time m, with transfer time t, starts at ``max(free + (1 - hidden) t, m +
    t)``, where ``free`` is the end of what its stage did before.

    Parameters
    ----------
    program : CompiledSchedule
    costs : InstructionCosts
        Numbers, or arrays of one shape.
    meet : callable, optional
        From (stage, computation, the moments at which replicas could start it) to when they do: who waits for whom.
        With it, all replicas meet at a barrier; without, what stands in different places of an array never meets.

    Returns
    -------
    ScheduleTimes
    """
    durations = [costs.duration(stage, one) for stage, one in zip(program.stages, program.computations, strict=True)]
    transfers = [0.0 if message is None else costs.message(message) for message in program.messages]
    barrier = costs.barrier_seconds() if BARRIER in program.order else 0.0
    shape = np.broadcast_shapes(*{getattr(seconds, "shape", ()) for seconds in (*durations, *transfers, barrier)})
    times = _Times(durations, transfers, barrier, 1.0 - costs.hidden)
    starts, ends = _times_of_arrays(program, times, shape, meet) if shape else _times_of_numbers(program, times)
    rows = [np.broadcast_to(transfer, shape) for transfer in transfers] if shape else transfers
    return ScheduleTimes(program, starts, ends, times.exposed * np.array(rows))


class _Times(NamedTuple):
    """Of each computation and of the message it needs; of a barrier; what of a message occupies its receiver."""

    durations: Sequence[Any]
    transfers: Sequence[Any]
    barrier: Any
    exposed: float


def _times_of_numbers(program: CompiledSchedule, times: _Times) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    durations, transfers, barrier, exposed = times
    stages, needs = program.stages, program.needs
    clocks = [0.0] * program.schedule.stages
    starts, ends = [0.0] * len(durations), [0.0] * len(durations)
    for place in program.order:
        if place == BARRIER:
            clocks = [max(clocks) + barrier] * len(clocks)
            continue
        stage, need = stages[place], needs[place]
        start = clocks[stage]
        if need >= 0:
            transfer = transfers[place]
            start, arrival = start + exposed * transfer, ends[need] + transfer
            if arrival > start:
                start = arrival
        starts[place] = start
        ends[place] = clocks[stage] = start + durations[place]
    return np.array(starts), np.array(ends)


def _times_of_arrays(
    program: CompiledSchedule, times: _Times, shape: tuple[int, ...], meet: Meet | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As `_times_of_numbers`, which is the fast one, with all its numbers arrays."""
    durations, transfers, barrier, exposed = times
    clocks = np.zeros((program.schedule.stages, *shape))
    starts, ends = np.zeros((len(durations), *shape)), np.zeros((len(durations), *shape))
    for place in program.order:
        if place == BARRIER:
            clocks[:] = clocks.max(axis=0 if meet is None else None) + barrier
            continue
        stage, need, start = program.stages[place], program.needs[place], starts[place]
        start[...] = clocks[stage]
        if need >= 0:
            start += exposed * transfers[place]
            np.maximum(start, ends[need] + transfers[place], out=start)
        if meet is not None:
            start[...] = meet(stage, program.computations[place], start)
        clocks[stage] = ends[place] = start + durations[place]
    return starts, ends
