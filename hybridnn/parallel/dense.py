"""A dense layer split over a model group: its mathematics on one rank's block, and the messages that make it whole.

A layer keeps nothing between calls. Everything it reads and writes is in the `LayerArrays` handed in, so many
minibatches can be in flight. The backward pass is in two parts: the sum of the input gradient over the ranks travels
while the weight gradient is computed. In a group of one rank both kinds of split are the plain layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hybridnn.comm.group import Group
from hybridnn.comm.request import DONE, Request
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.nn.parameters import LayerParameters, LayerShard


@dataclass
class LayerArrays:
    """The arrays of one layer for one minibatch of n samples on this rank, shape (features, n) each.

    Attributes
    ----------
    x : ndarray
        Input; must stay until the weight gradient is done.
    whole_x : ndarray or None
        All rows of the input, for a residual layer split by inputs: `x` itself, or room to gather it.
    activation : ndarray
        Output of the activation on this rank's rows; a view of `y` unless the layer is residual.
    y : ndarray
        Output as the next layer wants it: all rows, or this rank's where the next layer is split by inputs.
    own_y, own_dy : ndarray
        Views of `y` and `dy`: this rank's rows of the outputs, or of the inputs where the layer is split by these.
    dy : ndarray
        Gradient with respect to `y`.
    dz : ndarray
        Gradient with respect to the activation's input on this rank's rows; overwrites `own_dy` unless the layer is
        residual or the weight gradient comes later.
    dx : ndarray or None
        Gradient with respect to `x`; None where nobody wants it.
    own_x, own_dx : ndarray or None
        For a residual layer split by outputs, this rank's rows of `x` and `dx`; for one split by inputs, `own_x` is
        where `x` lies in a gathered `whole_x`.
    scratch : ndarray
        Shape of `activation`; overwritten by every call. May share memory with `dx`, which is written last.
    room : ndarray, shape (n, features of dx), or None
        For the product that gives ``dx``, where it pays; overwritten.
    ones : ndarray, shape (n,)
    """

    x: Array
    whole_x: Array | None
    activation: Array
    y: Array
    own_y: Array
    dy: Array
    own_dy: Array
    dz: Array
    dx: Array | None
    own_x: Array | None
    own_dx: Array | None
    scratch: Array
    room: Array | None
    ones: Array


class WeightGradientArrays(Protocol):
    """What the weight gradient of a layer is computed from; `LayerArrays` has it, and so have several joined."""

    x: Array
    dz: Array
    ones: Array


class ColumnDense:
    """A layer split by outputs: rank i computes the i-th block of rows of ``W x + b``.

    Parameters
    ----------
    split : LayerShard
    group : Group
        The model group.
    overlap : bool
        Let the all-reduce of the input gradient run beside the weight gradient.
    kernels : Kernels
        Of the device that holds the arrays.
    """

    def __init__(self, split: LayerShard, group: Group, overlap: bool, kernels: Kernels) -> None:
        self.split = split
        self._group, self._kernels = group, kernels
        self._overlap = overlap
        self._activation = split.layer.activation

    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        """Fill ``s.y`` from ``s.x``."""
        self._kernels.matmul(p.weight, s.x, s.activation)
        self._kernels.bias_activate(self._activation, s.activation, p.bias_column, s.scratch)
        if s.own_x is not None:
            self._kernels.add(s.own_x, s.activation, s.own_y)
        if self.split.gathers:
            self._group.allgather_rows(s.y)

    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        """Fill ``s.dz`` from ``s.dy`` and start the sum of ``s.dx``, which is whole once the request is done.

        Parameters
        ----------
        bias_gradient : array, optional
            Takes the gradient of this rank's biases, which `backward_weight` leaves out then.
        """
        if bias_gradient is None:
            self._kernels.gradient_of_activation(self._activation, s.activation, s.own_dy, s.dz, s.scratch)
        else:
            self._kernels.gradient_and_row_sums(
                self._activation, s.activation, s.own_dy, s.dz, bias_gradient, s.scratch, s.ones
            )
        if s.dx is None:
            return DONE
        self._kernels.matmul_transposed(p.weight, s.dz, s.dx, s.room)
        if s.own_dx is not None:
            # Each rank adds its own rows of dy, so that the sum over the ranks adds every row once.
            self._kernels.add(s.own_dx, s.own_dy, s.own_dx)
        if self._overlap:
            return self._group.iallreduce(s.dx)
        self._group.allreduce(s.dx)
        return DONE

    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        """Gradient of this rank's weights and, unless that was taken before, of its biases."""
        self._kernels.matmul(s.dz, s.x.T, gradient.weight)
        if biases:
            self._kernels.row_sums(s.dz, s.ones, gradient.bias)


class RowDense:
    """A layer split by inputs: rank i multiplies the i-th block of columns of ``W`` with its rows of ``x``.

    The products are summed over the ranks. The bias is owned in blocks too: each rank adds its block to its product.

    Parameters
    ----------
    split : LayerShard
    group : Group
        The model group.
    kernels : Kernels
        Of the device that holds the arrays.
    """

    def __init__(self, split: LayerShard, group: Group, kernels: Kernels) -> None:
        self.split = split
        self._group, self._kernels = group, kernels
        self._activation = split.layer.activation
        self._residual = split.layer.residual
        self._bias_rows = split.bias_rows

    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        """Fill ``s.y`` from ``s.x``."""
        self._kernels.matmul(p.weight, s.x, s.activation)
        own = s.activation[self._bias_rows]
        self._kernels.add_bias(own, p.bias_column)
        self._group.allreduce(s.activation)
        self._kernels.activate(self._activation, s.activation, s.scratch)
        if s.whole_x is not None:
            # The ranks hold parts of the input, and the residual sum needs all of it: one more gather.
            if s.own_x is not None:
                self._kernels.copy(s.x, s.own_x)
                self._group.allgather_rows(s.whole_x)
            self._kernels.add(s.whole_x, s.activation, s.y)

    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        """Fill ``s.dz`` from ``s.dy``, and ``s.dx``; every rank has what it needs.

        Parameters
        ----------
        bias_gradient : array, optional
            As for `ColumnDense`; a rank's biases are some rows of ``s.dz``, so their gradient takes a pass of its own.
        """
        self._kernels.gradient_of_activation(self._activation, s.activation, s.dy, s.dz, s.scratch)
        if bias_gradient is not None:
            self._kernels.row_sums(s.dz[self._bias_rows], s.ones, bias_gradient)
        if s.dx is not None:
            self._kernels.matmul_transposed(p.weight, s.dz, s.dx, s.room)
            if self._residual:
                self._kernels.add(s.dx, s.own_dy, s.dx)
        return DONE

    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        """Gradient of this rank's weights and, unless that was taken before, of its biases."""
        self._kernels.matmul(s.dz, s.x.T, gradient.weight)
        if biases:
            self._kernels.row_sums(s.dz[self._bias_rows], s.ones, gradient.bias)


ParallelDense = ColumnDense | RowDense


def parallel_dense(split: LayerShard, group: Group, overlap: bool, kernels: Kernels) -> ParallelDense:
    """The layer for a split."""
    return RowDense(split, group, kernels) if split.by_inputs else ColumnDense(split, group, overlap, kernels)
