"""Program of one rank: its list of instructions, with all that follows from the list before the first step.

A schedule of an asynchronous method covers all minibatches of an epoch. After a warm-up its list repeats itself, for
later minibatches, until it drains. `make_program` therefore keeps a short list with its repeating part, whose length
does not depend on the number of minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.memory_plan import MemoryPlan, Part, plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule

Kind = type[Instruction]
Kinds = Kind | tuple[Kind, ...]


class MessageDepths(NamedTuple):
    """Most messages in flight per channel of a chunk: received and not used, or computed and not sent."""

    inputs: int
    gradients: int
    outputs_to_send: int
    gradients_to_send: int


@dataclass(frozen=True)
class Loop:
    """The repeating part of a list.

    Attributes
    ----------
    start, stop : int
        The places ``start`` to ``stop - 1``.
    period : int
        Minibatches by which each repetition is shifted.
    """

    start: int
    stop: int
    period: int


class StageProgram:
    """One stage's list of instructions and the facts that follow from it.

    Parameters
    ----------
    schedule : Schedule
    stage : int

    Attributes
    ----------
    order : tuple of Instruction
    loop : Loop or None
        Part of the list that `walk` repeats for more minibatches than the schedule has.
    memory : MemoryPlan
        Buffer of each instruction.
    trains : bool
        Whether there are backward passes.
    splits_backward : bool
        Whether weight gradients come later than input gradients, microbatch by microbatch.
    reducing : frozenset of int
        Places of the instructions that complete a chunk's gradients of a minibatch.
    accumulating : frozenset of int
        Places of those that add to the weight gradients of earlier microbatches.
    first_backward : frozenset of int
        Places of the first backward pass of every minibatch and chunk.
    reads : dict
        By place: the age of the weight version that the pass reads, 0 for the current one, and the number of updates
        predicted ahead.
    kept : dict
        By place of an update: the ages, after it, of the older versions that are read later.
    """

    def __init__(self, schedule: Schedule, stage: int) -> None:
        self.schedule, self.stage = schedule, stage
        self.loop: Loop | None = None
        self.order = order = schedule.orders[stage]
        self.memory: MemoryPlan = plan_memory(schedule, stage)
        self._recomputed: set[Instruction] = set()
        first_weight: dict[tuple[int, int], int] = {}
        first_backward: dict[tuple[int, int], int] = {}
        accumulating: list[int] = []
        completing: dict[tuple[int, int], int] = {}
        reduced: list[int] = []
        for place, item in enumerate(order):
            minibatch_and_chunk = item.minibatch, item.chunk
            if isinstance(item, Recompute):
                self._recomputed.add(Recompute(item.minibatch, item.microbatch, item.chunk))
            if isinstance(item, Backward | InputGradient):
                first_backward.setdefault(minibatch_and_chunk, place)
            if isinstance(item, Backward | WeightGradient):
                if first_weight.setdefault(minibatch_and_chunk, place) != place:
                    accumulating.append(place)
                completing[minibatch_and_chunk] = place
            elif isinstance(item, ReduceGradients):
                reduced += [completing[item.minibatch, chunk] for chunk in range(schedule.chunks)]
        self.reducing, self.accumulating = frozenset(reduced), frozenset(accumulating)
        self.first_backward = frozenset(first_backward.values())
        self.trains = bool(first_backward)
        self.splits_backward = any(isinstance(item, WeightGradient) and item.microbatch >= 0 for item in order)
        self.reads, self.kept = self._weight_versions()

    def _weight_versions(self) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, ...]]]:
        version = 0
        reads: dict[int, tuple[int, int]] = {}
        kept: dict[int, tuple[int, ...]] = {}
        last_readers = self.memory.last_readers
        for place, item in enumerate(self.order):
            if isinstance(item, Update):
                version += 1
                kept[place] = tuple(
                    version - old for old, last in last_readers.items() if old < version and last > place
                )
                continue
            read = self.schedule.weights_read(self.stage, item)
            if read is not None:
                reads[place] = version - read.version, read.ahead
        return reads, kept

    def walk(self, minibatches: int) -> Iterator[tuple[int, int]]:
        """Places of the list for a number of minibatches, each with what to add to its minibatch."""
        extra = minibatches - self.schedule.minibatches
        if self.loop is None:
            if extra:
                raise ValueError(f"a schedule of {self.schedule.minibatches} minibatches cannot run {minibatches}")
            yield from ((place, 0) for place in range(len(self.order)))
            return
        start, stop, period = self.loop.start, self.loop.stop, self.loop.period
        yield from ((place, 0) for place in range(stop))
        for shift in range(period, extra + 1, period):
            yield from ((place, shift) for place in range(start, stop))
        yield from ((place, extra) for place in range(stop, len(self.order)))

    def last_pass(self, item: Instruction) -> Instruction:
        """The pass whose activations a microbatch's backward pass uses: its recomputation, or its forward pass."""
        recompute = Recompute(item.minibatch, item.microbatch, item.chunk)
        return recompute if recompute in self._recomputed else Forward(item.minibatch, item.microbatch, item.chunk)


