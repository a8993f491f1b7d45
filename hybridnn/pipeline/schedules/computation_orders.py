"""Orders of computations: for each pipeline method, the list of what a stage computes.

Kang 2019 gives four of them as Tables 2 to 5, listed line by line in ``hybridnn_papers/kang_and_chen_tables.py``. The
columns of the tables are *first device*, here stage 0, *middle device k*, here stage k - 1, and *last device*, here
stage K - 1.

Four details differ from the tables. A stage waits for a message where it uses it, not where a table receives it. Where
a table does "the backward pass to update the weight" before it sends the gradient, the gradient is sent first here,
because the previous stage waits for it. The last device receives its input before it loads the target. The loss is
computed at the start of its backward pass, not at the end of its forward pass. The tables' deques of inputs and outputs
are the buffers of `hybridnn.pipeline.schedules.program`; those of gradients are the receive buffers of
`hybridnn.pipeline.execution.point_to_point`.

Each function takes the size of the schedule and a stage. K is the number of stages, k = 0 … K-1 the stage, T the number
of minibatches, M that of microbatches and v that of chunks. Loads and messages are placed among the computations
afterwards (`hybridnn.pipeline.schedules.compiled_schedule`), except for Tables 3 and 4, whose definition includes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
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
from hybridnn.pipeline.schedules.schedule import ScheduleSize


def gpipe(size: ScheduleSize, stage: int) -> list[Instruction]:
    """All forward passes of a minibatch, then all its backward passes (Huang et al. 2019).

    With one microbatch: Kang 2019, Table 2, all columns.
    """
    return _in_turn(size, _parts(size), size.microbatches)


def one_forward_one_backward(size: ScheduleSize, stage: int) -> list[Instruction]:
    """Alternating forward and backward passes, with an empty pipeline after every minibatch (1F1B)."""
    return _in_turn(size, _parts(size), size.stages - 1 - stage)


def eager_1f1b(size: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B with a warm-up twice as long, so that messages travel while a stage computes (Zhuang et al. 2023)."""
    return _in_turn(size, _parts(size), 2 * (size.stages - 1 - stage))


