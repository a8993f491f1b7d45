"""Errors of predicted and of stale weights during a training (Chen et al. 2018, section 3.3 and Figure 8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from hybridnn.nn.kernels import Array
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.training.global_arrays import GlobalArrays


@dataclass(frozen=True)
class _Version:
    """Weights of one step, by chunk, and those predicted from them for 1, 2, ... updates later."""

    weights: list[Array]
    predicted: list[list[Array]]


class WeightErrors:
    """Compares the weights with those of 1 to `most` updates before, and with the predictions made then.

    It keeps ``most * (most + 1)`` copies of the weights.
    """

    def __init__(
        self,
        most: int,
        optimizer: Optimizer,
        chunks: Sequence[ModelChunk],
        states: Sequence[OptimizerState],
        arrays: GlobalArrays,
        parameters: int,
    ) -> None:
        self._most, self._optimizer, self._chunks, self._states = most, optimizer, chunks, states
        self._arrays, self._parameters = arrays, parameters
        self._versions: deque[_Version] = deque(maxlen=most)  # of the last updates, the newest first

    def after_update(self, rate: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the root-mean-square errors of the stale and of the predicted weights; collective over the grid.

        Element s - 1 of each is for s updates. They are shorter in the first steps.

        Parameters
        ----------
        rate : float
            Learning rate of the predicted updates.
        """
        current = [chunk.weights for chunk in self._chunks]
        stale = tuple(self._error(current, version.weights) for version in self._versions)
        predicted = tuple(self._error(current, version.predicted[s]) for s, version in enumerate(self._versions))
        self._versions.appendleft(_Version([weights.copy() for weights in current], self._predictions(rate)))
        return stale, predicted

    def _predictions(self, rate: float) -> list[list[Array]]:
        found = []
        for updates in range(1, self._most + 1):
            arrays = [chunk.kernels.empty(chunk.weights.shape, chunk.weights.dtype) for chunk in self._chunks]
            for chunk, state, out in zip(self._chunks, self._states, arrays, strict=True):
                self._optimizer.predict(chunk.weights, state, rate, updates, out)
            found.append(arrays)
        return found

    def _error(self, current: Sequence[Array], other: Sequence[Array]) -> float:
        differences = [own - before for own, before in zip(current, other, strict=True)]
        return sqrt(self._arrays.squared_norms(differences).sum() / self._parameters)
