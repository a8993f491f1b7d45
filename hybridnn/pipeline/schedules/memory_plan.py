"""How many buffers a stage's list of instructions needs, and which one each instruction uses.

Everything is known before the first step: an input lives from its load or its forward pass to the last use of its
weight gradient, activations from the pass that computes them, a weight version until its last reader. Buffers are
given to lifetimes in the order they begin, so that a few are reused all along.
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
    LoadInput,
    LoadTarget,
    Recompute,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule

Part = tuple[int, int, int]
"""Minibatch, microbatch and chunk."""

Lifetime = tuple[int, int]
"""Places in the list where something is first written and last read."""

Key = TypeVar("Key")

# Tuples, because a union would be made anew for each of the many instructions of a large schedule.
_WRITES_INPUT = (LoadInput, LoadTarget, Forward)  # targets lie beside inputs
_USES_INPUT = (Forward, Backward, InputGradient, WeightGradient)


@dataclass(frozen=True)
class MemoryPlan:
    """Buffers of one stage.

    Attributes
    ----------
    input_slots : dict
        Buffer that holds the input of each part.
    activation_slots : dict
        Buffer that each forward pass or recomputation fills; its backward pass reads that of the last one.
    inputs, activations : tuple of int
        Buffers of each kind, per chunk.
    last_readers : dict
        Weight version to the place of its last reader, for the versions that are read after their update.
    peak_live_inputs, peak_live_activations : int
        Most parts whose input, or whose activations, are alive at a time, over all chunks; activations that wait for
        one weight-gradient product over all microbatches count until then.
    peak_weight_versions : int
        Most weight versions alive at a time, the current one included.
    peak_activations_at, peak_versions_at : int
        Places where these peaks are first reached.
    """

    input_slots: dict[Part, int]
    activation_slots: dict[Instruction, int]
    inputs: tuple[int, ...]
    activations: tuple[int, ...]
    last_readers: dict[int, int]
    peak_live_inputs: int
    peak_live_activations: int
    peak_weight_versions: int
    peak_activations_at: int
    peak_versions_at: int


def plan_memory(schedule: Schedule, stage: int) -> MemoryPlan:
    """Plan the buffers of `stage`; its list must have passed the linter's checks of order."""
    order = schedule.orders[stage]
    free, done = _last_uses(order)
    inputs: dict[Part, Lifetime] = {}
    activations: dict[Instruction, Lifetime] = {}
    alive: list[Lifetime] = []
    recomputed = {_part(i) for i in order if isinstance(i, Recompute)}
    for place, instruction in enumerate(order):
        part = _part(instruction)
        if isinstance(instruction, _WRITES_INPUT):
            inputs.setdefault(part, (place, free[part]))
        if isinstance(instruction, Recompute) or (isinstance(instruction, Forward) and part not in recomputed):
            activations[instruction] = (place, free[part])
            alive.append((place, done[part]))
        elif isinstance(instruction, Forward):
            activations[instruction] = (place, place)
            alive.append((place, place))
    input_slots, input_counts = _assign(inputs, lambda part: part[2], schedule.chunks)
    activation_slots, activation_counts = _assign(activations, lambda item: item.chunk, schedule.chunks)
    last_readers, copies = _versions(schedule, stage)
    peak_inputs, _ = _peak(inputs.values())
    peak_activations, peak_activations_at = _peak(alive)
    peak_copies, peak_versions_at = _peak(copies)
    return MemoryPlan(
        input_slots,
        activation_slots,
        input_counts,
        activation_counts,
        last_readers,
        peak_inputs,
        peak_activations,
        1 + peak_copies,
        peak_activations_at,
        peak_versions_at,
    )


def _part(instruction: Instruction) -> Part:
    return instruction.minibatch, instruction.microbatch, instruction.chunk


def _last_uses(order: tuple[Instruction, ...]) -> tuple[dict[Part, int], dict[Part, int]]:
    """Place where each part's buffers become free, and where the last that was computed from it is no longer needed.

    They differ where one product takes the weight gradients of all microbatches: each hands over what that needs.
    Without a backward pass, the forward pass is the last use.
    """
    free: dict[Part, int] = {}
    together: dict[tuple[int, int], int] = {}
    for place, instruction in enumerate(order):
        if isinstance(instruction, WeightGradient) and instruction.microbatch == ALL_MICROBATCHES:
            together[instruction.minibatch, instruction.chunk] = place
        elif isinstance(instruction, _USES_INPUT):
            free[_part(instruction)] = place
    done = {part: together.get((part[0], part[2]), place) for part, place in free.items()}
    return free, done


def _assign(
    lifetimes: dict[Key, Lifetime], chunk_of: Callable[[Key], int], chunks: int
) -> tuple[dict[Key, int], tuple[int, ...]]:
    """Give each lifetime the free buffer of lowest number in its chunk; lifetimes are in the order they begin."""
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
    """Most lifetimes at one place, and the first such place."""
    changes: dict[int, int] = {}
    for start, end in lifetimes:
        changes[start] = changes.get(start, 0) + 1
        changes[end + 1] = changes.get(end + 1, 0) - 1
    alive = peak = peak_at = 0
    for place in sorted(changes):
        alive += changes[place]
        if alive > peak:
            peak, peak_at = alive, place
    return peak, peak_at


def _versions(schedule: Schedule, stage: int) -> tuple[dict[int, int], list[Lifetime]]:
    """Last reader of every version that is read after it was replaced, and how long each such copy is kept."""
    version = 0
    born = {0: 0}
    last_readers: dict[int, int] = {}
    for place, instruction in enumerate(schedule.orders[stage]):
        if isinstance(instruction, Update):
            version += 1
            born[version] = place
            continue
        read = schedule.weights_read(stage, instruction)
        if read is not None and read.version < version:
            last_readers[read.version] = place
    # A replaced version lives on as a copy, from its update to its last reader, beside the current one.
    return last_readers, [(born[version + 1], place) for version, place in last_readers.items()]
