"""Learning-rate schedules: the factor on the base rate, by update number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import cos, pi
from typing import Annotated, Protocol

from hybridnn.errors import SettingError
from hybridnn.utils.checks import (
    AtLeastZero,
    Checked,
    Count,
    Positive,
    described,
    require_fields,
    require_number,
    with_advice,
)

Warmup = Annotated[AtLeastZero, "Epochs of the rise from 0."]


class LearningRateSchedule(Protocol):
    """Interface of learning-rate schedules."""

    def multiplier(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """Factor on the rate of update `update` (from 0) of `updates`, including those of earlier calls of `fit`."""
        ...


@with_advice({})
@dataclass(frozen=True)
class Constant:
    """Constant base rate."""

    name = "constant"

    def multiplier(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """1."""
        return 1.0


@with_advice({"gamma": "did you mean factor?", "*": "give the milestones as a list, as in Step([5, 8])"})
@described
@dataclass(frozen=True)
class Step:
    """The rate is multiplied by `factor` after each milestone."""

    name = "step"

    milestones: Annotated[
        tuple[Count, ...],
        "Completed epochs at which the rate changes, ascending. [150, 225] changes it after 150 and after 225 epochs.",
    ] = ()
    factor: Annotated[Positive, "Factor of each change."] = 0.1

    def __post_init__(self) -> None:
        require_fields("schedule", self)
        if not self.milestones:
            raise SettingError("schedule.milestones", [], "must be at least one epoch, for example [5, 8]")
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise SettingError("schedule.milestones", list(self.milestones), "must increase")

    def multiplier(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """`factor` to the power of the number of milestones passed."""
        return self.factor ** bisect_right(self.milestones, update // updates_per_epoch)


@dataclass(frozen=True)
class _WarmUp(ABC):
    """A rise from 0 to the base rate, then a fall to 0 at the last update."""

    warmup_epochs: Warmup = 0.0

    def __post_init__(self) -> None:
        require_fields("schedule", self)

    def multiplier(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """Rises during warm-up, then falls."""
        warmup = round(self.warmup_epochs * updates_per_epoch)
        if update < warmup:
            return (update + 1) / (warmup + 1)
        return self._falling((update - warmup) / max(updates - 1 - warmup, 1))

    @abstractmethod
    def _falling(self, progress: float) -> float:
        """Factor when the fraction `progress` of the fall is done."""


@with_advice({})
@described
@dataclass(frozen=True)
class WarmupLinear(_WarmUp):
    """From 0 to the base rate in `warmup_epochs`, then linearly to 0 at the last update."""

    name = "warmup-linear"

    warmup_epochs: Warmup = 1.0

    def _falling(self, progress: float) -> float:
        return 1.0 - progress


@with_advice({})
@described
@dataclass(frozen=True)
class Cosine(_WarmUp):
    """Optional warm-up, then half a cosine from the base rate to 0 (Loshchilov and Hutter 2017)."""

    name = "cosine"

    def _falling(self, progress: float) -> float:
        return (1.0 + cos(pi * progress)) / 2.0


@with_advice({})
@dataclass(frozen=True)
class LambdaLR:
    """The factor is ``function(step)``, at least 0, for the steps from 0: PyTorch's `LambdaLR`, called every step."""

    function: Annotated[Callable[[int], float], Checked(lambda f: f if callable(f) else None, "a function of the step")]

    def __post_init__(self) -> None:
        require_fields("", self)

    def multiplier(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """The value of the function."""
        return require_number("function(step)", self.function(update), at_least=0)


SCHEDULES = (Constant, Step, WarmupLinear, Cosine)
"""The learning-rate schedules that settings can name; the first is the default."""
