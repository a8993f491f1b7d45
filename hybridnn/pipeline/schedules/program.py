"""Program of one stage: its list of instructions with precomputed properties of every position, and its buffers.

The schedule of an asynchronous method covers all minibatches of an epoch. In its steady state the list repeats itself
with later minibatches. `make_program` therefore stores a short list with a loop, whose length does not depend on the
number of minibatches.

The buffers follow from the schedule (`plan_memory`): an input lives from its load or its forward pass to the last use
of its weight gradient, activations from the pass that computes them, a weight version until its last reader. Buffers
are assigned to lifetimes in the order in which these begin, so that a few buffers are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, gcd
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    QUEUES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Kinds,
    Load,
    Recompute,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule

if TYPE_CHECKING:
    from hybridnn.parallel.workspace import MicrobatchBuffers, StageRole


class MessageDepths(NamedTuple):
    """Largest number of messages in flight per channel of a chunk: received and not used, or computed and not sent."""

    input_receiver: int
    gradient_receiver: int
    output_sender: int
    gradient_sender: int


@dataclass(frozen=True)
class Loop:
    """The part of a list, ``start`` to ``stop - 1``, that repeats itself, each time shifted by `period` minibatches."""

    start: int
    stop: int
    period: int


class StageProgram:
    """One stage's list of instructions with the properties that the executor needs; most of them are by position."""

    def __init__(self, schedule: Schedule, stage: int) -> None:
        self.schedule, self.stage = schedule, stage
        self.loop: Loop | None = None  # what `walk` repeats for more minibatches than the schedule has
        self.order = order = schedule.orders[stage]
        self.memory: MemoryPlan = plan_memory(schedule, stage)
        first_backward: dict[tuple[int, int], int] = {}
        accumulating: list[int] = []
        completing: dict[tuple[int, int], int] = {}
        reduced: list[int] = []
        for position, item in enumerate(order):
            minibatch_and_chunk = item.minibatch, item.chunk
            if isinstance(item, Backward | InputGradient):
                first_backward.setdefault(minibatch_and_chunk, position)
            if isinstance(item, Backward | WeightGradient):
                if minibatch_and_chunk in completing:
                    accumulating.append(position)
                completing[minibatch_and_chunk] = position
            elif isinstance(item, ReduceGradients):
                reduced += [completing[item.minibatch, chunk] for chunk in range(schedule.chunks)]
        self.reducing = frozenset(reduced)  # completes a chunk's gradients of a minibatch
        self.accumulating = frozenset(accumulating)  # adds to the weight gradients of earlier microbatches
        self.first_backward = frozenset(first_backward.values())  # of a minibatch and chunk
        self.trains = bool(first_backward)
        # Whether weight gradients are separate instructions per microbatch.
        self.splits_backward = any(isinstance(item, WeightGradient) and item.microbatch >= 0 for item in order)
        self.reads: dict[int, tuple[int, int]] = {}  # by passes: age of a version, 0 for the current, and updates ahead
        self.kept: dict[int, tuple[int, ...]] = {}  # ages, after the update, of the older versions that are read later
        self.delays: dict[int, int] = {}  # of updates: updates since the version that the forward pass read
        self._find_versions()

    def _find_versions(self) -> None:
        """Find the weights that passes read, the older versions that updates keep, and the delays of updates."""
        policy, stages = self.schedule.policy, self.schedule.stages
        last_readers = self.memory.last_readers.items()
        for position, item, updates, read in self.schedule.versions(self.stage):
            if isinstance(item, Update):
                version = updates + 1
                self.kept[position] = tuple(
                    version - old for old, last in last_readers if old < version and last > position
                )
                self.delays[position] = updates - policy.forward(self.stage, stages, item.minibatch).version
            elif read is not None:
                self.reads[position] = updates - read.version, read.ahead

    def walk(self, minibatches: int) -> Iterator[tuple[int, int]]:
        """Positions in execution order for a number of minibatches, each with an offset to its minibatch number."""
        extra = minibatches - self.schedule.minibatches
        if self.loop is None:
            if extra:
                raise ValueError(f"a schedule of {self.schedule.minibatches} minibatches cannot run {minibatches}")
            yield from ((position, 0) for position in range(len(self.order)))
            return
        start, stop, period = self.loop.start, self.loop.stop, self.loop.period
        yield from ((position, 0) for position in range(stop))
        for shift in range(period, extra + 1, period):
            yield from ((position, shift) for position in range(start, stop))
        yield from ((position, extra) for position in range(stop, len(self.order)))

    def last_pass(self, item: Instruction) -> Instruction:
        """The pass that computes the activations for a microbatch's backward pass: recomputation or forward pass."""
        recompute = Recompute(*item.part)
        return recompute if recompute in self.memory.activation_slots else Forward(*item.part)


