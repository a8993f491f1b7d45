"""The input is added before the activation; functions outside of the classes do the work."""

import numpy as np

from hybridnn.comm.group import DONE


def slopes(layer, s, dy):
    layer.kernels.gradient_of_activation(layer.shard.layer.activation, s.activation, dy, s.dz, s.scratch)


def write_bias(array, dz):
    np.add.reduce(dz, axis=1, out=array)


class ColumnDense:
    def __init__(self, shard, group, overlap, kernels):
        self.shard, self.group, self.overlap, self.kernels = shard, group, overlap, kernels

    def forward(self, p, s):
        z = np.dot(p.weight, s.x) + p.bias_column
        if self.shard.layer.residual:
            z += s.x[self.shard.rows]
        s.activation[:] = z
        self.kernels.activate(self.shard.layer.activation, s.activation, s.scratch)
        s.local_y[:] = s.activation
        if self.shard.gathers:
            self.group.allgather_rows(s.y)

    def backward_input(self, p, s, bias_gradient=None):
        slopes(self, s, s.own_dy)
        if bias_gradient is not None:
            write_bias(bias_gradient, s.dz)
        if s.dx is None:
            return DONE
        np.dot(p.weight.T, s.dz, out=s.dx)
        if self.shard.layer.residual:
            s.dx[self.shard.rows] += s.dz
        request = self.group.iallreduce(s.dx)
        if not self.overlap:
            request.wait()
            return DONE
        return request

    def backward_weight(self, s, gradient, *, biases=True):
        np.dot(s.dz, s.x.T, out=gradient.weight)
        if biases:
            write_bias(gradient.bias, s.dz)


class RowDense:
    def __init__(self, shard, group, kernels):
        self.shard, self.group, self.kernels = shard, group, kernels

    def forward(self, p, s):
        np.dot(p.weight, s.x, out=s.activation)
        s.activation[self.shard.bias_rows] += p.bias_column
        if self.shard.layer.residual:
            s.activation[self.shard.columns] += s.x
        self.group.iallreduce(s.activation).wait()
        self.kernels.activate(self.shard.layer.activation, s.activation, s.scratch)
        if self.shard.layer.residual:
            s.y[:] = s.activation

    def backward_input(self, p, s, bias_gradient=None):
        slopes(self, s, s.dy)
        if bias_gradient is not None:
            write_bias(bias_gradient, s.dz[self.shard.bias_rows])
        if s.dx is not None:
            np.dot(p.weight.T, s.dz, out=s.dx)
            if self.shard.layer.residual:
                s.dx += s.dz[self.shard.columns]
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        np.dot(s.dz, s.x.T, out=gradient.weight)
        if biases:
            write_bias(gradient.bias, s.dz[self.shard.bias_rows])
