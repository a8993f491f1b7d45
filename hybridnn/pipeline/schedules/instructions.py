"""What a stage can be told to do: one small dataclass per instruction, named in the imperative.

A schedule is a list of these for every stage. Each names the minibatch and, where a minibatch is cut, the microbatch it
is about; `chunk` is the part of the layers it means where a rank owns several (interleaved schedules).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

ALL_MICROBATCHES = -1
"""Microbatch of a `WeightGradient` that is one product over all microbatches of its minibatch."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One thing to do.

    Attributes
    ----------
    minibatch : int
        Number within the epoch, from 0.
    microbatch : int
        Number within the minibatch, from 0.
    chunk : int
        Part of the rank's layers; virtual stage ``chunk * stages + stage``.
    """

    minibatch: int
    microbatch: int = 0
    chunk: int = 0

    name: ClassVar[str] = ""

    def __str__(self) -> str:
        part = "" if self.microbatch <= 0 else f".{self.microbatch}"
        chunk = f" of chunk {self.chunk}" if self.chunk else ""
        return f"{self.name} {self.minibatch}{part}{chunk}"


class LoadInput(Instruction):
    """Take the samples from the data; on the first virtual stage."""

    __slots__ = ()
    name = "load input"


class LoadTarget(Instruction):
    """Take the targets from the data; on the last virtual stage."""

    __slots__ = ()
    name = "load target"


class ReceiveActivations(Instruction):
    """Receive the input from the virtual stage before."""

    __slots__ = ()
    name = "receive activations"


class SendActivations(Instruction):
    """Send the output to the virtual stage after."""

    __slots__ = ()
    name = "send activations"


class Forward(Instruction):
    """Compute the output, and keep what the backward pass needs unless it is recomputed."""

    __slots__ = ()
    name = "forward"


class Recompute(Instruction):
    """Compute the output once more from the kept input, with the weights of the backward pass."""

    __slots__ = ()
    name = "recompute"


class ReceiveGradients(Instruction):
    """Receive the gradient of the output from the virtual stage after."""

    __slots__ = ()
    name = "receive gradients"


class SendGradients(Instruction):
    """Send the gradient of the input to the virtual stage before."""

    __slots__ = ()
    name = "send gradients"


class Backward(Instruction):
    """Compute the gradients of the input and of the weights; on the last virtual stage, of the loss first."""

    __slots__ = ()
    name = "backward"


class InputGradient(Instruction):
    """The part of the backward pass that the stage before waits for."""

    __slots__ = ()
    name = "input gradient"


class WeightGradient(Instruction):
    """The rest of the backward pass, of one microbatch or, as one product, of all of them."""

    __slots__ = ()
    name = "weight gradient"


class ReduceGradients(Instruction):
    """Sum the gradients of the minibatch over the stage's batch group."""

    __slots__ = ()
    name = "reduce gradients"


class Update(Instruction):
    """Apply the minibatch's gradient to the current weights: the stage's next weight version."""

    __slots__ = ()
    name = "update"


class Barrier(Instruction):
    """Wait until every stage has come here: what locks the forward pass of delayed-gradient methods."""

    __slots__ = ()
    name = "barrier"


COMPUTATIONS = (Forward, Recompute, Backward, InputGradient, WeightGradient, ReduceGradients, Update)
"""Instructions that occupy a stage."""
