"""Weight versions of a stage: the current one, older ones, and one predicted ahead.

When a version is about to be replaced and a later pass still reads it, the update writes the next version to another
buffer, so that a stash costs no copy; the buffer is free again after its last reader. Together with the current weights
a stage holds as many versions as its policy allows: K-k at stage k for stashed weights.

Batch ranks that share a replica share its versions, and take the buffers in the same order. The update starts when all
of them have reached it: none still reads what it writes to. Every rank computes predicted weights for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from numpy.typing import NDArray

from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.stage import Stage

Array = NDArray[Any]
Views = list[LayerParameters]


class WeightStore:
    """Weights that the passes of a stage read.

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
        self._older: dict[int, tuple[Array, Views]] = {}  # by age, in updates
        self._rates: Sequence[float] = ()
        self._updates = 0
        self.nbytes = (versions - 1) * stage.replica.bytes_per_rank(current.nbytes) + predicts * current.nbytes

    def begin(self, rates: Sequence[float]) -> None:
        """Start a run: only the current version is kept.

        Parameters
        ----------
        rates : sequence of float
            Learning rates of its updates.
        """
        self._free += self._older.values()
        self._older = {}
        self._rates, self._updates = rates, 0

    def read(self, age: int, ahead: int) -> Views:
        """Parameters for a pass: those of `age` updates ago, or those predicted for `ahead` updates later."""
        if self._predicted is not None and ahead:
            out, views = self._predicted
            rate = self._rates[self._updates]
            self._optimizer.predict(self._stage.weights, self._state, rate, ahead, out)
            return views
        return self._stage.parameters if age == 0 else self._older[age][1]

    def update(self, rate: float, kept: Collection[int] = ()) -> None:
        """Make the current version into the next.

        Parameters
        ----------
        rate : float
            Learning rate.
        kept : collection of int
            Ages, after the update, of the older versions that are read later; 1 is the version before the update.
        """
        stage = self._stage
        if kept or self._older:
            self._free += [held for age, held in self._older.items() if age + 1 not in kept]
            self._older = {age + 1: held for age, held in self._older.items() if age + 1 in kept}
        if 1 in kept:
            self._older[1] = stage.weights, stage.parameters
            flat, views = self._free.pop()
            stage.replica.update(self._optimizer, stage.weights, self._state, rate, out=flat)
            stage.weights, stage.parameters = flat, views
        else:
            stage.replica.update(self._optimizer, stage.weights, self._state, rate)
        self._updates += 1

    def _with_views(self, flat: Array) -> tuple[Array, Views]:
        return flat, self._stage.layout.views(flat)
