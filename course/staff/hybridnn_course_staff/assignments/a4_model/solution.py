"""Reference solutions of A4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridnn.comm.blocks import block_slice
from hybridnn.comm.group import DONE, Group, Request
from hybridnn.nn.kernels import Kernels
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerParameters, LayerShard
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a4_model.calls import Array, owned_bias

# -- split ------------------------------------------------------------------------------------------------------------


def is_by_inputs(variant: Variant, split: str, position: int) -> bool:
    """Whether the layer at a position is split by inputs."""
    return split == "alternating" and (position % 2 == 1) == (variant["first_split"] == "outputs")


def split_solution(variant: Variant) -> Callable[..., list[LayerShard]]:
    """Shards of the layers; alternating from outputs, or from inputs, on."""

    def split_layers(layers: Sequence[DenseLayer], split: str, ranks: int, rank: int) -> list[LayerShard]:
        shards = []
        for position, layer in enumerate(layers):
            inputs, outputs = block_slice(layer.inputs, ranks, rank), block_slice(layer.outputs, ranks, rank)
            if is_by_inputs(variant, split, position):
                bias = owned_bias(variant, layer, ranks, rank)
                shards.append(LayerShard(layer, slice(0, layer.outputs), inputs, bias, True, gathers=False))
            else:
                is_last = position == len(layers) - 1
                gathers = is_last or not is_by_inputs(variant, split, position + 1)
                shards.append(LayerShard(layer, outputs, slice(0, layer.inputs), outputs, False, gathers))
        return shards

    return split_layers


# -- layers -----------------------------------------------------------------------------------------------------------


def columns_solution(variant: Variant) -> type:
    """A layer split by outputs, which adds a residual input before or after the activation."""
    adds_before = variant["residual"] == "before activation"

    class ColumnDense:
        def __init__(self, shard: LayerShard, group: Group, overlap: bool, kernels: Kernels) -> None:
            self.shard, self.group, self.overlap, self.kernels = shard, group, overlap, kernels
            self.name = shard.layer.activation

        def forward(self, p: LayerParameters, s: LayerArrays) -> None:
            np.matmul(p.weight, s.x, out=s.activation)
            if adds_before and s.own_x is not None:
                s.activation += s.own_x
            self.kernels.bias_activate(self.name, s.activation, p.bias_column, s.scratch)
            if s.own_x is not None:
                np.copyto(s.local_y, s.activation if adds_before else s.activation + s.own_x)
            if self.shard.gathers:
                self.group.allgather_rows(s.y)

        def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
            self.kernels.gradient_of_activation(self.name, s.activation, s.own_dy, s.dz, s.scratch)
            if bias_gradient is not None:
                np.sum(s.dz, axis=1, out=bias_gradient)
            if s.dx is None:
                return DONE
            np.matmul(p.weight.T, s.dz, out=s.dx)
            if s.own_dx is not None:  # each rank adds its own rows: in the sum every row is added once
                s.own_dx += s.dz if adds_before else s.own_dy
            if self.overlap:
                return self.group.iallreduce(s.dx)
            self.group.allreduce(s.dx)
            return DONE

        def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
            np.matmul(s.dz, s.x.T, out=gradient.weight)
            if biases:
                np.sum(s.dz, axis=1, out=gradient.bias)

    return ColumnDense


def rows_solution(variant: Variant) -> type:
    """A layer split by inputs, which adds a residual input before or after the activation."""
    adds_before = variant["residual"] == "before activation"

    class RowDense:
        def __init__(self, shard: LayerShard, group: Group, kernels: Kernels) -> None:
            self.shard, self.group, self.kernels = shard, group, kernels
            self.name, self.residual = shard.layer.activation, shard.layer.residual

        def forward(self, p: LayerParameters, s: LayerArrays) -> None:
            np.matmul(p.weight, s.x, out=s.activation)
            s.activation[self.shard.bias_rows] += p.bias_column
            if self.residual and adds_before:  # each rank adds its own rows: in the sum every row is added once
                s.activation[self.shard.columns] += s.x
            self.group.allreduce(s.activation)
            self.kernels.activate(self.name, s.activation, s.scratch)
            if self.residual:
                np.copyto(s.y, s.activation if adds_before else s.activation + self.gathered_input(s))

        def gathered_input(self, s: LayerArrays) -> Array:
            full_x: Any = s.full_x
            if s.own_x is not None:
                np.copyto(s.own_x, s.x)
                self.group.allgather_rows(full_x)
            return np.asarray(full_x)

        def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
            self.kernels.gradient_of_activation(self.name, s.activation, s.dy, s.dz, s.scratch)
            if bias_gradient is not None:
                np.sum(s.dz[self.shard.bias_rows], axis=1, out=bias_gradient)
            if s.dx is not None:
                np.matmul(p.weight.T, s.dz, out=s.dx)
                if self.residual:
                    s.dx += s.dz[self.shard.columns] if adds_before else s.own_dy
            return DONE

        def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
            np.matmul(s.dz, s.x.T, out=gradient.weight)
            if biases:
                np.sum(s.dz[self.shard.bias_rows], axis=1, out=gradient.bias)

    return RowDense


# -- norm -------------------------------------------------------------------------------------------------------------


def global_norm(group: Any, gradients: Sequence[Array], is_replicated: Sequence[bool]) -> float:
    """Norm of the gradient of a model whose layers are split over the ranks.

    Parameters
    ----------
    group : Group
        The ranks; its method `allreduce` replaces an array by the sum over them.
    gradients : sequence of ndarray
        Of this rank; some may be empty. There are as many on every rank.
    is_replicated : sequence of bool
        For each of them whether it is a whole array, equal on all ranks; else it is this rank's block of one, and no
        element of it is on another rank.

    Returns
    -------
    float
        Root of the sum of the squares of all elements, each element of the model counted once; the same on all ranks.
    """
    squares = np.zeros(1)
    for gradient, replicated in zip(gradients, is_replicated, strict=True):
        if not replicated or group.rank == 0:
            squares += np.sum(gradient**2)
    group.allreduce(squares)
    return float(np.sqrt(squares[0]))


def norm_solution(_: Variant) -> Callable[..., float]:
    """The norm, in every variant."""
    return global_norm
