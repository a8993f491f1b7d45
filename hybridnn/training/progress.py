"""Progress of a training, which a checkpoint stores, and its position between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from hybridnn.utils.checks import Range

Number = Annotated[int, Range(at_least=0, below=2**63)]
Positive = Annotated[int, Range(at_least=1, below=2**63)]


@dataclass(frozen=True)
class Progress:
    """Progress of the training; a manifest is read with the limits of the types.

    Attributes
    ----------
    step : int
        Updates done.
    epoch : int
        The current epoch, from 1; about to begin if `minibatches` is 0.
    minibatches, samples : int
        Done in this epoch.
    loss_sum : float
        Sum of the losses of these samples, each before its update.
    """

    # Not pydantic's type of it: that takes longer to load than all else that a `Trainer` needs.
    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    step: Number = 0
    epoch: Positive = 1
    minibatches: Number = 0
    loss_sum: float = 0.0
    samples: Number = 0

    def next_epoch(self) -> Progress:
        """The same step as the beginning of the next epoch."""
        return Progress(step=self.step, epoch=self.epoch + 1)


class StepPosition(NamedTuple):
    """Position of the training between two steps, when the pipeline is empty."""

    step: int
    minibatches: int  # updates done in the current epoch; 0 after the end of an epoch
    learning_rate: float  # of the last update
    # returns the progress that a checkpoint stores. Fetches losses that are still on a device, so it is collective
    # and may raise `NonFiniteLossError`.
    progress: Callable[[], Progress]
