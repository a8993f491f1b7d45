"""One class for what both kinds of layer have in common."""

import numpy as np

from hybridnn.comm.group import DONE


class Layer:
    """What both kinds of layer do. They say which rows of z and of the input of the layer are theirs."""

    def __init__(self, shard, group, kernels):
        self.shard, self.group, self.kernels = shard, group, kernels
        self.name = shard.layer.activation
        self.is_residual = shard.layer.residual

    def products(self, p, s, dy, biases, bias_gradient):
        """Everything of the backward pass but the second way to x."""
        self.kernels.gradient_of_activation(self.name, s.activation, dy, s.dz, s.scratch)
        if bias_gradient is not None:
            self.sum_rows(s, biases, bias_gradient)
        if s.dx is not None:
            np.matmul(p.weight.transpose(), s.dz, out=s.dx)

    def sum_rows(self, s, rows, out):
        np.matmul(s.dz[rows], s.ones, out=out)

    def copy_activation(self, s):
        if self.is_residual:
            np.copyto(s.local_y, s.activation)


class ColumnDense(Layer):
    def __init__(self, shard, group, overlap, kernels):
        super().__init__(shard, group, kernels)
        self.overlap = overlap

    def forward(self, p, s):
        z = s.activation
        np.matmul(p.weight, s.x, out=z)
        if self.is_residual:
            z += s.own_x
        self.kernels.bias_activate(self.name, z, p.bias_column, s.scratch)
        self.copy_activation(s)
        if self.shard.gathers:
            self.group.allgather_rows(s.y)

    def backward_input(self, p, s, bias_gradient=None):
        self.products(p, s, s.own_dy, slice(None), bias_gradient)
        if s.dx is None:
            return DONE
        if self.is_residual:
            s.own_dx += s.dz
        request = self.group.iallreduce(s.dx)
        if self.overlap:
            return request
        request.wait()
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        np.matmul(s.dz, s.x.transpose(), out=gradient.weight)
        if biases:
            self.sum_rows(s, slice(None), gradient.bias)


class RowDense(Layer):
    def forward(self, p, s):
        # addends of z: a rank has the biases and the inputs that it owns
        addend = s.activation
        np.matmul(p.weight, s.x, out=addend)
        addend[self.shard.bias_rows] += p.bias_column
        if self.is_residual:
            addend[self.shard.columns] += s.x
        self.group.allreduce(addend)
        self.kernels.activate(self.name, addend, s.scratch)
        self.copy_activation(s)

    def backward_input(self, p, s, bias_gradient=None):
        self.products(p, s, s.dy, self.shard.bias_rows, bias_gradient)
        if self.is_residual and s.dx is not None:
            s.dx += s.dz[self.shard.columns]
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        np.matmul(s.dz, s.x.transpose(), out=gradient.weight)
        if biases:
            self.sum_rows(s, self.shard.bias_rows, gradient.bias)
