"""Progress of a training, which a checkpoint stores."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]


class FrozenModel(BaseModel):
    """Base class of the parts of a manifest."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Progress(FrozenModel):
    """Progress of the training.

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

    step: Number = 0
    epoch: Positive = 1
    minibatches: Number = 0
    loss_sum: float = 0.0
    samples: Number = 0

    def next_epoch(self) -> Progress:
        """The same step as the beginning of the next epoch."""
        return Progress(step=self.step, epoch=self.epoch + 1)
