"""Optimizers over the flat parameter buffer of a rank: frozen settings, and a state that updates change.

Every element of the buffer is updated independently. With one thread of BLAS, updating slices of the buffer that begin
at multiples of `SLICE_UNIT` gives the same bits as updating all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import DEVICE_UPDATE_BLOCK, UPDATE_BLOCK, Array, Kernels, blocks
from hybridnn.utils.checks import (
    AtLeastZero,
    BelowOne,
    Fraction,
    Positive,
    described,
    must_be_one_of,
    require_fields,
    with_advice,
)

OTHER_NAMES = MappingProxyType({"learning_rate": "did you mean lr?"})
"""Names of other libraries for arguments of optimizers."""
OTHER_NAMES_OF_ADAM = MappingProxyType(
    {
        **OTHER_NAMES,
        "momentum": "its momentum is the first of betas=(0.9, 0.999)",
        **dict.fromkeys(("beta1", "beta2", "beta_1", "beta_2", "b1", "b2"), "give both, as in betas=(0.9, 0.999)"),
        "epsilon": "did you mean eps?",
    }
)

LearningRate = Annotated[Positive, "Learning rate."]
Momentum = Annotated[BelowOne, "Factor on the velocity."]
WeightDecay = Annotated[AtLeastZero, "Factor of the weights that is added to the gradient."]
DecoupledDecay = Annotated[AtLeastZero, "Factor of the weights, times lr, subtracted from them."]
Epsilon = Annotated[Positive, "Added to the root of the second moment."]
Betas = Annotated[tuple[BelowOne, BelowOne], "Decay of the running mean of the gradient and of its square."]

NEGLIGIBLE = 2.0**-60  # beside 1 in float64
MOMENTUM_DECAY = 0.004  # of `NAdam`: Dozat's value, and PyTorch's default


@dataclass
class OptimizerState:
    """State of an optimizer between updates."""

    slots: dict[str, Array]  # arrays of the shape of the parameters, by name: ``velocity``, or ``first`` and ``second``
    scratch: Array  # memory for intermediate results: two blocks, of which `blocks` gives the first
    kernels: Kernels
    updates: int = 0  # updates done
    delay: int = 0  # of the next gradient: updates since the version that its forward pass read
    # while updates are captured and replayed: where they read the scalars of the step (`Optimizer.step_scalars`)
    device_scalars: Array | None = None

    def blocks(self, size: int) -> Iterator[tuple[slice, Array]]:
        """Slices of arrays of `size` elements that stay in the cache, each with scratch memory of its length."""
        return ((part, self.scratch[: part.stop - part.start]) for part in blocks(size, max(self.scratch.size // 2, 1)))

    def fused(
        self, name: str, arrays: Sequence[Array], constants: Sequence[float], scalars: Sequence[float] = ()
    ) -> bool:
        """Update by the CUDA kernel `name` of the package; False where ufuncs have to compute, as on the host.

        `arrays` and `constants` are its arguments, and `scalars` those of the step, the first of `step_scalars`.
        """
        where = scalars if self.device_scalars is None else self.device_scalars
        return self.kernels.fused_update(name, arrays, constants, where, len(scalars))


def new_state(optimizer: Optimizer, weights: Array, kernels: Kernels) -> OptimizerState:
    """State before the first update: all slots zero."""
    slots = {name: kernels.zeros(weights.shape, weights.dtype) for name in optimizer.slot_names}
    block = UPDATE_BLOCK if kernels.on_host else DEVICE_UPDATE_BLOCK
    scratch = kernels.empty((2 * min(block, max(weights.size, 1)),), weights.dtype)
    return OptimizerState(slots, scratch, kernels)


class Optimizer(ABC):
    """Base of optimizers: frozen dataclasses whose fields are the keys of ``[optimizer]``, checked by their types.

    An optimizer has to define `name`, `lr`, `slot_names` and `update`.

    Attributes
    ----------
    name : str
        Of ``--optimizer`` and ``optimizer.name``.
    lr : float
        Base learning rate.
    slot_names : tuple of str
        Names of the arrays of its state, which checkpoints contain.
    predicts_weights : bool
        Whether `predict` is defined.
    """

    name: ClassVar[str]
    lr: float

    def __post_init__(self) -> None:
        require_fields("optimizer", self)

    @property
    def slot_names(self) -> tuple[str, ...]:  # noqa: D102
        return ()

    @abstractmethod
    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """Update `weights` in place, or leave them unchanged and write the new ones to `out`.

        Called with slices of the parameters. Array operations are those of NumPy's ufuncs, which accept arrays of a GPU
        too, or `Kernels`. While steps are recorded (``state.device_scalars``), no array may be allocated; CuPy's ufuncs
        allocate one for an input that overlaps `out` and is another object, as a second ``weights[block]`` is.
        """

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """Scalars of the next update that depend on the learning rate and the number of the step, at most four."""
        return (lr,)

    @property
    def predicts_weights(self) -> bool:  # noqa: D102
        return False

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """Write the weights expected after `steps` more updates to `out` (Chen et al. 2018, equation 4).

        Optimizers without prediction need not define it, and methods that predict refuse them (`predicts_weights`).
        Equations 5 and 6, which give `steps`, are in `hybridnn.pipeline.schedules.weight_policies`.
        """
        raise NotImplementedError


@with_advice(OTHER_NAMES)
@described
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum; PyTorch's update, with the velocity starting at zero."""

    name = "sgd"

    lr: LearningRate = 0.005
    momentum: Momentum = 0.9
    dampening: Annotated[
        Fraction, "The gradient is multiplied by 1 - dampening before it is added to the velocity."
    ] = 0.0
    nesterov: Annotated[bool, "Use Nesterov momentum; needs momentum and no dampening."] = False
    weight_decay: WeightDecay = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            raise SettingError("optimizer.nesterov", self.nesterov, "needs momentum > 0 and dampening = 0")

    @property
    def slot_names(self) -> tuple[str, ...]:
        """``velocity``, if there is momentum."""
        return ("velocity",) if self.momentum else ()

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """``v = momentum v + (1 - dampening) g; w -= lr v``, in place or into `out`."""
        state.updates += 1
        velocity, new = state.slots.get("velocity"), weights if out is None else out
        scalars = (lr,) if state.device_scalars is None else state.device_scalars
        state.kernels.sgd_update(weights, gradient, velocity, new, state.scratch, self, scalars)

    @property
    def predicts_weights(self) -> bool:
        """Whether there is momentum."""
        return self.momentum > 0

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """``out = w - steps lr v``."""
        state.kernels.sgd_prediction(weights, state.slots["velocity"], out, steps * lr)