def make_program(make_schedule: Callable[[int], Schedule], stage: int, stages: int, minibatches: int) -> StageProgram:
    """Make a stage's program for a number of minibatches, with a bounded number of instructions.

    `make_schedule` returns the schedule of a number of minibatches. The period of the loop is that after which the
    microbatches in flight at the stage, or in all stages, are at the same buffers again.
    """
    schedule = make_schedule(1)
    if minibatches == 1:
        return StageProgram(schedule, stage)
    depth = ceil(stages / schedule.microbatches)  # minibatches in flight
    warm_up = 2 * depth
    for in_flight in (stages - stage, stages):
        period = in_flight // gcd(in_flight, schedule.microbatches)
        shortest = 2 * (warm_up + max(depth, period))
        if minibatches > shortest:
            program = StageProgram(make_schedule(shortest + (minibatches - shortest) % period), stage)
            program.loop = _find_loop(program, warm_up, shortest - warm_up, period)
            if program.loop is not None:
                return program
    return StageProgram(make_schedule(minibatches), stage)


def _find_loop(program: StageProgram, first: int, last: int, period: int) -> Loop | None:
    """The loop from the forward pass of minibatch `first` to that of ``first + period``; None if there is none.

    Conditions of a loop: up to the forward pass of minibatch `last`, the list equals itself shifted by `period`, with
    the same ages of the weights, and the same buffers are in use at the start and at the end of the loop.
    """
    order = program.order
    start, stop, end = (order.index(Forward(minibatch)) for minibatch in (first, first + period, last))
    length = stop - start
    repeats = all(
        order[position + length] == order[position].of_minibatch(order[position].minibatch + period)
        and program.reads.get(position) == program.reads.get(position + length)
        and program.kept.get(position) == program.kept.get(position + length)
        and program.delays.get(position) == program.delays.get(position + length)
        for position in range(start, end - length)
    )
    same_buffers = _buffers_in_use(program, start, 0) == _buffers_in_use(program, stop, period)
    return Loop(start, stop, period) if repeats and same_buffers else None


def _buffers_in_use(program: StageProgram, position: int, shift: int) -> set[tuple[str, Part, int]]:
    """Buffers written before a position and read from there on, with minibatch numbers relative to `shift`."""
    before, after = program.order[:position], program.order[position:]
    # With all chunks: one reads the buffer of the one before where this hands its output over.
    microbatches = {item.part[:2] for item in before} & {item.part[:2] for item in after}
    slots = [("input", part, slot) for part, slot in program.memory.input_slots.items()]
    slots += [(item.name, item.part, slot) for item, slot in program.memory.activation_slots.items()]
    return {(kind, (part[0] - shift, *part[1:]), slot) for kind, part, slot in slots if part[:2] in microbatches}


def message_depths(schedule: Schedule, stage: int, chunk: int) -> MessageDepths:
    """Largest number of messages in flight of each channel of a chunk."""

    def peak_in_flight(begins: Kinds, ends: Kinds) -> int:
        in_flight = peak = 0
        for item in schedule.orders[stage]:
            if item.chunk == chunk:
                in_flight += isinstance(item, begins) - isinstance(item, ends)
                peak = max(peak, in_flight)
        return peak

    return MessageDepths(**{name: peak_in_flight(begins, ends) for name, (begins, ends) in QUEUES.items()})


# -- memory plan -------------------------------------------------------------------------------------------------------


Part = tuple[int, int, int]  # minibatch, microbatch and chunk
Lifetime = tuple[int, int]  # positions in the list of the first write and of the last read

Key = TypeVar("Key")

# Tuples, because a union would be made anew for each of the many instructions of a large schedule.
_WRITES_INPUT = (Load, Forward)  # targets lie beside inputs
_USES_INPUT = (Forward, Backward, InputGradient, WeightGradient)


