"""Weight versions of a chunk: the current, stashed and predicted weights.

If a later pass still reads the current version, the update writes the next version to another buffer, so that a stash
costs no copy; the buffer is free again after its last reader. Including the current weights, a stage holds as many
versions as its weight policy requires: K-k at stage k for stashed weights.

Batch ranks with a shared replica share its versions and use the buffers in the same order. An update starts when all of
them have reached it, so that no rank reads the buffer that it writes. Predicted weights are private to every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hybridnn.kernels.backend import HostArray
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.model_chunk import ModelChunk

Views = list[LayerParameters]


class WeightStore:
    """Weight versions that the passes of a chunk read: at most `versions` at a time, including the current one."""

    def __init__(
        self, chunk: ModelChunk, optimizer: Optimizer, state: OptimizerState, versions: int, *, predicts: bool
    ) -> None:
        self._chunk, self._optimizer, self._state = chunk, optimizer, state
        self._free = [self._with_views(chunk.replica.new_array()) for _ in range(versions - 1)]
        current = chunk.weights
        self._predicted = self._with_views(chunk.kernels.empty(current.shape, current.dtype)) if predicts else None
        self._older: dict[int, tuple[HostArray, Views]] = {}  # by age, in updates
        self._rates: Sequence[float] = ()
        self._updates = 0
        self.nbytes = (versions - 1) * chunk.replica.bytes_per_rank(current.nbytes) + predicts * current.nbytes

    def begin(self, rates: Sequence[float]) -> None:
        """Start a run of a schedule, with these learning rates of its updates: drop all stashed versions."""
        self._free += self._older.values()
        self._older = {}
        self._rates, self._updates = rates, 0

    def read(self, age: int, ahead: int) -> Views:
        """Parameters for a pass: the version of `age` updates ago, or the prediction for `ahead` updates later."""
        if self._predicted is not None and ahead:
            out, views = self._predicted
            rate = self._rates[self._updates]
            self._optimizer.predict(self._chunk.weights, self._state, rate, ahead, out)
            return views
        return self._chunk.parameters if age == 0 else self._older[age][1]

    def update(self, rate: float, kept: Collection[int] = ()) -> None:
        """Update the current weights.

        Parameters
        ----------
        kept : collection of int
            Ages, after the update, of the older versions that are read later; 1 is the version before the update.
        """
        chunk = self._chunk
        if kept or self._older:
            self._free += [version for age, version in self._older.items() if age + 1 not in kept]
            self._older = {age + 1: version for age, version in self._older.items() if age + 1 in kept}
        if 1 in kept:
            self._older[1] = chunk.weights, chunk.parameters
            flat, views = self._free.pop()
            chunk.replica.update(self._optimizer, chunk.weights, self._state, rate, out=flat)
            chunk.weights, chunk.parameters = flat, views
        else:
            chunk.replica.update(self._optimizer, chunk.weights, self._state, rate)
        self._updates += 1

    def _with_views(self, flat: HostArray) -> tuple[HostArray, Views]:
        return flat, self._chunk.layout.views(flat)
