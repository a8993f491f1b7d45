"""Reference solutions of A6."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.assignment import Variant

Array = NDArray[np.float64]
Reads = tuple[int, int, int]
Prediction = tuple[tuple[int, int], tuple[int, int]]
UpdateRule = Callable[[Array, Array], None]


# -- rules ------------------------------------------------------------------------------------------------------------


def weights_read(method: str, stage: int, stages: int, minibatch: int) -> Reads:
    """Weight versions that the passes of a minibatch use on a stage of a pipeline.

    Version v of a stage's weights is the one after v updates of this stage; version 0 are the initial weights. Every
    minibatch makes one update on every stage, in order: that of minibatch t turns version t into version t + 1.

    Parameters
    ----------
    method : {"vanilla", "ddg", "fr", "pipedream", "vertical sync", "extra"}
        ``"vertical sync"`` is PipeDream with vertical synchronization.
    stage : int
        Number of the stage.
    stages : int
        Number of stages, K.
    minibatch : int
        Number of the minibatch, t, from 0.

    Returns
    -------
    forward : int
        Version that the forward pass reads. Its outputs are sent to the next stage.
    activations : int
        Version with which the activations were computed that the backward pass uses. It differs from `forward` where
        they are computed again.
    backward : int
        Version with which the backward pass computes the gradient that it sends to the stage before.
    """
    return rules_solution({"extra_method": "two versions"})(method, stage, stages, minibatch)


def rules_solution(variant: Variant) -> Callable[[str, int, int, int], Reads]:
    """The rules of five methods, and of the extra one of a variant."""

    def weights_read(method: str, stage: int, stages: int, minibatch: int) -> Reads:
        staleness = stages - 1 - stage
        if method == "vertical sync":
            staleness = stages - 1
        elif method == "extra" and variant["extra_method"] == "two versions":
            staleness = 1
        elif method == "extra":
            staleness = stages - 1 - first_of_group(variant, stage, stages)
        forward = max(0, minibatch - staleness)
        if method == "vanilla":
            return forward, forward, minibatch
        if method == "fr":
            return forward, minibatch, minibatch
        return forward, forward, forward

    return weights_read


def first_of_group(variant: Variant, stage: int, stages: int) -> int:
    """First stage of the pair or half of a stage."""
    if variant["extra_method"] == "pairs":
        return stage - stage % 2
    return 0 if stage < stages // 2 else stages // 2


# -- store ------------------------------------------------------------------------------------------------------------


class WeightVersions:
    """Weight versions of a stage, in a fixed number of buffers and without copies.

    The constructor allocates all buffers. No method allocates an array or copies one.

    Parameters
    ----------
    weights : ndarray, shape (size,)
        Version 0. It is the first buffer, and updates may overwrite it.
    versions : int
        Number of buffers, this one included: the most versions that are needed at a time.
    """

    def __init__(self, weights: Array, versions: int) -> None:
        self._current = weights
        self._free = [np.empty_like(weights) for _ in range(versions - 1)]
        self._older: dict[int, Array] = {}
        self._updates = 0

    def read(self, which: int) -> Array:
        """Return the weights of a version: the buffer itself, not a copy.

        Parameters
        ----------
        which : int
            The current version, or an older one that every update since has kept.
        """
        return self._older[self._updates - which] if which else self._current

    def update(self, rule: UpdateRule, kept: Collection[int] = ()) -> None:
        """Compute the next version, which becomes the current one.

        Parameters
        ----------
        rule : callable
            ``rule(old, new)`` reads the current weights `old` and writes the updated ones to `new`: another buffer, or
            the same one for an update in place. Call it once.
        kept : collection of int
            The older versions that are read later. The version before this update may be among them. All others are
            no longer needed, and there may be gaps.
        """
        numbers = {self._updates + 1 - which for which in kept}
        self._free += [buffer for number, buffer in self._older.items() if number not in numbers]
        self._older = {number: buffer for number, buffer in self._older.items() if number in numbers}
        old = new = self._current
        if self._updates in numbers:
            self._older[self._updates] = old
            new = self._free.pop()
        rule(old, new)
        self._current = new
        self._updates += 1


def store_solution(variant: Variant) -> type[WeightVersions]:
    """The same class in every variant."""
    return WeightVersions


# -- stage ------------------------------------------------------------------------------------------------------------


class Stage:
    """One layer, y = f(W x), which is a stage of an asynchronous pipeline.

    Forward and backward passes of a stage come in the order of the minibatches, but further forward passes may come
    between the forward and the backward pass of a minibatch. Every backward pass makes one update. The stage stores
    only what later passes need.

    Parameters
    ----------
    weights : ndarray, shape (outputs, inputs)
        W before the first update. It belongs to the stage, which may write to it.
    activation : {"tanh", "identity"}
        f.
    method : {"vanilla", "ddg", "fr"}
        ``"vanilla"``: the backward pass uses the stored activations and the current weights. ``"ddg"``: it uses the
        stored activations and the weights of the forward pass. ``"fr"``: it computes the activations again from the
        stored inputs, and uses the current weights throughout.
    rate : float
        Learning rate. An update is W - rate dW, with the current W and the gradient dW of the loss with respect to W.

    Attributes
    ----------
    weights : ndarray, shape (outputs, inputs)
        The current W.
    """

    by_staleness: ClassVar[bool] = False

    def __init__(self, weights: Array, activation: str, method: str, rate: float) -> None:
        self.weights = weights
        self._tanh, self._method, self._rate = activation == "tanh", method, rate
        self._stored: dict[int, tuple[Any, ...]] = {}
        self._updates = 0

    def forward(self, minibatch: int, x: Array) -> Array:
        """Compute the outputs of a minibatch with the current weights.

        Parameters
        ----------
        minibatch : int
        x : ndarray, shape (inputs, samples)
            It belongs to the caller, who overwrites it after the call.

        Returns
        -------
        y : ndarray, shape (outputs, samples)
            The caller does not change it.
        """
        y = self._outputs(self.weights, x)
        self._stored[minibatch] = self._stored_for(x.copy(), y)
        return y

    def backward(self, minibatch: int, dy: Array) -> Array:
        """Compute the gradients of a minibatch, and update the weights.

        Parameters
        ----------
        minibatch : int
            Its forward pass came before; it is not used again.
        dy : ndarray, shape (outputs, samples)
            Gradient of the loss with respect to the outputs of the minibatch.

        Returns
        -------
        dx : ndarray, shape (inputs, samples)
            Gradient of the loss with respect to its inputs, computed before the update.
        """
        x, y, weights, updates = self._stored.pop(minibatch)
        weights = self.weights if weights is None else weights
        y = self._outputs(weights, x) if y is None else y
        dz = dy * (1 - y * y) if self._tanh else dy
        dx: Array = weights.T @ dz
        rate = self._rate / (1 + self._updates - updates) if self.by_staleness else self._rate
        self.weights = self.weights - rate * (dz @ x.T)
        self._updates += 1
        return dx

    def _outputs(self, weights: Array, x: Array) -> Array:
        z: Array = weights @ x
        return np.tanh(z) if self._tanh else z

    def _stored_for(self, x: Array, y: Array) -> tuple[Any, ...]:
        """What the backward pass needs: inputs, activations, weights, and number of updates before the forward pass."""
        if self._method == "fr":
            return x, None, None, self._updates
        return x, y, self.weights if self._method == "ddg" else None, self._updates


class StageWithFallingRate(Stage):
    """The learning rate falls with the staleness."""

    by_staleness = True


def stage_solution(variant: Variant) -> type[Stage]:
    """A stage with a constant learning rate, or with one that falls with the staleness."""
    return StageWithFallingRate if variant["stale_rate"] == "by staleness" else Stage


# -- distance ---------------------------------------------------------------------------------------------------------


def predicted_reads(stage: int, stages: int, minibatch: int, minibatches: int) -> Prediction:
    """Weights that SpecTrain reads: a version, and the number of updates to predict beyond it.

    Both passes of a minibatch aim at the same version: the one that the stage has when the round trip of the minibatch
    ends, not counting the update of the minibatch itself.

    Parameters
    ----------
    stage : int
        Number of the stage.
    stages : int
        Number of stages, K.
    minibatch : int
        Number of the minibatch, t, from 0.
    minibatches : int
        Number of minibatches until the pipeline is empty, T.

    Returns
    -------
    forward : (int, int)
        The newest version at the forward pass, and s, the number of updates from it to the one aimed at.
    backward : (int, int)
        The same for the backward pass.
    """
    return distance_solution({"backward_length": "1"})(stage, stages, minibatch, minibatches)


def distance_solution(variant: Variant) -> Callable[[int, int, int, int], Prediction]:
    """Equations 5 and 6 of Chen et al. 2018, while the pipeline fills and drains, too."""

    def predicted_reads(stage: int, stages: int, minibatch: int, minibatches: int) -> Prediction:
        later = later_updates(variant, stage)
        newest = max(0, minibatch - (stages - 1 - stage))
        aim = min(minibatch + later, minibatches - 1)
        return (newest, aim - newest), (minibatch, aim - minibatch)

    return predicted_reads


def later_updates(variant: Variant, stage: int) -> int:
    """Updates of a stage between its backward pass of a minibatch and the end of the round trip."""
    length = int(variant["backward_length"])
    return length * stage // (1 + length)


# -- predict ----------------------------------------------------------------------------------------------------------


def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
    """Write the weights expected after some more updates to `out`: a method of SGD with momentum.

    It allocates no array of the size of the weights, changes none but `out`, and does not loop over elements.

    Parameters
    ----------
    self : SGD
        The optimizer. Its attribute `momentum` is the factor on the velocity in every update.
    weights : ndarray, shape (size,)
        The current weights.
    state : OptimizerState
        ``state.slots["velocity"]``, shape (size,), is the velocity that the last update applied.
    lr : float
        Learning rate of the updates.
    steps : int
        Number of updates to predict, s; it may be 0.
    out : ndarray, shape (size,)
        The predicted weights are written to it.
    """
    predict_solution({"velocity": "constant"})(self, weights, state, lr, steps, out)


def predict_solution(variant: Variant) -> Callable[[Any, Array, Any, float, int, Array], None]:
    """Extrapolation along the velocity, which is constant or decays."""

    def predict(self: Any, weights: Array, state: Any, lr: float, steps: int, out: Array) -> None:
        np.multiply(state.slots["velocity"], distance_factor(variant, self.momentum, steps) * lr, out=out)
        np.subtract(weights, out, out=out)

    return predict


def distance_factor(variant: Variant, momentum: float, steps: int) -> float:
    """Predicted distance in multiples of the learning rate times the velocity."""
    if variant["velocity"] == "constant":
        return steps
    return sum(momentum**step for step in range(1, steps + 1))
