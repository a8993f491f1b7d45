"""A stage: consecutive layers as one rank holds them, with their parameters, gradients and passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import ParameterLayout, parameter_name
from hybridnn.parallel.dense import parallel_dense
from hybridnn.parallel.gradient_reduction import GradientReducer
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.workspace import StageArrays, Workspace

__all__ = ["Stage"]


class Stage:
    """Layers, parameters and gradients of this rank.

    Parameters
    ----------
    layers : sequence of DenseLayer
        Consecutive layers.
    grid : ProcessGrid
        The layers are split over its model group, the gradients summed over its batch group.
    split : {"columns", "alternating"}
    dtype : dtype
        float32 or float64.
    overlap : bool
        Let messages travel while the backward pass computes.

    Attributes
    ----------
    layout : ParameterLayout
        Where the arrays of the layers lie in the flat buffers.
    weights : ndarray, shape (layout.size,)
    gradient : ndarray, shape (layout.size + 1,)
        Gradients, and behind them the sum of the losses.
    """

    def __init__(
        self, layers: Sequence[DenseLayer], grid: ProcessGrid, split: str, dtype: DTypeLike, overlap: bool
    ) -> None:
        group = grid.model_group
        self.splits = split_layers(layers, split, group.size, group.rank)
        self._group = group
        self._recorder = grid.recorder
        self._dense = [parallel_dense(item, group, overlap) for item in self.splits]
        self.layout = ParameterLayout([item.shard for item in self.splits])
        self.weights = kernels.zeros((self.layout.size,), dtype)
        self.gradient = kernels.zeros((self.layout.size + 1,), dtype)
        self._parameters = self.layout.views(self.weights)
        self._gradients = self.layout.views(self.gradient)
        self._reducer = GradientReducer(grid.batch_group, self.gradient, self.layout.ends, overlap)

    def workspace(self, capacity: int, classification: bool) -> Workspace:
        """Arrays for minibatches of up to `capacity` samples on this rank."""
        return Workspace(self.splits, self._group.size, self._group.rank, capacity, self.weights.dtype, classification)

    @property
    def loss(self) -> NDArray[Any]:
        """Sum of the losses of the last minibatch, shape (1,): over this rank's samples, and over all once reduced."""
        return self.gradient[-1:]

    def forward(self, arrays: StageArrays) -> None:
        """Compute the outputs from the samples in `arrays`."""
        start = perf_counter()
        for dense, parameters, layer in zip(self._dense, self._parameters, arrays.layers, strict=True):
            dense.forward(parameters, layer)
        self._recorder.end_compute("forward", start)

    def backward(self, arrays: StageArrays) -> None:
        """Compute the gradients from the output gradient in `arrays`, and sum them over the batch group."""
        start = perf_counter()
        for place in reversed(range(len(self._dense))):
            dense, layer = self._dense[place], arrays.layers[place]
            sum_of_dx = dense.backward_input(self._parameters[place], layer)
            dense.backward_weight(layer, self._gradients[place])
            self._reducer.ready(place)
            sum_of_dx.wait()
        self._reducer.finish()
        self._recorder.end_compute("backward", start)

    def squared_norms(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        """Squared norm of every layer of a flat buffer, each parameter of the model counted once.

        Parameters
        ----------
        flat : ndarray, shape (at least layout.size,)

        Returns
        -------
        ndarray, shape (layers,)
        """
        starts = (0, *self.layout.ends[:-1])
        squares = [kernels.squared_norm(flat[a:b]) for a, b in zip(starts, self.layout.ends, strict=True)]
        return _summed(self._group, np.array(squares))

    def whole_parameters(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Collect the global arrays that `flat` holds the blocks of; collective over the model group.

        Returns
        -------
        dict
            Name to array: ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.
        """
        whole: dict[str, NDArray[Any]] = {}
        for shard, view in zip(self.layout.shards, self.layout.views(flat), strict=True):
            weight = np.zeros((shard.layer.outputs, shard.layer.inputs), flat.dtype)
            weight[shard.rows, shard.columns] = view.weight
            bias = np.zeros(shard.layer.outputs, flat.dtype)
            bias[shard.bias_rows] = view.bias
            # No block is owned twice, so the sum of the blocks in their places is the array, exactly.
            whole[parameter_name(shard.layer, "weight")] = _summed(self._group, weight)
            whole[parameter_name(shard.layer, "bias")] = _summed(self._group, bias)
        return whole

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take this rank's blocks of global arrays."""
        self.layout.load(self.weights, weights)


def _summed(group: Group, array: NDArray[Any]) -> NDArray[Any]:
    group.allreduce(array)
    return array