def interleaved(size: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B over the chunks of a stage: groups of K microbatches pass one chunk after the other (Narayanan et al. 2021).

    M is a multiple of K.
    """
    return _in_turn(size, _parts(size, size.stages), interleaved_warm_up(size, stage))


def interleaved_warm_up(size: ScheduleSize, stage: int) -> int:
    """Forward passes of chunks in the warm-up of `interleaved`."""
    return (size.stages - 1 - stage) * 2 + (size.chunks - 1) * size.stages


def looped_bfs(size: ScheduleSize, stage: int) -> list[Instruction]:
    """All microbatches pass one chunk after the other, forwards and then backwards (Lamy-Poirier 2023)."""
    return _in_turn(size, _parts(size), size.microbatches * size.chunks)


def zero_bubble_h1(size: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B whose weight gradients are k microbatches late, which fills the bubble (Qi et al. 2024, ZB-H1).

    Stage k then holds the activations of K - k microbatches in flight and of k that wait for their weight gradient.
    """
    return _in_turn(size, _parts(size), size.stages - 1 - stage, late=stage)


def zero_bubble_h2(size: ScheduleSize, stage: int) -> list[Instruction]:
    """As `zero_bubble_h1` with the warm-up of eager 1F1B, and weight gradients 2k late (Qi et al. 2024, ZB-H2).

    Every stage computes without a pause and holds 2K - 1 microbatches. Stage k ends k passes after the first: there is
    no bubble if it updates at once.
    """
    return _in_turn(size, _parts(size), 2 * (size.stages - 1 - stage), late=2 * stage)


def interleaved_zb(size: ScheduleSize, stage: int) -> list[Instruction]:
    """`interleaved` whose weight gradients are k passes of chunks late (as PyTorch has it, after Qi et al. 2024)."""
    return _in_turn(size, _parts(size, size.stages), interleaved_warm_up(size, stage), late=stage)


def in_word(size: ScheduleSize, stage: int) -> list[Instruction]:
    """The order of the stage's word in `size`, with which it begins for each minibatch anew; without one, of 1F1B.

    F, B and W are the forward pass, input gradient and weight gradient of the next microbatch. Messages keep their
    order, so that every exact order of one chunk per stage is such a word. Without W, backward passes are whole.
    """
    if not size.order:
        return one_forward_one_backward(size, stage)
    word = size.order[stage]
    kinds = {"F": Forward, "B": InputGradient if "W" in word else Backward, "W": WeightGradient}
    order: list[Instruction] = []
    for t in range(size.minibatches):
        order += [kinds[letter](t, word[:place].count(letter)) for place, letter in enumerate(word)]
        order += update_of(t)
    return order


def pipedream(size: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B over minibatches without emptying the pipeline; each backward pass updates (Harlap et al. 2018).

    Kang 2019, Table 5, all columns: in step t device k computes the forward pass of minibatch t and the backward pass
    of minibatch t - K + k, k from 1.
    """
    minibatches = range(size.minibatches)
    forwards = [Forward(t) for t in minibatches]
    backwards = [[Backward(t), *update_of(t)] for t in minibatches]
    return _alternate(forwards, backwards, size.stages - 1 - stage)


def pipedream_2bw(size: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B over the microbatches of all minibatches without emptying the pipeline; one update per minibatch.

    Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training", section 3.1. M is at least K.
    """
    last = size.microbatches - 1
    microbatches = [(t, m) for t in range(size.minibatches) for m in range(size.microbatches)]
    forwards = [Forward(t, m) for t, m in microbatches]
    backwards = [[Backward(t, m), *(update_of(t) if m == last else [])] for t, m in microbatches]
    return _alternate(forwards, backwards, size.stages - 1 - stage)


def delayed_gradients(size: ScheduleSize, stage: int) -> list[Instruction]:
    """In each step a forward pass, and the backward pass of an earlier minibatch, later stages of a later one.

    Kang 2019, Table 3, all columns, which has no barriers. With them a step takes the time of Table 1. Without them the
    next forward pass starts during backward passes, and the computations are in the order of `pipedream`.
    """
    return _delayed(size, stage, recompute=False)


def features_replay(size: ScheduleSize, stage: int) -> list[Instruction]:
    """As `delayed_gradients`, and each backward pass recomputes its activations.

    Kang 2019, Table 4. Its column *last device* recomputes nothing, because the backward pass directly follows the
    forward pass there.
    """
    return _delayed(size, stage, recompute=stage < size.stages - 1)


def merge_weight_gradients(order: Iterable[Instruction], chunks: int) -> list[Instruction]:
    """Replace the weight gradients of a minibatch's microbatches by one product per chunk, before the all-reduce."""
    merged: list[Instruction] = []
    for instruction in order:
        if isinstance(instruction, Backward):
            merged.append(_input_gradient(instruction.minibatch, instruction.microbatch, instruction.chunk))
            continue
        if isinstance(instruction, ReduceGradients):
            t = instruction.minibatch
            merged += [WeightGradient(t, ALL_MICROBATCHES, chunk) for chunk in reversed(range(chunks))]
        merged.append(instruction)
    return merged


_input_gradient = lru_cache(1 << 12)(InputGradient)


def update_of(minibatch: int) -> list[Instruction]:
    """What ends a minibatch."""
    return [ReduceGradients(minibatch), Update(minibatch)]


def _alternate(
    forwards: Sequence[Instruction], backwards: Sequence[Sequence[Instruction]], warm_up: int
) -> list[Instruction]:
    """Warm-up of so many forward passes, then one forward and one backward pass in turn, then the drain."""
    warm_up = min(warm_up, len(forwards))
    order = list(forwards[:warm_up])
    for number, backward in enumerate(backwards):
        order += forwards[warm_up + number : warm_up + number + 1]
        order += backward
    return order


Parts = tuple[tuple[int, int], ...]
"""Microbatches and chunks, in the order of the forward passes; backward passes begin with the last chunk."""


def _parts(size: ScheduleSize, group: int = 0) -> Parts:
    """Groups of consecutive microbatches, by default all of them, each through one chunk after the other."""
    group = group or size.microbatches
    firsts, chunks = range(0, size.microbatches, group), range(size.chunks)
    return tuple((first + m, chunk) for first in firsts for chunk in chunks for m in range(group))


@lru_cache(1 << 8)
def _computed(kind: type[Instruction], minibatch: int, parts: Parts, chunks: int = 0) -> tuple[Instruction, ...]:
    """A pass of each part, backwards where `chunks` is their number; the same objects for all stages."""
    return tuple(kind(minibatch, m, chunks - 1 - chunk if chunks else chunk) for m, chunk in parts)


def _in_turn(size: ScheduleSize, parts: Parts, warm_up: int, late: int | None = None) -> list[Instruction]:
    """After the warm-up a forward and a backward pass in turn; the pipeline is empty after every minibatch.

    Weight gradients are so many passes `late`, and without it parts of the backward passes.
    """
    order: list[Instruction] = []
    kind, wait = (Backward, len(parts)) if late is None else (InputGradient, late)
    for t in range(size.minibatches):
        of_weights = () if late is None else _computed(WeightGradient, t, parts, size.chunks)
        passes = enumerate(_computed(kind, t, parts, size.chunks))
        groups = [(one, *of_weights[max(0, n - wait) : max(0, n - wait + 1)]) for n, one in passes]
        order += _alternate(_computed(Forward, t, parts), groups, warm_up)
        order += of_weights[max(0, len(parts) - wait) :]
        order += update_of(t)
    return order


def _delayed(size: ScheduleSize, stage: int, *, recompute: bool) -> list[Instruction]:
    """The steps of Kang 2019, Tables 3 and 4, with loads and messages, and with the barriers that Table 1 needs."""
    is_first, is_last = stage == 0, stage == size.stages - 1
    order: list[Instruction] = []
    for step in range(size.minibatches + size.stages - 1):
        # "custom forward pass"
        if step < size.minibatches:
            order += [Barrier(step)] if step and size.barriers else []
            order += [] if is_first else [ReceiveActivations(step)]
            order += [Load(step)] if is_first or is_last else []
            order.append(Forward(step))
            order += [] if is_last else [SendActivations(step)]
        order += [Barrier(step)] if size.barriers else []
        # "custom backward pass"
        t = step - (size.stages - 1 - stage)
        if 0 <= t < size.minibatches:
            order += [Recompute(t)] if recompute else []
            order.append(Backward(t))
            order += [] if is_first else [SendGradients(t)]
            order += update_of(t)
        # "receive gradient from next device": for the next step
        if not is_last and 0 <= t + 1 < size.minibatches:
            order.append(ReceiveGradients(t + 1))
    return order
