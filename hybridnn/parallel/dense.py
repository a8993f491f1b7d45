"""Dense layers split over a model group: Algorithms 2 and 3 of Laugier et al. 2018.

The communication of a layer within its model group, lines counted from ``procedure``:

================================  ==============  ==============  =========================================
method                            Algorithm 2     Algorithm 3     collective
================================  ==============  ==============  =========================================
`ColumnDense.forward`             lines 9 and 10  lines 10, 11    all-gather of the outputs
`ColumnDense.backward_input`      lines 13 to 15  14, 15 and 17   all-reduce of the input gradient
`ColumnDense.backward_weight`     line 14         line 15         none; `gradient_reduction` has line 16
================================  ==============  ==============  =========================================

`RowDense`, a layer split by its inputs, is not in that paper: it all-reduces its outputs in the
forward pass and needs no communication in the backward pass.

A layer has no state between calls. Everything it reads and writes is in the `LayerArrays` passed to it, so many
microbatches can be in flight. The backward pass has two parts, so that the all-reduce of the input gradient overlaps
with the weight gradient. In a group of one rank both classes are the plain layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridnn.comm.blocks import block_slice
from hybridnn.comm.group import DONE, Group, Request
from hybridnn.nn.kernels import Array, Kernels
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerParameters, LayerShard


@dataclass
class WeightGradientArrays:
    """The arrays from which a weight gradient is computed, of one microbatch or of several concatenated ones."""

    x: Array  # input
    dz: Array  # gradient with respect to the activation's input on this rank's rows
    ones: Array


@dataclass
class LayerArrays(WeightGradientArrays):
    """The arrays of one layer for one microbatch of n samples on this rank, shape (features, n) each.

    Attributes
    ----------
    x : ndarray
        Input; must not change before the weight gradient is computed.
    dz : ndarray
        Gradient with respect to the activation's input on this rank's rows; the same memory as `own_dy` unless the
        layer is residual or the weight gradient is computed later.
    full_x : ndarray or None
        All rows of the input, for a residual layer split by inputs: `x` itself, or workspace to gather it.
    activation : ndarray
        Output of the activation on this rank's rows; a view of `y` unless the layer is residual.
    y : ndarray
        Input of the next layer: all rows, or this rank's if the next layer is split by inputs.
    local_y, own_dy : ndarray
        Views of `y` and `dy`: this rank's rows of the outputs, or of the inputs if the layer is split by inputs.
    dy : ndarray
        Gradient with respect to `y`.
    dx : ndarray or None
        Gradient with respect to `x`; None if it is not needed.
    own_x, own_dx : ndarray or None
        For a residual layer split by outputs, this rank's rows of `x` and `dx`; for one split by inputs, `own_x` is
        the block of `x` in a gathered `full_x`.
    scratch : ndarray
        Shape of `activation`; overwritten by every call. May share memory with `dx`, which is written last.
    product : ndarray, shape (n, features of dx), or None
        Workspace of `Kernels.matmul_transposed` for `dx`, where it is faster with one.
    """

    full_x: Array | None
    activation: Array
    y: Array
    local_y: Array
    dy: Array
    own_dy: Array
    dx: Array | None
    own_x: Array | None
    own_dx: Array | None
    scratch: Array
    product: Array | None


class ColumnDense:
    """A layer split by outputs: rank i computes the i-th block of rows of ``W x + b``."""

    def __init__(self, shard: LayerShard, group: Group, overlap: bool, kernels: Kernels) -> None:
        self._group, self._kernels = group, kernels
        self._reduces, self._overlap = group.size > 1, overlap
        self._gathers = shard.gathers and self._reduces
        self._activation = shard.layer.activation

    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        """Compute ``s.y`` from ``s.x``."""
        self._kernels.matmul(p.weight, s.x, s.activation)
        self._kernels.bias_activate(self._activation, s.activation, p.bias_column, s.scratch)
        if s.own_x is not None:
            self._kernels.add(s.own_x, s.activation, s.local_y)
        if self._gathers:
            self._group.allgather_rows(s.y)

    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        """Compute ``s.dz`` from ``s.dy`` and start the all-reduce of ``s.dx``, which the request completes.

        `bias_gradient`, if given, receives the gradient of this rank's biases; `backward_weight` then leaves it out.
        """
        if bias_gradient is None:
            self._kernels.gradient_of_activation(self._activation, s.activation, s.own_dy, s.dz, s.scratch)
        else:
            self._kernels.gradient_and_row_sums(
                self._activation, s.activation, s.own_dy, s.dz, bias_gradient, s.scratch, s.ones
            )
        if s.dx is None:
            return DONE
        self._kernels.matmul_transposed(p.weight, s.dz, s.dx, s.product)
        if s.own_dx is not None:
            # Each rank adds its own rows of dy, so that the sum over the ranks adds every row once.
            self._kernels.add(s.own_dx, s.own_dy, s.own_dx)
        if not self._reduces:
            return DONE
        if self._overlap:
            return self._group.iallreduce(s.dx)
        self._group.allreduce(s.dx)
        return DONE

    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        """Gradient of this rank's weights and, unless `backward_input` computed it, of its biases."""
        self._kernels.matmul(s.dz, s.x.T, gradient.weight)
        if biases:
            self._kernels.row_sums(s.dz, s.ones, gradient.bias)


