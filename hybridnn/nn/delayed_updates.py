"""Optimizers whose update depends on the delay of the gradient, in updates: `OptimizerState.delay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import Array
from hybridnn.nn.optimizers import (
    OTHER_NAMES,
    OTHER_NAMES_OF_ADAM,
    SGD,
    Adam,
    LearningRate,
    Momentum,
    Optimizer,
    OptimizerState,
)
from hybridnn.utils.checks import BelowOne, Count, described, with_advice


@with_advice(OTHER_NAMES)
@described
@dataclass(frozen=True)
class SpikeSGD(Optimizer):
    """Momentum with spike compensation of delayed gradients (Kosson et al. 2021, Pipelined backpropagation at scale).

    A gradient that comes D updates late is applied at once as much as it would have been until then. Without a delay
    this is `SGD`. The momentum is above 0.
    """

    name = "sgd-spike"

    lr: LearningRate = 0.005
    momentum: Momentum = 0.9

    slot_names = ("velocity",)
    predicts_weights = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum == 0:
            raise SettingError("optimizer.momentum", self.momentum, "above 0 with sgd-spike, which compensates it")

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """``v = momentum v + g; w -= lr (a v + b g)``, in place or into `out`."""
        state.updates += 1
        of_velocity, of_gradient = scalars = self.step_scalars(state, lr)
        arrays = (weights, gradient, state.slots["velocity"], weights if out is None else out)
        if state.fused("spike_update", arrays, (self.momentum,), scalars):
            return
        for block, scratch in state.blocks(weights.size):
            velocity = state.slots["velocity"][block]
            velocity *= self.momentum
            velocity += gradient[block]
            new = (weights if out is None else out)[block]
            np.multiply(velocity, of_velocity, out=scratch)
            np.subtract(weights[block], scratch, out=new)
            np.multiply(gradient[block], of_gradient, out=scratch)
            new -= scratch

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """``lr a`` and ``lr b``, where a is ``momentum**D`` and b is ``(1 - momentum**D) / (1 - momentum)``."""
        kept = self.momentum**state.delay
        return lr * kept, lr * (1.0 - kept) / (1.0 - self.momentum)

    predict = SGD.predict


@dataclass(frozen=True)
class _PipeMare(Optimizer):
    """Update rule of PipeMare (Yang et al. 2021, section 3) for a gradient that comes D updates late.

    T1: the learning rate is divided by ``D**p``, where p falls linearly from 1 to 0 in the first `annealing_updates`
    updates. T2: the mean of the weights' differences from update to update, with the decay ``discrepancy_decay**(1 /
    D)``, from which the backward passes of the method ``pipemare`` estimate the weights of their forward passes. An
    update without a delay, the first after a drain, begins the mean anew.
    """

    annealing_updates: Annotated[Count, "Updates until delays no longer lower the rate, K in the paper."] = 1000
    discrepancy_decay: Annotated[BelowOne, "Decay of the mean weight difference over one delay, D in the paper."] = 0.5

    predicts_weights = True

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """Update at the rescheduled rate; ``d = decay d + (1 - decay) (new w - w)``."""
        decay = self.discrepancy_decay ** (1.0 / state.delay) if state.delay else 0.0
        difference = state.slots["difference"]
        difference *= decay
        self._add_to_difference(state, decay - 1.0, weights)
        super().update(weights, gradient, state, self._rescheduled(state, lr), out)  # type: ignore[safe-super]
        self._add_to_difference(state, 1.0 - decay, weights if out is None else out)

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """Those of the rule without delay at the rescheduled rate."""
        return super().step_scalars(state, self._rescheduled(state, lr))

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """``out = w + steps d``; `steps` is negative for weights of earlier versions."""
        state.kernels.sgd_prediction(weights, state.slots["difference"], out, -steps)

    def _add_to_difference(self, state: OptimizerState, factor: float, weights: Array) -> None:
        mean = state.slots["difference"]
        if state.fused("sgd_prediction", (mean, weights, mean), (-factor,)):
            return
        for block, scratch in state.blocks(weights.size):
            np.multiply(weights[block], factor, out=scratch)
            difference = state.slots["difference"][block]
            difference += scratch

    def _rescheduled(self, state: OptimizerState, lr: float) -> float:
        power = 1.0 - min(state.updates / self.annealing_updates, 1.0)
        divisor: float = max(state.delay, 1) ** power
        return lr / divisor


@with_advice(OTHER_NAMES)
@described
@dataclass(frozen=True)
class PipeMareSGD(_PipeMare, SGD):
    """PipeMare on `SGD` (Yang et al. 2021, PipeMare: asynchronous pipeline parallel DNN training, section 3)."""

    name = "sgd-pipemare"

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Those of `SGD`, and ``difference``."""
        return (*super().slot_names, "difference")


@with_advice(OTHER_NAMES_OF_ADAM)
@described
@dataclass(frozen=True)
class PipeMareAdam(_PipeMare, Adam):
    """PipeMare on `Adam`, as `PipeMareSGD`."""

    name = "adam-pipemare"

    slot_names = (*Adam.slot_names, "difference")