@dataclass(frozen=True)
class MemoryPlan:
    """Buffers of one stage.

    The peaks are the most microbatches whose input, or whose activations, are alive at a time, over all chunks.
    Activations that wait for one weight-gradient product over all microbatches count until then.
    """

    input_lifetimes: dict[Part, Lifetime]  # but of chunks whose input is the output of the chunk before
    activation_lifetimes: dict[Instruction, Lifetime]  # of each forward pass or recomputation
    # buffer of the input of each (minibatch, microbatch, chunk), or of the activations of the chunk before
    input_slots: dict[Part, int]
    activation_slots: dict[Instruction, int]  # buffer that a pass fills; the backward pass reads that of the last one
    inputs: tuple[int, ...]  # number of buffers, per chunk
    activations: tuple[int, ...]
    last_readers: dict[int, int]  # position of the last reader of each weight version that is read after its update
    peak_live_inputs: int
    peak_live_activations: int
    peak_weight_versions: int  # most weight versions alive at a time, the current one included
    peak_activations_at: int  # position where the peak is first reached
    peak_versions_at: int


def plan_memory(schedule: Schedule, stage: int) -> MemoryPlan:
    """Plan the buffers of a stage, whose list must have passed the linter's checks of order."""
    order = schedule.orders[stage]
    free, done = _last_uses(order)
    chunks = range(schedule.chunks)
    taken = frozenset(c for c in chunks if not (schedule.is_first(stage, c) or schedule.receives(stage, c)))
    inputs = {part: lifetime for part, lifetime in _inputs(order, free).items() if part[2] not in taken}
    activations, alive = (_activations(order, uses, taken) for uses in (free, done))
    input_slots, input_counts = _assign(inputs, lambda part: part[2], schedule.chunks)
    activation_slots, activation_counts = _assign(activations, lambda item: item.chunk, schedule.chunks)
    parts = (item.part for item in order if isinstance(item, Forward) and item.chunk in taken)
    input_slots |= {(t, m, chunk): activation_slots[Forward(t, m, chunk - 1)] for t, m, chunk in parts}
    last_readers, stashes = _versions(schedule, stage)
    peak_inputs, _ = _peak(inputs.values())
    peak_activations, peak_activations_at = _peak(alive.values())
    peak_stashes, peak_versions_at = _peak(stashes)
    return MemoryPlan(
        inputs,
        alive,
        input_slots,
        activation_slots,
        input_counts,
        activation_counts,
        last_readers,
        peak_inputs,
        peak_activations,
        1 + peak_stashes,
        peak_activations_at,
        peak_versions_at,
    )


def _inputs(order: tuple[Instruction, ...], last_uses: dict[Part, int]) -> dict[Part, Lifetime]:
    inputs: dict[Part, Lifetime] = {}
    for position, instruction in enumerate(order):
        if isinstance(instruction, _WRITES_INPUT):
            inputs.setdefault(instruction.part, (position, last_uses[instruction.part]))
    return inputs


def _activations(
    order: tuple[Instruction, ...], last_uses: dict[Part, int], taken: frozenset[int]
) -> dict[Instruction, Lifetime]:
    """Activations live until the last use of their part, those that are recomputed only during the forward pass.

    The output is the input of the next chunk if that is one of those `taken` over.
    """
    recomputed = {item.part for item in order if isinstance(item, Recompute)}
    also = {(t, m, chunk - 1): at for (t, m, chunk), at in last_uses.items() if chunk in taken}
    ends = {part: max(at, also.get(part, at)) for part, at in last_uses.items()}
    return {
        item: (at, at if isinstance(item, Forward) and item.part in recomputed else ends[item.part])
        for at, item in enumerate(order)
        if isinstance(item, (Forward, Recompute))
    }


def _last_uses(order: tuple[Instruction, ...]) -> tuple[dict[Part, int], dict[Part, int]]:
    """Positions where the buffers of each part become free, and where its weight gradient has been computed.

    They differ where one product computes the weight gradients of all microbatches, from copies of what it needs.
    Without a backward pass, the forward pass is the last use.
    """
    free: dict[Part, int] = {}
    merged: dict[tuple[int, int], int] = {}
    for position, instruction in enumerate(order):
        if isinstance(instruction, WeightGradient) and instruction.microbatch == ALL_MICROBATCHES:
            merged[instruction.minibatch, instruction.chunk] = position
        elif isinstance(instruction, _USES_INPUT):
            free[instruction.part] = position
    done = {part: merged.get((part[0], part[2]), position) for part, position in free.items()}
    return free, done


