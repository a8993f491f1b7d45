"""Instructions of a schedule: one small dataclass per kind, named in the imperative.

A schedule has a list of instructions for every stage. An instruction names its minibatch, its microbatch where
minibatches are split, and its chunk where a stage owns several (interleaved schedules).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

ALL_MICROBATCHES = -1  # microbatch of a `WeightGradient` that is one product over all microbatches of its minibatch


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base class of the instructions."""

    minibatch: int  # number within the epoch, from 0
    microbatch: int = 0  # number within the minibatch, from 0
    chunk: int = 0  # chunk of the stage; virtual stage ``chunk * stages + stage``

    name: ClassVar[str] = ""

    @property
    def part(self) -> tuple[int, int, int]:
        """Minibatch, microbatch and chunk."""
        return self.minibatch, self.microbatch, self.chunk

    def of_minibatch(self, minibatch: int) -> Self:
        """The same instruction for another minibatch."""
        return type(self)(minibatch, self.microbatch, self.chunk)

    def __str__(self) -> str:
        microbatch = "" if self.microbatch <= 0 else f".{self.microbatch}"
        chunk = f" of chunk {self.chunk}" if self.chunk else ""
        return f"{self.name} {self.minibatch}{microbatch}{chunk}"


class Load(Instruction):
    """Load the inputs on the first virtual stage, and the targets on the last: both where there is only one."""

    __slots__ = ()
    name = "load"


class ReceiveActivations(Instruction):
    """Receive the input from the previous virtual stage."""

    __slots__ = ()
    name = "receive activations"


class SendActivations(Instruction):
    """Send the output to the next virtual stage."""

    __slots__ = ()
    name = "send activations"


class Forward(Instruction):
    """Compute the output, and keep the activations for the backward pass unless they are recomputed."""

    __slots__ = ()
    name = "forward"


class Recompute(Instruction):
    """Compute the output again from the stored input, with the weights of the backward pass."""

    __slots__ = ()
    name = "recompute"


class ReceiveGradients(Instruction):
    """Receive the gradient of the output from the next virtual stage."""

    __slots__ = ()
    name = "receive gradients"


class SendGradients(Instruction):
    """Send the gradient of the input to the previous virtual stage."""

    __slots__ = ()
    name = "send gradients"


class Backward(Instruction):
    """Compute the gradients of the input and of the weights; on the last virtual stage, the loss first."""

    __slots__ = ()
    name = "backward"


class InputGradient(Instruction):
    """Compute the gradient of the input: the part of the backward pass that the previous stage waits for."""

    __slots__ = ()
    name = "input gradient"


class WeightGradient(Instruction):
    """Compute the gradients of the weights, of one microbatch or, as one product, of all of them."""

    __slots__ = ()
    name = "weight gradient"


class ReduceGradients(Instruction):
    """All-reduce the gradients of the minibatch over the stage's batch group."""

    __slots__ = ()
    name = "reduce gradients"


class Update(Instruction):
    """Apply the minibatch's gradient to the current weights: the stage's next weight version."""

    __slots__ = ()
    name = "update"


class Barrier(Instruction):
    """Wait for all stages: locks the forward pass of delayed-gradient methods."""

    __slots__ = ()
    name = "barrier"


Kinds = tuple[type[Instruction], ...]

COMPUTATIONS = (Forward, Recompute, Backward, InputGradient, WeightGradient, ReduceGradients, Update)
"""Instructions that occupy a stage."""

QUEUES: dict[str, tuple[Kinds, Kinds]] = {
    "input_receiver": ((ReceiveActivations,), (Forward,)),
    "output_sender": ((Forward,), (SendActivations,)),
    "gradient_receiver": ((ReceiveGradients,), (Backward, InputGradient)),
    "gradient_sender": ((Backward, InputGradient), (SendGradients,)),
}
"""Queues of messages of a chunk: the kinds that put a message in, and those that take it out, in the same order."""