@with_advice(OTHER_NAMES_OF_ADAM)
@described
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, Algorithm 1); weight decay is added to the gradient."""

    name = "adam"

    lr: LearningRate = 0.001
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0

    decoupled = False
    slot_names: ClassVar[tuple[str, ...]] = ("first", "second")
    predicts_weights = True

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """Move along the bias-corrected first moment over the root of the second, in place or into `out`."""
        scalars = self._scalars(state.updates + 1, lr) if state.device_scalars is None else state.device_scalars
        state.updates += 1
        first, second, new = state.slots["first"], state.slots["second"], weights if out is None else out
        state.kernels.adam_update(weights, gradient, first, second, new, state.scratch, self, scalars)

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """Step size, root of the second moment's bias correction, and what decoupled decay keeps of a weight."""
        return self._scalars(state.updates + 1, lr)

    def predict(self, weights: Array, state: OptimizerState, lr: float, steps: int, out: Array) -> None:
        """``out = w - steps lr d``, d the direction of the last update without decay; `weights` before the first."""
        if state.updates == 0:
            state.kernels.copy(weights, out)
            return
        corrections = self._scalars(state.updates, steps * lr)[:2]
        state.kernels.adam_prediction(weights, state.slots["first"], state.slots["second"], out, self.eps, corrections)

    def _scalars(self, step: int, lr: float) -> tuple[float, float, float]:
        """The bias corrections of Kingma and Ba 2015, section 2, as factors of the step, for updates from 1 on."""
        beta1, beta2 = self.betas
        keep = 1.0 - lr * self.weight_decay if self.decoupled else 1.0
        return lr / (1.0 - beta1**step), sqrt(1.0 - beta2**step), keep


@with_advice(OTHER_NAMES_OF_ADAM)
@described
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2)."""

    name = "adamw"

    weight_decay: DecoupledDecay = 0.01

    decoupled = True


@with_advice(OTHER_NAMES)
@described
@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5); PyTorch's update."""

    name = "rmsprop"

    lr: LearningRate = 0.01
    alpha: Annotated[BelowOne, "Decay of the running mean of the squared gradient."] = 0.99
    eps: Epsilon = 1e-8

    slot_names = ("square",)

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """``s = alpha s + (1 - alpha) g²; w -= lr g / (sqrt(s) + eps)``, in place or into `out`."""
        state.updates += 1
        arrays = (weights, gradient, state.slots["square"], weights if out is None else out)
        if state.fused("rmsprop_update", arrays, (self.alpha, self.eps), (lr,)):
            return
        rate = lr if state.device_scalars is None else state.device_scalars[:1]
        for block, scratch in state.blocks(weights.size):
            g, square = gradient[block], state.slots["square"][block]
            np.multiply(g, g, out=scratch)
            scratch *= 1.0 - self.alpha
            square *= self.alpha
            square += scratch
            np.sqrt(square, out=scratch)
            scratch += self.eps
            np.divide(g, scratch, out=scratch)
            scratch *= rate
            new = (weights if out is None else out)[block]
            np.subtract(new if out is None else weights[block], scratch, out=new)


