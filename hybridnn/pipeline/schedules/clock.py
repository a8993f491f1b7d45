"""The clock of a schedule: when every computation runs, from what computations, messages and barriers cost.

A schedule is compiled once into an order in which every computation comes after those it depends on, so that a run is
one loop. Times are numbers, or arrays with one element per replica of the pipeline or per candidate of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, count, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, COMPUTATIONS, Barrier, Instruction
from hybridnn.pipeline.schedules.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError

BARRIER = -1
"""Marks a barrier of all stages in `CompiledSchedule.order`."""

NO_NEED = -1
"""Marks a computation that needs no message in `CompiledSchedule.needs`."""

COMPUTING = frozenset(COMPUTATIONS)


# -- compiling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompiledSchedule:
    """The computations of a schedule, numbered, and an order in which they can run.

    Attributes
    ----------
    schedule : Schedule
    computations : tuple of Instruction
        Those of stage 0 in the order of its list, then those of stage 1, and so on.
    stages : tuple of int
        Stage of each computation.
    offsets : tuple of int
        Index of each stage's first computation, and the number of all.
    needs : tuple of int
        Index of the computation whose message each computation needs, or `NO_NEED`.
    messages : tuple of Message or None
        That message.
    order : tuple of int
        All indices, each after the one it needs and after the previous one of its stage; `BARRIER` where all stages
        meet.
    """

    schedule: Schedule
    computations: tuple[Instruction, ...]
    stages: tuple[int, ...]
    offsets: tuple[int, ...]
    needs: tuple[int, ...]
    messages: tuple[Message | None, ...]
    order: tuple[int, ...]

    def of(self, stage: int) -> slice:
        """Indices of a stage's computations."""
        return slice(self.offsets[stage], self.offsets[stage + 1])


def compile_schedule(schedule: Schedule) -> CompiledSchedule:
    """Find an order in which all computations of a schedule can run; its loads and messages are ignored.

    Raises
    ------
    ScheduleError
        If a stage waits for something that never happens.
    """
    computations = [[item for item in order if type(item) in COMPUTING] for order in schedule.orders]
    offsets = tuple(accumulate(map(len, computations), initial=0))
    flow = MessageFlow(schedule)
    makers: dict[Message, int] = {}
    messages: list[Message | None] = []
    for stage, items in enumerate(computations):
        for index, computation in enumerate(items, offsets[stage]):
            made = flow.made(stage, computation)
            if made is not None:
                makers[made] = index
            messages.append(flow.needed(stage, computation))
    never = offsets[-1]
    needs = tuple(NO_NEED if message is None else makers.get(message, never) for message in messages)
    return CompiledSchedule(
        schedule,
        tuple(chain.from_iterable(computations)),
        tuple(stage for stage, items in enumerate(computations) for _ in items),
        offsets,
        needs,
        tuple(messages),
        _order(schedule, offsets, needs),
    )


def _order(schedule: Schedule, offsets: Sequence[int], needs: Sequence[int]) -> tuple[int, ...]:
    """Advance a stage until it needs a missing message, then the stages that its messages release."""
    lists = [_indices(instructions, first) for instructions, first in zip(schedule.orders, offsets, strict=False)]
    reached = [0] * schedule.stages
    is_done = bytearray(offsets[-1] + 1)
    waiting: dict[int, int] = {}
    at_barrier: list[int] = []
    order: list[int] = []
    runnable = list(range(schedule.stages))
    while runnable:
        stage = runnable.pop()
        indices, position = lists[stage], reached[stage]
        while position < len(indices):
            index = indices[position]
            if index == BARRIER:
                at_barrier.append(stage)
                break
            need = needs[index]
            if need >= 0 and not is_done[need]:
                waiting[need] = stage
                break
            order.append(index)
            is_done[index] = True
            position += 1
            if index in waiting:
                runnable.append(waiting.pop(index))
        reached[stage] = position
        if len(at_barrier) == schedule.stages:
            order.append(BARRIER)
            reached = [number + 1 for number in reached]
            runnable += at_barrier
            at_barrier.clear()
    for stage, (indices, done) in enumerate(zip(lists, reached, strict=True)):
        if done < len(indices):
            raise _blocked(schedule, stage, done)
    return tuple(order)


def _indices(instructions: Sequence[Instruction], first: int) -> list[int]:
    """Indices of a stage's computations, from `first` on, and its barriers."""
    index = count(first)
    kinds = (type(instruction) for instruction in instructions)
    return [BARRIER if kind is Barrier else next(index) for kind in kinds if kind is Barrier or kind in COMPUTING]


def _blocked(schedule: Schedule, stage: int, done: int) -> ScheduleError:
    """The error of a stage that stops after so many computations and barriers."""
    kept = (
        (position, instruction)
        for position, instruction in enumerate(schedule.orders[stage])
        if isinstance(instruction, (Barrier, *COMPUTATIONS))
    )
    position, instruction = next(islice(kept, done, None))
    return ScheduleError(stage, position, instruction, "waits for something that never happens")


# -- costs -----------------------------------------------------------------------------------------------------------


Seconds = float | NDArray[np.float64]
"""A time, or one per replica or candidate."""

Meet = Callable[[int, Instruction, NDArray[np.float64]], NDArray[np.float64]]
"""From (stage, computation, times at which the replicas could start it) to the times at which they start it."""


