"""The weight versions of a stage: the current one, older ones, and one predicted ahead.

When a version is about to be replaced and something later still reads it, the update writes the next version to
another buffer, so that a stash costs no copy; the buffer is free again after its last reader. Together with the current
weights a stage holds as many versions as its policy allows: K-k at stage k for stashed weights.

Batch ranks that share a replica share its versions, and take the buffers in the same order. The update begins when all
of them have come to it: no one reads any more what it writes to. Predicted weights every rank computes for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.stage import Stage
from hybridnn.pipeline.schedules.weight_policies import WeightRead

Array = NDArray[Any]
Views = list[LayerParameters]


class WeightStore:
    """Hands out the weights that instructions read.

    Parameters
    ----------
    stage : Stage
        Has the current weights.
    optimizer : Optimizer
    state : OptimizerState
        For predictions.
    versions : int
        Most versions held at a time, the current one included.
    predicts : bool
        Whether weights are predicted.
    """

    def __init__(
        self, stage: Stage, optimizer: Optimizer, state: OptimizerState, versions: int, *, predicts: bool
    ) -> None:
        self._stage, self._optimizer, self._state = stage, optimizer, state
        self._free = [self._with_views(stage.replica.new_array()) for _ in range(versions - 1)]
        current = stage.weights
        self._predicted = self._with_views(stage.kernels.empty(current.shape, current.dtype)) if predicts else None
        self._older: dict[int, tuple[Array, Views]] = {}
        self._last_readers: dict[int, int] = {}
        self.nbytes = (versions - 1) * stage.replica.bytes_per_rank(current.nbytes) + predicts * current.nbytes
        self.version = 0

    def begin(self, last_readers: dict[int, int]) -> None:
        """Start an epoch at version 0; `last_readers` tells which versions are read after their update, and where."""
        self._free += self._older.values()
        self._older = {}
        self._last_readers = last_readers
        self.version = 0

    def read(self, read: WeightRead, rate: Callable[[int], float]) -> Views:
        """Parameters for a pass.

        Parameters
        ----------
        read : WeightRead
        rate : callable
            Learning rate of the update that makes a version into the next; for predictions.
        """
        if self._predicted is not None and read.ahead:
            out, views = self._predicted
            self._optimizer.predict(self._stage.weights, self._state, rate(self.version), read.ahead, out)
            return views
        if read.version == self.version:
            return self._stage.parameters
        return self._older[read.version][1]

    def update(self, place: int, rate: float) -> None:
        """Make the next version of the current one, at `place` in the list; free those that nobody reads any more."""
        stage = self._stage
        for version in [version for version in self._older if self._last_readers[version] < place]:
            self._free.append(self._older.pop(version))
        if self.version not in self._last_readers:
            stage.replica.update(self._optimizer, stage.weights, self._state, rate)
        else:
            self._older[self.version] = stage.weights, stage.parameters
            flat, views = self._free.pop()
            stage.replica.update(self._optimizer, stage.weights, self._state, rate, out=flat)
            stage.weights, stage.parameters = flat, views
        self.version += 1

    def _with_views(self, flat: Array) -> tuple[Array, Views]:
        return flat, self._stage.layout.views(flat)
