"""Who computes what in which order: the first half of a pipeline method, one function per method.

Each function lists the computations of one stage. K is the number of stages, k = 0 … K-1 the stage, T the number of
minibatches, M that of microbatches and v that of chunks. Messages are placed around the computations afterwards
(`hybridnn.pipeline.schedules.messages`), except for the delayed-gradient methods, whose meaning is where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class ScheduleSize:
    """How large a schedule is.

    Attributes
    ----------
    stages, minibatches, microbatches, chunks : int
        K, T, M and v.
    """

    stages: int
    minibatches: int
    microbatches: int = 1
    chunks: int = 1


Order = Callable[[ScheduleSize, int], list[Instruction]]
"""From (extent, stage) to the stage's computations."""


def gpipe(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """All forward passes of a minibatch, then all its backward passes; with one microbatch, the naive order.

    Huang et al. 2019; for M = 1, Kang 2019, Table 2.
    """
    microbatches = range(extent.microbatches)
    order: list[Instruction] = []
    for t in range(extent.minibatches):
        order += [Forward(t, m) for m in microbatches]
        order += [Backward(t, m) for m in microbatches]
        order += _update(t)
    return order


def one_forward_one_backward(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """Forward and backward passes in turn, and an empty pipeline after every minibatch (1F1B)."""
    microbatches = range(extent.microbatches)
    order: list[Instruction] = []
    for t in range(extent.minibatches):
        forwards = [Forward(t, m) for m in microbatches]
        backwards = [[Backward(t, m)] for m in microbatches]
        order += _in_turn(forwards, backwards, extent.stages - 1 - stage)
        order += _update(t)
    return order


def interleaved(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B over the chunks of a rank: groups of K microbatches pass one chunk after the other (Narayanan et al. 2021).

    M is a multiple of K.
    """
    forward_parts = [
        (first + m, chunk)
        for first in range(0, extent.microbatches, extent.stages)
        for chunk in range(extent.chunks)
        for m in range(extent.stages)
    ]
    backward_parts = [(m, extent.chunks - 1 - chunk) for m, chunk in forward_parts]
    order: list[Instruction] = []
    for t in range(extent.minibatches):
        forwards = [Forward(t, m, chunk) for m, chunk in forward_parts]
        backwards = [[Backward(t, m, chunk)] for m, chunk in backward_parts]
        order += _in_turn(forwards, backwards, interleaved_warm_up(extent, stage))
        order += _update(t)
    return order


def interleaved_warm_up(extent: ScheduleSize, stage: int) -> int:
    """Forward passes of chunks before a stage's first backward pass in the steady state of `interleaved`."""
    return (extent.stages - 1 - stage) * 2 + (extent.chunks - 1) * extent.stages


def zero_bubble_h1(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B whose weight gradients come k microbatches late, where the pipeline would wait (Qi et al. 2024, ZB-H1).

    Stage k then holds the activations of K - k microbatches on their way and of k that wait for their weight gradient.
    """
    microbatches = extent.microbatches
    warm_up = min(extent.stages - stage, microbatches)
    order: list[Instruction] = []
    for t in range(extent.minibatches):
        order += [Forward(t, m) for m in range(warm_up)]
        for m in range(microbatches):
            order.append(InputGradient(t, m))
            if m >= stage:
                order.append(WeightGradient(t, m - stage))
            if warm_up + m < microbatches:
                order.append(Forward(t, warm_up + m))
        order += [WeightGradient(t, m) for m in range(max(0, microbatches - stage), microbatches)]
        order += _update(t)
    return order


def pipedream(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """1F1B over minibatches without ever emptying the pipeline; each backward pass updates (Harlap et al. 2018)."""
    minibatches = range(extent.minibatches)
    forwards = [Forward(t) for t in minibatches]
    backwards = [[Backward(t), *_update(t)] for t in minibatches]
    return _in_turn(forwards, backwards, extent.stages - 1 - stage)


def delayed_gradients(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """One forward pass through all stages, then the backward passes of all stages at once (Kang 2019, Table 3).

    The barriers lock the forward pass: without them the next one would start while backward passes still run.
    """
    return _delayed(extent, stage, recompute=False)


def features_replay(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """As `delayed_gradients`, and each backward pass recomputes its activations (Kang 2019, Table 4).

    The last stage's backward pass follows its forward pass directly, so that nothing would change there.
    """
    return _delayed(extent, stage, recompute=stage < extent.stages - 1)


def evaluation(extent: ScheduleSize, stage: int) -> list[Instruction]:
    """Forward passes alone; several chunks take turns by groups of K minibatches, the last group may be shorter."""
    return [
        Forward(t, 0, chunk)
        for first in range(0, extent.minibatches, extent.stages)
        for chunk in range(extent.chunks)
        for t in range(first, min(first + extent.stages, extent.minibatches))
    ]


def merge_weight_gradients(order: Iterable[Instruction], chunks: int) -> list[Instruction]:
    """Replace the weight gradients of a minibatch's microbatches by one product per chunk, before the reduction."""
    merged: list[Instruction] = []
    for instruction in order:
        if isinstance(instruction, Backward):
            merged.append(InputGradient(instruction.minibatch, instruction.microbatch, instruction.chunk))
            continue
        if isinstance(instruction, ReduceGradients):
            t = instruction.minibatch
            merged += [WeightGradient(t, ALL_MICROBATCHES, chunk) for chunk in reversed(range(chunks))]
        merged.append(instruction)
    return merged


def _update(minibatch: int) -> list[Instruction]:
    return [ReduceGradients(minibatch), Update(minibatch)]


def _in_turn(
    forwards: Sequence[Instruction], backwards: Sequence[Sequence[Instruction]], warm_up: int
) -> list[Instruction]:
    """`warm_up` forward passes, then one forward and one backward in turn, then the backward passes that are left."""
    warm_up = min(warm_up, len(forwards))
    order = list(forwards[:warm_up])
    for number, backward in enumerate(backwards):
        order += forwards[warm_up + number : warm_up + number + 1]
        order += backward
    return order


def _delayed(extent: ScheduleSize, stage: int, *, recompute: bool) -> list[Instruction]:
    """Step by step, with loads, messages and barriers; the gradient for the next step is received as the last thing."""
    delay = extent.stages - 1 - stage
    order: list[Instruction] = []
    for step in range(extent.minibatches + extent.stages - 1):
        if step < extent.minibatches:
            if step:
                order.append(Barrier(step))
            order += _forward_step(step, first=stage == 0, last=delay == 0)
        order.append(Barrier(step))
        t = step - delay
        if 0 <= t < extent.minibatches:
            order += [Recompute(t), Backward(t)] if recompute else [Backward(t)]
            order += [SendGradients(t)] if stage else []
            order += _update(t)
        if delay and 0 <= t + 1 < extent.minibatches:
            order.append(ReceiveGradients(t + 1))
    return order


def _forward_step(minibatch: int, *, first: bool, last: bool) -> list[Instruction]:
    order: list[Instruction] = [LoadInput(minibatch) if first else ReceiveActivations(minibatch)]
    order += [LoadTarget(minibatch)] if last else []
    order.append(Forward(minibatch))
    order += [] if last else [SendActivations(minibatch)]
    return order
