"""Which weights the forward and the backward pass of a minibatch read: the second half of a pipeline method.

A stage's weight version is the number of updates it has done since the epoch began. K is the number of stages, k = 0 …
K-1 the stage and t = 0, 1, … the minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class WeightRead(NamedTuple):
    """Weights that a pass reads.

    Attributes
    ----------
    version : int
        Updates done when they were current.
    ahead : int
        Updates predicted beyond that version.
    """

    version: int
    ahead: int = 0


Rule = Callable[[int, int, int], WeightRead]
"""From (stage, stages, minibatch) to the weights."""


@dataclass(frozen=True)
class WeightPolicy:
    """A rule for each pass, and what it costs.

    Attributes
    ----------
    name : str
    forward, backward : callable
        From (stage, stages, minibatch) to the `WeightRead` of the pass; a recomputation reads as the backward pass.
    versions : callable
        From (stage, stages) to the most weight versions a stage holds at a time, the current one included.
    """

    name: str
    forward: Rule
    backward: Rule
    versions: Callable[[int, int], int]


def _newest(stage: int, stages: int, minibatch: int) -> WeightRead:
    return WeightRead(minibatch)


def _delayed(stage: int, stages: int, minibatch: int) -> WeightRead:
    """The newest version there is when stages - 1 - stage minibatches are still on their way back."""
    return WeightRead(max(0, minibatch - (stages - 1 - stage)))


def _of_first_stage(stage: int, stages: int, minibatch: int) -> WeightRead:
    return WeightRead(max(0, minibatch - (stages - 1)))


def _predicted_forward(stage: int, stages: int, minibatch: int) -> WeightRead:
    """Chen et al. 2018, equation 5."""
    return WeightRead(_delayed(stage, stages, minibatch).version, stage // 2 + stages - stage - 1)


def _predicted_backward(stage: int, stages: int, minibatch: int) -> WeightRead:
    """Chen et al. 2018, equation 6."""
    return WeightRead(minibatch, stage // 2)


def _one(stage: int, stages: int) -> int:
    return 1


EXACT = WeightPolicy("exact", _newest, _newest, _one)
"""Every minibatch is complete before the next begins: all passes read the current weights."""

STASHED = WeightPolicy("stashed", _delayed, _delayed, lambda stage, stages: stages - stage)
"""The backward pass uses the weights of its forward pass (Kang 2019, section 2.2.2: K-k+1 states, k from 1)."""

VERTICAL_SYNC = WeightPolicy("vertical sync", _of_first_stage, _of_first_stage, lambda stage, stages: stages)
"""Every stage uses the version that the first stage's forward pass used (Chen et al. 2018, section 3.2)."""

CURRENT = WeightPolicy("current", _delayed, _newest, _one)
"""Both passes use the weights of their moment, which differ."""

PREDICTED = WeightPolicy("predicted", _predicted_forward, _predicted_backward, _one)
"""Both passes use the weights expected at the end of the minibatch's round trip (Chen et al. 2018, equation 4)."""
