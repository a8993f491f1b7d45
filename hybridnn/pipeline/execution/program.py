"""What the executor wants to know about a stage's list before it runs it."""

from __future__ import annotations

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
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule

Kind = type[Instruction]
Kinds = Kind | tuple[Kind, ...]


class MessageDepths(NamedTuple):
    """Most messages of each channel of a chunk that were asked for and not used, or computed and not sent."""

    inputs: int
    gradients: int
    outputs_to_send: int
    gradients_to_send: int


class StageProgram:
    """Facts about one stage's list.

    Parameters
    ----------
    schedule : Schedule
    stage : int

    Attributes
    ----------
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
    """

    def __init__(self, schedule: Schedule, stage: int) -> None:
        order = schedule.orders[stage]
        self._of_kind: dict[tuple[Kind, int], list[Instruction]] = {}
        self._recomputed: set[Instruction] = set()
        first_weight: dict[tuple[int, int], int] = {}
        first_backward: dict[tuple[int, int], int] = {}
        accumulating: list[int] = []
        completing: dict[tuple[int, int], int] = {}
        reduced: list[int] = []
        for place, item in enumerate(order):
            self._of_kind.setdefault((type(item), item.chunk), []).append(item)
            whole = item.minibatch, item.chunk
            if isinstance(item, Recompute):
                self._recomputed.add(Recompute(item.minibatch, item.microbatch, item.chunk))
            if isinstance(item, Backward | InputGradient):
                first_backward.setdefault(whole, place)
            if isinstance(item, Backward | WeightGradient):
                if first_weight.setdefault(whole, place) != place:
                    accumulating.append(place)
                completing[whole] = place
            elif isinstance(item, ReduceGradients):
                reduced += [completing[item.minibatch, chunk] for chunk in range(schedule.chunks)]
        self.reducing, self.accumulating = frozenset(reduced), frozenset(accumulating)
        self.first_backward = frozenset(first_backward.values())
        self.trains = bool(first_backward)
        self.splits_backward = any(isinstance(item, WeightGradient) and item.microbatch >= 0 for item in order)

    def of_kind(self, kind: Kind, chunk: int) -> list[Instruction]:
        """The instructions of one kind, in order."""
        return self._of_kind.get((kind, chunk), [])

    def last_pass(self, item: Instruction) -> Instruction:
        """The pass whose activations a microbatch's backward pass uses: its recomputation, or its forward pass."""
        again = Recompute(item.minibatch, item.microbatch, item.chunk)
        return again if again in self._recomputed else Forward(item.minibatch, item.microbatch, item.chunk)


def message_depths(schedule: Schedule, stage: int, chunk: int) -> MessageDepths:
    """How many messages of each channel of a chunk are under way at most."""

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