@with_advice(OTHER_NAMES_OF_ADAM)
@described
@dataclass(frozen=True)
class NAdam(Optimizer):
    """Adam with Nesterov's look-ahead (Dozat 2016, Incorporating Nesterov momentum into Adam); PyTorch's update.

    With ``pipedream`` this is asynchronous Nesterov (Ajanthan et al. 2025, Nesterov method for asynchronous pipeline
    parallel optimization); its authors also set ``training.clip_norm = 10``, ``weight_decay = 0.01``, and a schedule
    that ends at a tenth of the rate. The look-ahead along a momentum close to 1 makes up for the delay of the gradient,
    which itself counts 1 - momentum.
    """

    name = "nadam"

    lr: LearningRate = 0.001
    betas: Betas = (0.99, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: DecoupledDecay = 0.0

    slot_names = ("first", "second")

    def update(
        self, weights: Array, gradient: Array, state: OptimizerState, lr: float, out: Array | None = None
    ) -> None:
        """``w = k w - (a g + b m) / (sqrt(v) / c + eps)``, with `Adam`'s moments m and v, in place or into `out`."""
        of_gradient, of_first, root, keep = scalars = self.step_scalars(state, lr)
        state.updates += 1
        arrays = (weights, gradient, *(state.slots[name] for name in self.slot_names), weights if out is None else out)
        if state.fused("nadam_update", arrays, (*self.betas, self.eps), scalars):
            return
        for block, scratch in state.blocks(weights.size):
            g, first, second = gradient[block], state.slots["first"][block], state.slots["second"][block]
            step, new = state.scratch[-scratch.size :], (weights if out is None else out)[block]
            np.multiply(g, g, out=step)
            for moment, power, beta in zip((first, second), (g, step), self.betas, strict=True):
                np.multiply(power, 1.0 - beta, out=scratch)
                moment *= beta
                moment += scratch
            np.sqrt(second, out=scratch)
            scratch /= root
            scratch += self.eps
            np.multiply(weights[block], keep, out=new)
            for part, factor in ((g, of_gradient), (first, of_first)):
                np.multiply(part, factor, out=step)
                step /= scratch
                new -= step

    def step_scalars(self, state: OptimizerState, lr: float) -> Sequence[float]:
        """``a = lr (1 - u) / (1 - U)``, ``b = lr u' / (1 - U u')``, c and ``k = 1 - lr weight_decay``.

        u and u' are the momenta of this update and of the next one, U is the product of all up to u, and c is Adam's
        root of its second correction. The momentum of update t is ``betas[0] (1 - 0.96**(t MOMENTUM_DECAY) / 2)``.
        """
        step = state.updates + 1
        momentum, following = self._momentum(step), self._momentum(step + 1)
        product = 1.0
        for earlier in range(1, step + 1):
            product *= self._momentum(earlier)
            if product < NEGLIGIBLE:
                break
        of_gradient, of_first = lr * (1.0 - momentum) / (1.0 - product), lr * following / (1.0 - product * following)
        return of_gradient, of_first, sqrt(1.0 - self.betas[1] ** step), 1.0 - lr * self.weight_decay

    def _momentum(self, step: int) -> float:
        left: float = 0.96 ** (step * MOMENTUM_DECAY)
        return self.betas[0] * (1.0 - 0.5 * left)


@cache
def optimizers() -> tuple[type[Optimizer], ...]:
    """The optimizers that settings can name; the first is the default."""
    from hybridnn.nn.delayed_updates import PipeMareAdam, PipeMareSGD, SpikeSGD  # few trainings need them

    return SGD, SpikeSGD, PipeMareSGD, Adam, AdamW, NAdam, PipeMareAdam, RMSprop


@cache
def installed_optimizers() -> Mapping[str, type[Optimizer]]:
    """Optimizers that installed packages add by entry points."""
    from hybridnn.utils.plugins import installed

    def is_one(found: object) -> bool:
        return isinstance(found, type) and issubclass(found, Optimizer)

    return dict(installed("optimizer.name", "optimizer", is_one, [kind.name for kind in optimizers()]))


def find_optimizer(name: str) -> Optimizer:
    """An optimizer of a name, such as ``"adam"``, with its default settings."""
    kinds = {kind.name: kind for kind in optimizers()}
    kind = kinds.get(name.lower()) or installed_optimizers().get(name)
    if kind is None:
        raise SettingError("optimizer", name, must_be_one_of([*kinds, *installed_optimizers()]))
    return kind()
