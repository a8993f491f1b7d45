"""What an executor is given to do: the minibatches of a training run, of an evaluation, of a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.kernels.backend import Kernels
from hybridnn.nn.losses import loss_gradient
from hybridnn.parallel.workspace import StageArrays
from hybridnn.training.loading import Loader
from hybridnn.training.metrics import MetricSums

Array = NDArray[Any]


class _DataWork:
    """Minibatches that are samples of a part of the data.

    Parameters
    ----------
    loader : Loader
    first : int
        Number of the first minibatch among those of the loader.
    sizes : sequence of int
        Samples of every minibatch.
    loss_name : {"mse", "cross_entropy"}
    kernels : Kernels
        Of the device that trains.
    """

    def __init__(self, loader: Loader, first: int, sizes: Sequence[int], loss_name: str, kernels: Kernels) -> None:
        self._loader, self._first, self.sizes = loader, first, sizes
        self._loss_name, self._kernels = loss_name, kernels

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """See `Work.load`."""
        self._loader.load(self._first + minibatch, start, stop, x, y)

    def loss(self, minibatch: int, arrays: StageArrays, loss: Array) -> None:
        """See `Work.loss`; the gradient is that of the mean over the whole minibatch."""
        loss_gradient(
            self._kernels,
            self._loss_name,
            arrays.outputs,
            arrays.targets,
            arrays.columns,
            self.sizes[minibatch],
            arrays.output_gradient,
            loss,
        )


class TrainingWork(_DataWork):
    """Minibatches to train on.

    Parameters
    ----------
    loader, first, sizes, loss_name, kernels
        As for all data.
    rates : callable
        Learning rate of each minibatch's update.
    reduced, updated : callable
        Called before and after a minibatch's gradients are applied.
    """

    def __init__(
        self,
        loader: Loader,
        first: int,
        sizes: Sequence[int],
        loss_name: str,
        kernels: Kernels,
        rates: Callable[[int], float],
        reduced: Callable[[int], None],
        updated: Callable[[int], None],
    ) -> None:
        super().__init__(loader, first, sizes, loss_name, kernels)
        self.rate, self.reduced, self.updated = rates, reduced, updated

    def outputs(self, minibatch: int, start: int, stop: int, arrays: StageArrays) -> None:
        """Nothing: the backward pass uses them."""


class _ForwardWork:
    """Nothing is updated."""

    def rate(self, minibatch: int) -> float:
        """No update has a rate."""
        return 0.0

    def reduced(self, minibatch: int) -> None:
        """There are no gradients."""

    def updated(self, minibatch: int) -> None:
        """Nothing is updated."""


class EvaluationWork(_ForwardWork, _DataWork):
    """Minibatches to measure the network on; every sample counts once.

    Parameters
    ----------
    loader, sizes, loss_name, kernels
        As for all data.
    sums : MetricSums
        Counts the samples of this rank, on the last stage.
    dtype : dtype
        Of the losses.
    """

    def __init__(
        self,
        loader: Loader,
        sizes: Sequence[int],
        loss_name: str,
        kernels: Kernels,
        sums: MetricSums,
        dtype: np.dtype[Any],
    ) -> None:
        super().__init__(loader, 0, sizes, loss_name, kernels)
        self._sums, self._loss = sums, kernels.zeros((1,), dtype)

    def outputs(self, minibatch: int, start: int, stop: int, arrays: StageArrays) -> None:
        """Count the samples."""
        self.loss(minibatch, arrays, self._loss)
        to_host = self._kernels.to_host
        self._sums.add(to_host(arrays.outputs), to_host(arrays.targets), float(to_host(self._loss)[0]))


class PredictionWork(_ForwardWork):
    """Samples to compute the outputs of.

    Parameters
    ----------
    x : ndarray, shape (samples, features)
    sizes : sequence of int
        Consecutive minibatches.
    block : callable
        From a number of samples to this rank's slice of them.
    out : ndarray, shape (samples, outputs)
        Takes the outputs of this rank's samples, on the last stage.
    kernels : Kernels
        Of the device that computes; `x` and `out` are the host's.
    """

    def __init__(
        self, x: Array, sizes: Sequence[int], block: Callable[[int], slice], out: Array, kernels: Kernels
    ) -> None:
        self._x, self.sizes, self._block, self._out, self._kernels = x, sizes, block, out, kernels
        self._firsts = np.cumsum([0, *sizes])

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """Take the inputs; predicting needs no targets."""
        if x is not None:
            self._kernels.put(np.ascontiguousarray(self._rows(self._x, minibatch), x.dtype), x)

    def loss(self, minibatch: int, arrays: StageArrays, loss: Array) -> None:
        """Nothing is compared."""

    def outputs(self, minibatch: int, start: int, stop: int, arrays: StageArrays) -> None:
        """Keep the outputs."""
        self._rows(self._out, minibatch)[...] = self._kernels.to_host(arrays.outputs).T

    def _rows(self, array: Array, minibatch: int) -> Array:
        """This rank's samples of a minibatch."""
        first = int(self._firsts[minibatch])
        return array[first : first + self.sizes[minibatch]][self._block(self.sizes[minibatch])]