def make_program(make_schedule: Callable[[int], Schedule], stage: int, stages: int, minibatches: int) -> StageProgram:
    """A stage's program for a number of minibatches, of a length that does not grow with it.

    A list repeats after as many minibatches as are in flight at its stage, or in all stages.

    Parameters
    ----------
    make_schedule : callable
        From a number of minibatches to their schedule.
    stage, stages : int
    minibatches : int
    """
    warm_up = 2 * stages
    shortest = 2 * warm_up + 2 * stages
    if minibatches > shortest:
        for period in (stages - stage, stages):
            program = StageProgram(make_schedule(shortest + (minibatches - shortest) % period), stage)
            program.loop = _find_loop(program, warm_up, shortest - warm_up, period)
            if program.loop is not None:
                return program
    return StageProgram(make_schedule(minibatches), stage)


def _find_loop(program: StageProgram, first: int, last: int, period: int) -> Loop | None:
    """The part of a list from the forward pass of minibatch `first` to that of `period` later, if the list repeats it.

    It does where the list is the same, shifted by `period`, up to the forward pass of minibatch `last`, with weights of
    the same age, and where the buffers in use at the end of the part are those in use at its beginning.
    """
    order = program.order
    start, stop, end = (order.index(Forward(minibatch)) for minibatch in (first, first + period, last))
    length = stop - start
    repeats = all(
        order[place + length] == order[place].of_minibatch(order[place].minibatch + period)
        and program.reads.get(place) == program.reads.get(place + length)
        and program.kept.get(place) == program.kept.get(place + length)
        for place in range(start, end - length)
    )
    same_buffers = _buffers_in_use(program, start, 0) == _buffers_in_use(program, stop, period)
    return Loop(start, stop, period) if repeats and same_buffers else None


def _buffers_in_use(program: StageProgram, place: int, shift: int) -> set[tuple[str, Part, int]]:
    """Buffers that are written before a place and read from there on, with minibatches counted from `shift`."""
    before, after = program.order[:place], program.order[place:]
    microbatches = {_part(item) for item in before} & {_part(item) for item in after}
    slots = [("input", part, slot) for part, slot in program.memory.input_slots.items()]
    slots += [(item.name, _part(item), slot) for item, slot in program.memory.activation_slots.items()]
    return {(what, (part[0] - shift, *part[1:]), slot) for what, part, slot in slots if part in microbatches}


def _part(item: Instruction) -> Part:
    return item.minibatch, item.microbatch, item.chunk


def message_depths(schedule: Schedule, stage: int, chunk: int) -> MessageDepths:
    """Most messages in flight of each channel of a chunk."""

    def most(begins: Kinds, ends: Kinds) -> int:
        alive = peak = 0
        for item in schedule.orders[stage]:
            if item.chunk == chunk:
                alive += isinstance(item, begins) - isinstance(item, ends)
                peak = max(peak, alive)
        return peak

    backward = (Backward, InputGradient)
    return MessageDepths(
        inputs=most(ReceiveActivations, Forward),
        gradients=most(ReceiveGradients, backward),
        outputs_to_send=most(Forward, SendActivations),
        gradients_to_send=most(backward, SendGradients),
    )
