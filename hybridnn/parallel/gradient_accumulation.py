"""Weight gradients of all microbatches of a minibatch as one product per layer.

The microbatches' inputs and gradients are columns of one array each, so ``dz xᵀ`` over all columns is the sum over the
microbatches. One large product is faster than several small ones whose results are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from hybridnn.kernels.backend import Array, Kernels
from hybridnn.nn.parameters import LayerShard
from hybridnn.parallel.dense import LayerArrays


@dataclass
class JoinedLayer:
    """What one layer's weight gradient is computed from: input, gradient and a vector of ones over all samples."""

    x: Array
    dz: Array
    ones: Array


class JoinedMicrobatches:
    """Room for the samples of a whole minibatch that come to this rank.

    Parameters
    ----------
    splits : sequence of LayerShard
        The layers of the stage.
    capacity : int
        Most samples.
    dtype : dtype
    loads_input : bool
        Whether the first layer's input is data, which lies sample by sample.
    kernels : Kernels
        Of the device that holds the arrays.
    """

    def __init__(
        self, splits: Sequence[LayerShard], capacity: int, dtype: DTypeLike, loads_input: bool, kernels: Kernels
    ) -> None:
        self._kernels = kernels
        shapes = [split.weight_shape for split in splits]
        self._loads_input = loads_input
        self._x = [kernels.empty((columns * capacity,), dtype) for _, columns in shapes]
        self._dz = [kernels.empty((rows * capacity,), dtype) for rows, _ in shapes]
        self._ones = kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        self._shapes = shapes
        self._cache: dict[int, list[JoinedLayer]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (self._ones, *self._x, *self._dz))

    def layers(self, samples: int) -> list[JoinedLayer]:
        """Views for a minibatch of `samples` on this rank."""
        if samples not in self._cache:
            self._cache[samples] = [self._view(place, samples) for place in range(len(self._shapes))]
        return self._cache[samples]

    def take(self, place: int, layer: LayerArrays, first: int, samples: int) -> None:
        """Copy a microbatch's input and gradient of one layer to the columns from `first` on, of `samples`."""
        joined = self.layers(samples)[place]
        columns = slice(first, first + len(layer.ones))
        self._kernels.copy(layer.x, joined.x[:, columns])
        self._kernels.copy(layer.dz, joined.dz[:, columns])

    def _view(self, place: int, samples: int) -> JoinedLayer:
        rows, columns = self._shapes[place]
        x = self._x[place][: columns * samples]
        by_sample = self._loads_input and place == 0
        return JoinedLayer(
            x=x.reshape(samples, columns).T if by_sample else x.reshape(columns, samples),
            dz=self._dz[place][: rows * samples].reshape(rows, samples),
            ones=self._ones[:samples],
        )
