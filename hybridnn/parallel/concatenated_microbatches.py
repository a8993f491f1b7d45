"""Microbatches concatenated for one weight-gradient product per layer; a single stage has one microbatch."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import DTypeLike

from hybridnn.nn.kernels import Array, Kernels
from hybridnn.nn.parameters import LayerShard
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays


class ConcatenatedMicrobatches:
    """Inputs and gradients of all samples of a minibatch on this rank, for one weight-gradient product per layer.

    The microbatches are concatenated as columns, so ``dz xᵀ`` over all columns is the sum over the microbatches. One
    large product is faster than several small ones whose results are added. With `loads_input` the input of the first
    layer is data, of which every sample is contiguous.
    """

    def __init__(
        self, shards: Sequence[LayerShard], capacity: int, dtype: DTypeLike, loads_input: bool, kernels: Kernels
    ) -> None:
        self._kernels, self._loads_input = kernels, loads_input
        self._shapes = [shard.weight_shape for shard in shards]
        self._x = [kernels.empty((columns * capacity,), dtype) for _, columns in self._shapes]
        self._dz = [kernels.empty((rows * capacity,), dtype) for rows, _ in self._shapes]
        self._ones = kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        self._cache: dict[int, list[WeightGradientArrays]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (self._ones, *self._x, *self._dz))

    def layers(self, samples: int) -> list[WeightGradientArrays]:
        """Views for a minibatch of `samples` on this rank."""
        if samples not in self._cache:
            self._cache[samples] = [self._view(index, samples) for index in range(len(self._shapes))]
        return self._cache[samples]

    def copy_layer(self, index: int, layer: LayerArrays, first: int, samples: int) -> None:
        """Copy the input and gradient of one layer of a microbatch to the columns from `first` on, of `samples`."""
        concatenated = self.layers(samples)[index]
        columns = slice(first, first + len(layer.ones))
        self._kernels.copy(layer.x, concatenated.x[:, columns])
        self._kernels.copy(layer.dz, concatenated.dz[:, columns])

    def _view(self, index: int, samples: int) -> WeightGradientArrays:
        rows, columns = self._shapes[index]
        x: Array = self._x[index][: columns * samples]
        samples_contiguous = self._loads_input and index == 0
        x = x.reshape(samples, columns).T if samples_contiguous else x.reshape(columns, samples)
        dz = self._dz[index][: rows * samples].reshape(rows, samples)
        return WeightGradientArrays(x=x, dz=dz, ones=self._ones[:samples])
