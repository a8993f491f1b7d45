"""Memory plan of a stage: how many buffers its list of instructions needs, and which one each instruction uses.

The plan follows from the schedule: an input lives from its load or its forward pass to the last use of its weight
gradient, activations from the pass that computes them, a weight version until its last reader. Buffers are assigned
to lifetimes in the order in which these begin, so that a few buffers are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeVar

from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Load,
    Recompute,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule

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

    input_slots: dict[Part, int]  # buffer of the input of each (minibatch, microbatch, chunk)
    # Buffer that each forward pass or recomputation fills; its backward pass reads that of the last one.
    activation_slots: dict[Instruction, int]
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
    inputs, activations, alive = _inputs(order, free), _activations(order, free), _activations(order, done)
    input_slots, input_counts = _assign(inputs, lambda part: part[2], schedule.chunks)
    activation_slots, activation_counts = _assign(activations, lambda item: item.chunk, schedule.chunks)
    last_readers, stashes = _versions(schedule, stage)
    peak_inputs, _ = _peak(inputs.values())
    peak_activations, peak_activations_at = _peak(alive.values())
    peak_stashes, peak_versions_at = _peak(stashes)
    return MemoryPlan(
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


def activation_lifetimes(order: tuple[Instruction, ...]) -> dict[Instruction, Lifetime]:
    """Lifetime of the activations of every forward pass and recomputation of a stage, as the peaks count them."""
    _, done = _last_uses(order)
    return _activations(order, done)


def input_lifetimes(order: tuple[Instruction, ...]) -> dict[Part, Lifetime]:
    """Lifetime of the input of every microbatch and chunk of a stage."""
    free, _ = _last_uses(order)
    return _inputs(order, free)


def _inputs(order: tuple[Instruction, ...], last_uses: dict[Part, int]) -> dict[Part, Lifetime]:
    inputs: dict[Part, Lifetime] = {}
    for position, instruction in enumerate(order):
        if isinstance(instruction, _WRITES_INPUT):
            inputs.setdefault(instruction.part, (position, last_uses[instruction.part]))
    return inputs


def _activations(order: tuple[Instruction, ...], last_uses: dict[Part, int]) -> dict[Instruction, Lifetime]:
    """Activations live until the last use of their part, those that are recomputed only during the forward pass."""
    recomputed = {item.part for item in order if isinstance(item, Recompute)}
    return {
        item: (at, at if isinstance(item, Forward) and item.part in recomputed else last_uses[item.part])
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
