"""The arrays of a stage for a minibatch, allocated once for the largest and viewed for every size.

The forward pass keeps one output per layer. The backward pass needs only two gradients at a time, because a layer's
weight gradient is done before the layer below writes over what it read: two buffers take turns, and the free one is
scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.partition import block_slice
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.parallel.dense import LayerArrays
from hybridnn.parallel.layer_split import SplitLayer

__all__ = ["StageArrays", "Workspace"]

Array = NDArray[Any]


@dataclass(frozen=True)
class StageArrays:
    """All arrays of a stage for n samples of this rank.

    Attributes
    ----------
    samples : ndarray, shape (n, features)
        Where the minibatch's inputs are written; the first layer reads its transpose.
    targets : ndarray, shape (n, outputs), or of int64 and shape (n,)
        Where the minibatch's targets are written.
    columns : ndarray of int64, shape (n,)
        0 … n-1.
    layers : list of LayerArrays
    outputs : ndarray, shape (outputs, n)
        Output of the last layer.
    output_gradient : ndarray, shape (outputs, n)
        Where the loss writes its gradient.
    """

    samples: Array
    targets: Array
    columns: NDArray[np.int64]
    layers: list[LayerArrays]
    outputs: Array
    output_gradient: Array


class Workspace:
    """Memory for minibatches of up to `capacity` samples on this rank.

    Parameters
    ----------
    splits : sequence of SplitLayer
        The layers of the stage.
    ranks, rank : int
        Size of the model group and this rank's place in it.
    capacity : int
        Most samples of a minibatch that come to this rank.
    dtype : dtype
        Of activations and gradients.
    classification : bool
        Whether targets are integer labels.
    """

    def __init__(
        self, splits: Sequence[SplitLayer], ranks: int, rank: int, capacity: int, dtype: DTypeLike, classification: bool
    ) -> None:
        self._splits = splits
        self._ranks, self._rank = ranks, rank
        self._classification = classification
        self._cache: dict[int, StageArrays] = {}

        def room(height: int) -> Array:
            return kernels.empty((height * capacity,), dtype)

        first, last = splits[0].layer, splits[-1].layer
        self._samples = room(first.inputs)
        self._targets = kernels.empty((capacity,), np.int64) if classification else room(last.outputs)
        self._columns = np.arange(capacity)
        self._ones = kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        self._outputs = [room(_output_height(split)) for split in splits]
        self._activations = [room(_own_height(split)) if split.layer.residual else None for split in splits]
        gathered = [split.by_inputs and split.layer.residual and ranks > 1 for split in splits]
        self._whole_inputs = [
            room(split.layer.inputs) if gather else None for split, gather in zip(splits, gathered, strict=True)
        ]
        self._own_gradient = room(max((_own_height(split) for split in splits if split.layer.residual), default=0))
        widest = max(_output_height(split) for split in splits)  # nobody wants the gradient of the first layer's input
        self._gradients = (room(widest), room(widest))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [self._samples, self._targets, self._columns, self._ones, self._own_gradient]
        arrays += [*self._gradients, *self._outputs]
        arrays += [a for a in (*self._activations, *self._whole_inputs) if a is not None]
        return sum(array.nbytes for array in arrays)

    def arrays(self, n: int) -> StageArrays:
        """Views for `n` samples, at most the capacity; the memory is the same for every `n`."""
        if n not in self._cache:
            self._cache[n] = self._view(n)
        return self._cache[n]

    def _view(self, n: int) -> StageArrays:
        first, last = self._splits[0].layer, self._splits[-1].layer
        samples = self._samples[: n * first.inputs].reshape(n, first.inputs)
        targets = self._targets[:n]
        if not self._classification:
            targets = self._targets[: n * last.outputs].reshape(n, last.outputs)
        layers: list[LayerArrays] = []
        x = samples.T
        for place in range(len(self._splits)):
            layers.append(self._view_layer(place, x, n))
            x = layers[-1].y
        return StageArrays(samples, targets, self._columns[:n], layers, layers[-1].y, layers[-1].dy)

    def _view_layer(self, place: int, x: Array, n: int) -> LayerArrays:
        split = self._splits[place]
        layer, shard = split.layer, split.shard

        def view(flat: Array, height: int) -> Array:
            return flat[: height * n].reshape(height, n)

        above = len(self._splits) - 1 - place
        y = view(self._outputs[place], _output_height(split))
        dy = view(self._gradients[above % 2], _output_height(split))
        dx = view(self._gradients[(above + 1) % 2], len(x)) if place > 0 else None
        own = _own_height(split)
        whole_x = own_x = own_dx = None
        if split.by_inputs:
            own_y, own_dy = y, dy[shard.columns] if layer.residual else dy
            if layer.residual:
                stored = self._whole_inputs[place]
                whole_x = x if stored is None else view(stored, layer.inputs)
                own_x = None if stored is None else whole_x[shard.columns]
        else:
            own_y, own_dy = (y[shard.rows], dy[shard.rows]) if split.gathers else (y, dy)
            if layer.residual:
                block = block_slice(layer.inputs, self._ranks, self._rank)
                own_x, own_dx = x[block], None if dx is None else dx[block]
        separate = self._activations[place]
        return LayerArrays(
            x=x,
            whole_x=whole_x,
            activation=own_y if separate is None else view(separate, own),
            y=y,
            own_y=own_y,
            dy=dy,
            own_dy=own_dy,
            dz=(own_dy if not layer.residual else view(self._own_gradient, own)),
            dx=dx,
            own_x=own_x,
            own_dx=own_dx,
            scratch=view(self._gradients[(above + 1) % 2], own),
            ones=self._ones[:n],
        )


def _own_height(split: SplitLayer) -> int:
    """Rows of the output this rank computes: its block, or all (a part of every sum) where split by inputs."""
    return split.shard.weight_shape[0]


def _output_height(split: SplitLayer) -> int:
    """Rows of the output the next layer gets."""
    return split.layer.outputs if split.gathers else split.shard.weight_shape[0]