class RowDense:
    """A layer split by inputs: rank i multiplies the i-th block of columns of ``W`` by its rows of ``x``.

    The products are summed over the ranks. Each rank owns a block of the bias and adds it to its product.
    """

    def __init__(self, shard: LayerShard, group: Group, kernels: Kernels) -> None:
        self._group, self._kernels = group, kernels
        self._activation = shard.layer.activation
        self._residual = shard.layer.residual
        self._bias_rows = shard.bias_rows

    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        """Compute ``s.y`` from ``s.x``."""
        self._kernels.matmul(p.weight, s.x, s.activation)
        own = s.activation[self._bias_rows]
        self._kernels.add_bias(own, p.bias_column)
        self._group.allreduce(s.activation)
        self._kernels.activate(self._activation, s.activation, s.scratch)
        if s.full_x is not None:
            # The ranks hold blocks of the input, and the residual sum needs all of it: an additional all-gather.
            if s.own_x is not None:
                self._kernels.copy(s.x, s.own_x)
            # Also where this rank has all of it: an input of width 1 is whole on the first rank, and empty on others.
            self._group.allgather_rows(s.full_x)
            self._kernels.add(s.full_x, s.activation, s.y)

    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        """Compute ``s.dz`` from ``s.dy``, and ``s.dx``, without communication; `bias_gradient` as for `ColumnDense`."""
        self._kernels.gradient_of_activation(self._activation, s.activation, s.dy, s.dz, s.scratch)
        if bias_gradient is not None:
            self._kernels.row_sums(s.dz[self._bias_rows], s.ones, bias_gradient)
        if s.dx is not None:
            self._kernels.matmul_transposed(p.weight, s.dz, s.dx, s.product)
            if self._residual:
                self._kernels.add(s.dx, s.own_dy, s.dx)
        return DONE

    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        """Gradient of this rank's weights and, unless `backward_input` computed it, of its biases."""
        self._kernels.matmul(s.dz, s.x.T, gradient.weight)
        if biases:
            self._kernels.row_sums(s.dz[self._bias_rows], s.ones, gradient.bias)


def parallel_dense(shard: LayerShard, group: Group, overlap: bool, kernels: Kernels) -> ColumnDense | RowDense:
    """The layer of a shard."""
    return RowDense(shard, group, kernels) if shard.by_inputs else ColumnDense(shard, group, overlap, kernels)


MODEL_SPLITS = ("columns", "alternating")


def split_layers(layers: Sequence[DenseLayer], split: str, ranks: int, rank: int) -> list[LayerShard]:
    """Shards of consecutive layers for one rank of a model group.

    A layer with fewer outputs (or inputs, if it is split by these) than ranks leaves the last ranks without any.
    """
    shards = []
    for index, layer in enumerate(layers):
        by_inputs = split == "alternating" and index % 2 == 1
        outputs = block_slice(layer.outputs, ranks, rank)
        rows, columns = outputs, slice(0, layer.inputs)
        if by_inputs:
            rows, columns = slice(0, layer.outputs), block_slice(layer.inputs, ranks, rank)
        is_paired = split == "alternating" and index % 2 == 0 and index + 1 < len(layers)
        shards.append(LayerShard(layer, rows, columns, outputs, by_inputs, gathers=not by_inputs and not is_paired))
    return shards
