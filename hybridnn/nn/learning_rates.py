"""Learning-rate schedules: the factor on the base rate, by update number."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import cos, pi
from typing import Protocol

from hybridnn.errors import SettingError
from hybridnn.utils.checks import require_number


class LearningRateSchedule(Protocol):
    """Interface of learning-rate schedules."""

    def factor(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """Factor of update number `update` (from 0) of `updates`, including those of earlier calls of `fit`."""
        ...


@dataclass(frozen=True)
class Constant:
    """Constant base rate."""

    def factor(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class Step:
    """The rate is multiplied by `factor_per_step` after each milestone.

    Attributes
    ----------
    milestones : tuple of int
        Completed epochs at which the rate changes, ascending: (150, 225) changes it after 150 and after 225 epochs.
    """

    milestones: tuple[int, ...]
    factor_per_step: float = 0.1

    def __post_init__(self) -> None:
        if list(self.milestones) != sorted(set(self.milestones)) or any(epoch < 1 for epoch in self.milestones):
            raise SettingError(
                "schedule.milestones", list(self.milestones), "ascending numbers of epochs, each 1 or more"
            )
        infinity = float("inf")
        require_number("schedule.factor", self.factor_per_step, 0, infinity, "a finite number above 0", open_ends="(")

    def factor(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """`factor_per_step` to the power of the number of milestones passed."""
        return self.factor_per_step ** bisect_right(self.milestones, update // updates_per_epoch)


@dataclass(frozen=True)
class WarmupLinear:
    """From 0 to the base rate in `warmup_epochs`, then linearly to `final_factor` of it at the last update."""

    warmup_epochs: float = 1.0
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        _require_warmup(self.warmup_epochs, self.final_factor)

    def factor(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """Rises during warm-up, then falls linearly."""
        rising, progress = _warm_up(self.warmup_epochs, update, updates_per_epoch, updates)
        return rising if rising < 1.0 else 1.0 - (1.0 - self.final_factor) * progress


@dataclass(frozen=True)
class Cosine:
    """Optional warm-up, then half a cosine from the base rate to `final_factor` of it (Loshchilov and Hutter 2017)."""

    warmup_epochs: float = 0.0
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        _require_warmup(self.warmup_epochs, self.final_factor)

    def factor(self, update: int, updates_per_epoch: int, updates: int) -> float:
        """Rises during warm-up, then falls along half a cosine."""
        rising, progress = _warm_up(self.warmup_epochs, update, updates_per_epoch, updates)
        falling = self.final_factor + (1.0 - self.final_factor) * (1.0 + cos(pi * progress)) / 2.0
        return rising if rising < 1.0 else falling


def _warm_up(epochs: float, update: int, updates_per_epoch: int, updates: int) -> tuple[float, float]:
    """Factor of the warm-up (1 after it), and the fraction of the rest of the run that is done."""
    warmup = round(epochs * updates_per_epoch)
    if update < warmup:
        return (update + 1) / (warmup + 1), 0.0
    return 1.0, (update - warmup) / max(updates - 1 - warmup, 1)


def _require_warmup(warmup_epochs: float, final_factor: float) -> None:
    require_number("schedule.warmup_epochs", warmup_epochs, 0, float("inf"), "a finite number of epochs, 0 or more")
    require_number("schedule.final_factor", final_factor, 0, 1, "between 0 and 1")