def _assign(
    lifetimes: dict[Key, Lifetime], chunk_of: Callable[[Key], int], chunks: int
) -> tuple[dict[Key, int], tuple[int, ...]]:
    """Assign to each lifetime the free buffer of lowest number in its chunk; lifetimes are in the order they begin."""
    slots: dict[Key, int] = {}
    counts = [0] * chunks
    free: list[list[int]] = [[] for _ in range(chunks)]
    taken: list[list[tuple[int, int]]] = [[] for _ in range(chunks)]
    for key, (start, end) in lifetimes.items():
        chunk = chunk_of(key)
        while taken[chunk] and taken[chunk][0][0] < start:
            heappush(free[chunk], heappop(taken[chunk])[1])
        if free[chunk]:
            slot = heappop(free[chunk])
        else:
            slot = counts[chunk]
            counts[chunk] += 1
        slots[key] = slot
        heappush(taken[chunk], (end, slot))
    return slots, tuple(counts)


def _peak(lifetimes: Iterable[Lifetime]) -> tuple[int, int]:
    """Most lifetimes at one position, and the first such position."""
    changes: dict[int, int] = {}
    for start, end in lifetimes:
        changes[start] = changes.get(start, 0) + 1
        changes[end + 1] = changes.get(end + 1, 0) - 1
    alive = peak = peak_at = 0
    for position in sorted(changes):
        alive += changes[position]
        if alive > peak:
            peak, peak_at = alive, position
    return peak, peak_at


def _versions(schedule: Schedule, stage: int) -> tuple[dict[int, int], list[Lifetime]]:
    """Last reader of every version that is read after its update, and the lifetimes of these stashed versions."""
    born = {0: 0}
    last_readers: dict[int, int] = {}
    for position, instruction, updates, read in schedule.versions(stage):
        if isinstance(instruction, Update):
            born[updates + 1] = position
        elif read is not None and read.version < updates:
            if read.ahead:
                reason = f"predicts from version {read.version}, but predictions start from the newest, {updates}"
                raise schedule.error(stage, position, reason)
            last_readers[read.version] = position
    return last_readers, [(born[version + 1], position) for version, position in last_readers.items()]


# -- plan of a chunk ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkPlan:
    """What the schedules of training and of evaluation require of a chunk."""

    index: int  # index of the chunk on its rank
    role: StageRole
    before: tuple[int, int] | None  # stage and chunk of the virtual stage before, if that is on another stage
    after: tuple[int, int] | None
    microbatches: int
    buffers: MicrobatchBuffers
    depths: MessageDepths
    weight_versions: int
    predicts: bool  # whether passes read predicted weights
    concatenates: bool  # whether microbatches are concatenated for one weight-gradient product
    accumulates: bool  # whether the gradients of microbatches are added


def plan_chunk(schedules: tuple[Schedule, Schedule], stage: int, index: int) -> ChunkPlan:
    """Plan a chunk of a stage for schedules of training and of evaluation with the largest memory."""
    from hybridnn.parallel.workspace import MicrobatchBuffers, StageRole  # drawings of schedules need no NumPy

    schedule = schedules[0]
    program = StageProgram(schedule, stage)
    memory = program.memory
    hands_over = not (schedule.is_last(stage, index) or schedule.sends(stage, index))
    return ChunkPlan(
        index,
        StageRole(schedule.is_first(stage, index), schedule.is_last(stage, index)),
        schedule.before(stage, index) if schedule.receives(stage, index) else None,
        schedule.after(stage, index) if schedule.sends(stage, index) else None,
        schedule.microbatches,
        MicrobatchBuffers(memory.inputs[index], memory.activations[index], program.splits_backward, hands_over),
        MessageDepths(*map(max, *(message_depths(item, stage, index) for item in schedules))),
        memory.peak_weight_versions,
        predicts=any(ahead for _, ahead in program.reads.values()),
        concatenates=any(
            isinstance(item, WeightGradient) and item.microbatch == ALL_MICROBATCHES for item in program.order
        ),
        accumulates=bool(program.accumulating),
    )
