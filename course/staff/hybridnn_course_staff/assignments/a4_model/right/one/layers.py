"""Each statement writes into an array that exists."""

import numpy as np

from hybridnn.comm.group import DONE


class ColumnDense:
    def __init__(self, shard, group, overlap, kernels):
        self.shard = shard
        self.group = group
        self.overlap = overlap
        self.kernels = kernels

    def forward(self, p, s):
        np.matmul(p.weight, s.x, out=s.activation)
        self.kernels.bias_activate(self.shard.layer.activation, s.activation, p.bias_column, s.scratch)
        if s.own_x is not None:
            np.add(s.activation, s.own_x, out=s.local_y)
        if self.shard.gathers:
            self.group.allgather_rows(s.y)

    def backward_input(self, p, s, bias_gradient=None):
        residual_part = s.own_dy.copy()
        name = self.shard.layer.activation
        self.kernels.gradient_of_activation(name, s.activation, s.own_dy, s.dz, s.scratch)
        if bias_gradient is not None:
            bias_gradient[...] = s.dz.sum(axis=1)
        if s.dx is None:
            return DONE
        s.dx[...] = p.weight.T @ s.dz
        if s.own_dx is not None:
            s.own_dx[...] += residual_part
        if self.overlap:
            return self.group.iallreduce(s.dx)
        self.group.allreduce(s.dx)
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        gradient.weight[...] = s.dz @ s.x.T
        if biases:
            gradient.bias[...] = s.dz.sum(axis=1)


class RowDense:
    def __init__(self, shard, group, kernels):
        self.shard = shard
        self.group = group
        self.kernels = kernels

    def forward(self, p, s):
        s.activation[...] = p.weight @ s.x
        s.activation[self.shard.bias_rows] += p.bias[:, None]
        self.group.allreduce(s.activation)
        self.kernels.activate(self.shard.layer.activation, s.activation, s.scratch)
        if self.shard.layer.residual:
            if s.own_x is not None:
                s.own_x[...] = s.x
                self.group.allgather_rows(s.full_x)
            s.y[...] = s.activation + s.full_x

    def backward_input(self, p, s, bias_gradient=None):
        residual_part = s.own_dy.copy() if self.shard.layer.residual else 0
        self.kernels.gradient_of_activation(self.shard.layer.activation, s.activation, s.dy, s.dz, s.scratch)
        if bias_gradient is not None:
            bias_gradient[...] = s.dz[self.shard.bias_rows].sum(axis=1)
        if s.dx is not None:
            s.dx[...] = p.weight.T @ s.dz + residual_part
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        gradient.weight[...] = s.dz @ s.x.T
        if biases:
            gradient.bias[...] = s.dz[self.shard.bias_rows].sum(axis=1)
