"""Optimizers and learning-rate schedules by their definitions, one parameter array at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.network import norm

Array = NDArray[Any]


@dataclass(frozen=True)
class SGD:
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        g = g + self.weight_decay * w
        if not self.momentum:
            return w - rate * g
        slots["velocity"] = v = self.momentum * slots["velocity"] + (1 - self.dampening) * g
        return w - rate * (g + self.momentum * v if self.nesterov else v)


@dataclass(frozen=True)
class Adam:
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def slots(self) -> tuple[str, ...]:
        return ("first", "second")

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        if self.decoupled:
            w = w - rate * self.weight_decay * w
        else:
            g = g + self.weight_decay * w
        (b1, b2) = self.betas
        slots["first"] = m = b1 * slots["first"] + (1 - b1) * g
        slots["second"] = v = b2 * slots["second"] + (1 - b2) * g**2
        return w - rate * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + self.eps)


Rule = SGD | Adam


@dataclass(frozen=True)
class Schedule:
    """Factor on the rate of update u (from 0) of `updates`, with `per_epoch` updates in an epoch.

    A warm-up of W updates rises by equal steps, (u + 1) / (W + 1), so that update W is the first at the full rate.
    From there ``linear`` falls in a straight line, ``cosine`` along half a cosine, to `final` at the run's last update.
    """

    name: str = "constant"
    milestones: tuple[int, ...] = ()
    factor: float = 1.0
    warmup_epochs: float = 0.0
    final: float = 0.0

    def at(self, u: int, per_epoch: int, updates: int) -> float:
        if self.name == "constant":
            return 1.0
        if self.name == "step":
            epochs_done = u // per_epoch
            return self.factor ** sum(milestone <= epochs_done for milestone in self.milestones)
        warmup = round(self.warmup_epochs * per_epoch)
        if u < warmup:
            return (u + 1) / (warmup + 1)
        done = (u - warmup) / (updates - 1 - warmup) if updates - 1 > warmup else 0.0
        if self.name == "linear":
            return 1.0 + done * (self.final - 1.0)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + cos(pi * done))


def clip(gradients: dict[str, Array], limit: float | None) -> dict[str, Array]:
    """The gradients, scaled down together where their common norm is over the limit."""
    length = norm(gradients.values())
    if limit is None or length <= limit:
        return gradients
    return {name: g * (limit / length) for name, g in gradients.items()}
