"""Weight gradients of all microbatches of a minibatch as one matrix product per layer.

The inputs and gradients of the microbatches are concatenated as columns, so ``dz xᵀ`` over all columns is the sum over
the microbatches. One large product is faster than several small ones whose results are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from numpy.typing import DTypeLike

from hybridnn.kernels.backend import Array, Kernels
from hybridnn.nn.parameters import LayerShard
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays


class ConcatenatedMicrobatches:
    """Concatenated inputs and gradients of all samples of a minibatch on this rank.

    Inputs are stored as factors of the product only, gradients also as they are, for the gradients of the biases.

    Parameters
    ----------
    loads_input : bool
        Whether the first layer's input is data, of which every sample is contiguous.
    """

    def __init__(
        self, shards: Sequence[LayerShard], capacity: int, dtype: DTypeLike, loads_input: bool, kernels: Kernels
    ) -> None:
        self._kernels, self._loads_input = kernels, loads_input
        self._shapes = [shard.weight_shape for shard in shards]
        factor = kernels.empty_factor if kernels.rounds_factors else partial(kernels.empty, dtype=dtype)
        self._x = [factor((columns * capacity,)) for _, columns in self._shapes]
        self._dz = [kernels.empty((rows * capacity,), dtype) for rows, _ in self._shapes]
        self._dz_factors = self._dz
        if kernels.rounds_factors:
            self._dz_factors = [factor((rows * capacity,)) for rows, _ in self._shapes]
        self._ones = kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        self._cache: dict[int, list[WeightGradientArrays]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        rounded = self._dz_factors if self._kernels.rounds_factors else ()
        return sum(array.nbytes for array in (self._ones, *self._x, *self._dz, *rounded))

    def layers(self, samples: int) -> list[WeightGradientArrays]:
        """Views for a minibatch of `samples` on this rank."""
        if samples not in self._cache:
            self._cache[samples] = [self._view(index, samples) for index in range(len(self._shapes))]
        return self._cache[samples]

    def copy_layer(self, index: int, layer: LayerArrays, first: int, samples: int) -> None:
        """Copy the input and gradient of one layer of a microbatch to the columns from `first` on, of `samples`."""
        concatenated = self.layers(samples)[index]
        columns = slice(first, first + len(layer.ones))
        self._kernels.copy(layer.x_factor, concatenated.x[:, columns])
        self._kernels.copy(layer.dz, concatenated.dz[:, columns])
        if self._kernels.rounds_factors:
            self._kernels.copy(layer.dz_factor, concatenated.dz_factor[:, columns])

    def _view(self, index: int, samples: int) -> WeightGradientArrays:
        rows, columns = self._shapes[index]
        x: Array = self._x[index][: columns * samples]
        samples_contiguous = self._loads_input and index == 0
        x = x.reshape(samples, columns).T if samples_contiguous else x.reshape(columns, samples)
        dz, dz_factor = (flat[index][: rows * samples].reshape(rows, samples) for flat in (self._dz, self._dz_factors))
        return WeightGradientArrays(x=x, dz=dz, ones=self._ones[:samples], x_factor=x, dz_factor=dz_factor)