class InstructionCosts(Protocol):
    """Costs of the instructions of a schedule."""

    @property
    def hidden(self) -> float:
        """Fraction of a message's time that overlaps with the receiver's computation, from 0 to 1."""

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Time of a computation."""

    def message(self, message: Message) -> Seconds:
        """Time from the end of the computation that produces a message to its arrival."""

    def barrier_seconds(self) -> Seconds:
        """Time of a barrier, after its last stage has arrived."""


@dataclass(frozen=True)
class ConstantCosts:
    """Costs that are the same on all stages; messages are hidden, barriers are free.

    Attributes
    ----------
    durations : mapping
        From the kind of a computation to its time; other kinds take none.
    message_seconds : float
    microbatches : int
        Factor of a weight gradient that is one product over all microbatches.
    hidden : float
    """

    durations: Mapping[type[Instruction], float]
    message_seconds: float = 0.0
    microbatches: int = 1
    hidden: float = 1.0

    def duration(self, stage: int, instruction: Instruction) -> float:
        """Time of a computation."""
        factor = self.microbatches if instruction.microbatch == ALL_MICROBATCHES else 1
        return self.durations.get(type(instruction), 0.0) * factor

    def message(self, message: Message) -> float:
        """Time of any message."""
        return self.message_seconds

    def barrier_seconds(self) -> float:
        """No time."""
        return 0.0


# -- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleTimes:
    """When the computations of a program run.

    Where costs are arrays, the rows of all arrays have their shape.

    Attributes
    ----------
    program : CompiledSchedule
    starts, ends : NDArray of float64
        A row per computation.
    receiving : NDArray of float64
        A row per computation: time directly before its start in which a message occupies the stage, the part of it
        that is not hidden.
    barriers : NDArray of float64
        A row per barrier: its end.
    """

    program: CompiledSchedule
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    receiving: NDArray[np.float64]
    barriers: NDArray[np.float64]

    @cached_property
    def made(self) -> dict[Message, float]:
        """When the content of each message is computed."""
        ends = self.ends.tolist()
        pairs = zip(self.program.messages, self.program.needs, strict=True)
        return {message: ends[need] for message, need in pairs if message is not None}

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
    """Time a compiled schedule.

    A computation that needs a message produced at time m, with transfer time t, starts at ``max(free + (1 - hidden) t,
    m + t)``, where ``free`` is the end of the previous computation of its stage.

    Parameters
    ----------
    program : CompiledSchedule
    costs : InstructionCosts
        Numbers, or arrays of one shape.
    meet : callable, optional
        Start times of a computation's replicas from the earliest ones possible. With it, all replicas meet at a
        barrier; without it, the elements of an array are independent.
    """
    durations = [costs.duration(stage, item) for stage, item in zip(program.stages, program.computations, strict=True)]
    transfers = [0.0 if message is None else costs.message(message) for message in program.messages]
    barrier = costs.barrier_seconds() if BARRIER in program.order else 0.0
    shape = np.broadcast_shapes(*{getattr(seconds, "shape", ()) for seconds in (*durations, *transfers, barrier)})
    table = _CostTable(durations, transfers, barrier, 1.0 - costs.hidden)
    times = _times_of_arrays(program, table, shape, meet) if shape else _times_of_numbers(program, table)
    starts, ends, barriers = map(np.asarray, times)
    rows = [np.broadcast_to(transfer, shape) for transfer in transfers] if shape else transfers
    return ScheduleTimes(program, starts, ends, table.exposed * np.array(rows), barriers)


class _CostTable(NamedTuple):
    """Time of each computation, of the message it needs and of a barrier; fraction of a message that is not hidden."""

    durations: Sequence[Any]
    transfers: Sequence[Any]
    barrier: Any
    exposed: float


_Times = tuple[Any, Any, list[Any]]
"""Starts and ends of the computations, ends of the barriers."""


def _times_of_numbers(program: CompiledSchedule, table: _CostTable) -> _Times:
    durations, transfers, barrier, exposed = table
    stages, needs = program.stages, program.needs
    clocks = [0.0] * program.schedule.stages
    starts, ends, barriers = [0.0] * len(durations), [0.0] * len(durations), []
    for index in program.order:
        if index == BARRIER:
            barriers.append(max(clocks) + barrier)
            clocks = [barriers[-1]] * len(clocks)
            continue
        stage, need = stages[index], needs[index]
        start = clocks[stage]
        if need >= 0:
            transfer = transfers[index]
            start, arrival = start + exposed * transfer, ends[need] + transfer
            if arrival > start:
                start = arrival
        starts[index] = start
        ends[index] = clocks[stage] = start + durations[index]
    return starts, ends, barriers


def _times_of_arrays(program: CompiledSchedule, table: _CostTable, shape: tuple[int, ...], meet: Meet | None) -> _Times:
    """As `_times_of_numbers`, which is faster, with arrays in place of numbers."""
    durations, transfers, barrier, exposed = table
    clocks = np.zeros((program.schedule.stages, *shape))
    starts, ends = np.zeros((len(durations), *shape)), np.zeros((len(durations), *shape))
    barriers = []
    for index in program.order:
        if index == BARRIER:
            clocks[:] = clocks.max(axis=0 if meet is None else None) + barrier
            barriers.append(clocks[0].copy())
            continue
        stage, need, start = program.stages[index], program.needs[index], starts[index]
        start[...] = clocks[stage]
        if need >= 0:
            start += exposed * transfers[index]
            np.maximum(start, ends[need] + transfers[index], out=start)
        if meet is not None:
            start[...] = meet(stage, program.computations[index], start)
        clocks[stage] = ends[index] = start + durations[index]
    return starts, ends, barriers
