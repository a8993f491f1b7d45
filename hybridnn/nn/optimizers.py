"""Optimizers over the flat buffer of a rank's parameters: settings that do not change, and a state that does.

Every number of the buffer is updated on its own, so the update is the same on one rank and, up to the last bit, on
parts of the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hybridnn.errors import SettingError
from hybridnn.kernels import step_scalars
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.kernels.numpy_updates import BLOCK
from hybridnn.utils.checks import require_number


@dataclass
class OptimizerState:
    """What an optimizer remembers between updates.

    Attributes
    ----------
    slots : dict
        Arrays of the shape of the parameters, by name: ``velocity``, or ``first`` and ``second``.
    scratch : ndarray
        Working memory of a few cache blocks.
    updates : int
        Updates done.
    kernels : Kernels
        Of the device that holds the arrays.
    numbers : array of float64, shape (3,), or None
        Where the device finds what changes from update to update, when updates are recorded and replayed.
    """

    slots: dict[str, Array]
    scratch: Array
    updates: int = 0
    kernels: Kernels = NUMPY
    numbers: Array | None = None


class LinearUpdate(NamedTuple):
    """Where a gradient enters an update that reads it only once, so that nobody needs to keep it.

    ``into = keep * into + factor * gradient``, and then, with a `step`, ``weights += step * into``.

    Attributes
    ----------
    into : ndarray, shape (n,)
        The weights, or a slot.
    factor, keep : float
    step : float or None
        None where `into` are the weights.
    """

    into: Array
    factor: float
    keep: float
    step: float | None


class Optimizer(Protocol):
    """What the trainer needs of an optimizer."""

    @property
    def lr(self) -> float:
        """Base learning rate."""
        ...

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the arrays it remembers."""
        ...

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """Change `weights` in place, or leave them and fill `out` with the new ones."""
        ...

    @property
    def reads_gradient_once(self) -> bool:
        """Whether an update is an `LinearUpdate`."""
        ...

    def linear_update(self, weights: Array, state: OptimizerState, lr: float) -> LinearUpdate | None:
        """The next update, which counts as done with that, or None where the gradient is read more than once."""
        ...

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """What the next update wants to find in `state.numbers`."""
        ...

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """Fill `out` with the weights expected after `steps` more updates (Chen et al. 2018, equation 4)."""
        ...


def new_state(optimizer: Optimizer, weights: Array, kernels: Kernels = NUMPY) -> OptimizerState:
    """State before the first update: all slots zero."""
    slots = {name: kernels.zeros(weights.shape, weights.dtype) for name in optimizer.slot_names}
    scratch = kernels.empty((2 * min(BLOCK, max(weights.size, 1)),), weights.dtype)
    return OptimizerState(slots, scratch, kernels=kernels)


INFINITY = float("inf")


def _require_rate_and_decay(lr: float, weight_decay: float) -> None:
    require_number("optimizer.lr", lr, 0, INFINITY, "a finite number above 0", open_ends="(")
    require_number("optimizer.weight_decay", weight_decay, 0, INFINITY, "a finite number, 0 or more")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum; PyTorch's update, with the velocity starting at zero.

    Parameters
    ----------
    lr : float
        Learning rate.
    momentum : float
        Factor on the velocity, 0 <= momentum < 1.
    dampening : float
        The gradient enters the velocity times 1 - dampening.
    nesterov : bool
        Look ahead along the velocity; needs momentum and no dampening.
    weight_decay : float
        Factor of the weights added to the gradient.
    """

    lr: float = 0.005
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_rate_and_decay(self.lr, self.weight_decay)
        require_number("optimizer.momentum", self.momentum, 0, 1, "at least 0 and below 1", open_ends=")")
        require_number("optimizer.dampening", self.dampening, 0, 1, "between 0 and 1")
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            raise SettingError("optimizer.nesterov", self.nesterov, "true only with momentum above 0 and dampening 0")

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The velocity, where there is momentum."""
        return ("velocity",) if self.momentum else ()

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """``v = momentum v + (1 - dampening) g; w -= lr v``, in place or into `out`."""
        state.updates += 1
        state.kernels.sgd_update(
            weights,
            gradient,
            state.slots.get("velocity"),
            state.scratch,
            lr=lr,
            momentum=self.momentum,
            dampening=self.dampening,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            out=weights if out is None else out,
            numbers=state.numbers,
        )

    @property
    def reads_gradient_once(self) -> bool:
        """Unless there is decay, which adds the weights to it, or Nesterov's step, which takes it a second time."""
        return not (self.nesterov or self.weight_decay)

    def linear_update(self, weights: Array, state: OptimizerState, lr: float) -> LinearUpdate:
        """The gradient enters the velocity, or without momentum the weights."""
        state.updates += 1
        if not self.momentum:
            return LinearUpdate(weights, -lr, 1.0, None)
        return LinearUpdate(state.slots["velocity"], 1.0 - self.dampening, self.momentum, -lr)

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """The learning rate."""
        return step_scalars.sgd_update(lr=lr)

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """``out = w - steps lr v``; needs momentum."""
        state.kernels.sgd_prediction(weights, state.slots["velocity"], out, distance=steps * lr)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1); weight decay joins the gradient.

    Parameters
    ----------
    lr : float
        Learning rate.
    betas : tuple of float
        Decay of the running mean of the gradient and of its square, each at least 0 and below 1.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Factor of the weights added to the gradient.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    decoupled = False

    def __post_init__(self) -> None:
        _require_rate_and_decay(self.lr, self.weight_decay)
        if len(self.betas) != 2:
            raise SettingError("optimizer.betas", self.betas, "two numbers")
        for beta in self.betas:
            require_number("optimizer.betas", beta, 0, 1, "each at least 0 and below 1", open_ends=")")
        require_number("optimizer.eps", self.eps, 0, INFINITY, "a finite number above 0", open_ends="(")

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The running first and second moments."""
        return ("first", "second")

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """Move along the bias-corrected first moment over the root of the second, in place or into `out`."""
        state.updates += 1
        state.kernels.adam_update(
            weights,
            gradient,
            state.slots["first"],
            state.slots["second"],
            state.scratch,
            step=state.updates,
            lr=lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
            out=weights if out is None else out,
            numbers=state.numbers,
        )

    reads_gradient_once = False

    def linear_update(self, weights: Array, state: OptimizerState, lr: float) -> None:
        """There is none: the gradient enters both moments."""

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """Step size, bias correction and decay of the next update."""
        return step_scalars.adam_update(
            step=state.updates + 1,
            lr=lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
        )

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """``out = w - steps lr d`` with d the direction of the last update, decay left out; none before the first."""
        if state.updates == 0:
            state.kernels.copy(weights, out)
            return
        state.kernels.adam_prediction(
            weights,
            state.slots["first"],
            state.slots["second"],
            out,
            step=state.updates,
            distance=steps * lr,
            betas=self.betas,
            eps=self.eps,
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2)."""

    weight_decay: float = 0.01

    decoupled = True
