"""A base class with what both layers share, and `einsum`."""

from functools import partial

import numpy as np

from hybridnn.comm.group import DONE


class Dense:
    def __init__(self, shard, group, kernels):
        name = shard.layer.activation
        self.shard, self.group, self.kernels = shard, group, kernels
        self.slope = partial(kernels.gradient_of_activation, name)
        self.apply = partial(kernels.activate, name)

    def sums(self, dz):
        return np.einsum("on->o", dz)

    def backward_weight(self, s, gradient, *, biases=True):
        np.einsum("on,in->oi", s.dz, s.x, out=gradient.weight)
        if biases:
            np.copyto(gradient.bias, self.sums(s.dz))


class ColumnDense(Dense):
    def __init__(self, shard, group, overlap, kernels):
        super().__init__(shard, group, kernels)
        self.begin = group.iallreduce if overlap else self.reduce_now

    def reduce_now(self, array):
        self.group.allreduce(array)
        return DONE

    def forward(self, p, s):
        np.einsum("oi,in->on", p.weight, s.x, out=s.activation)
        s.activation += p.bias_column
        self.apply(s.activation, s.scratch)
        if self.shard.layer.residual:
            s.local_y[:] = s.activation
            s.local_y += s.own_x
        if self.shard.gathers:
            self.group.allgather_rows(s.y)

    def backward_input(self, p, s, bias_gradient=None):
        direct = np.array(s.own_dy) if self.shard.layer.residual else None
        self.slope(s.activation, s.own_dy, s.dz, s.scratch)
        if bias_gradient is not None:
            np.copyto(bias_gradient, self.sums(s.dz))
        if s.dx is None:
            return DONE
        np.einsum("oi,on->in", p.weight, s.dz, out=s.dx)
        if direct is not None:
            s.dx[self.shard.rows] += direct
        return self.begin(s.dx)


class RowDense(Dense):
    def sums(self, dz):
        return np.einsum("on->o", dz[self.shard.bias_rows])

    def forward(self, p, s):
        addend = np.einsum("oi,in->on", p.weight, s.x)
        addend[self.shard.bias_rows] += p.bias_column
        self.group.allreduce(addend)
        np.copyto(s.activation, addend)
        self.apply(s.activation, s.scratch)
        if not self.shard.layer.residual:
            return
        whole = s.full_x
        if s.own_x is not None:
            whole = np.zeros_like(addend)
            whole[self.shard.columns] = s.x
            self.group.allgather_rows(whole)
        np.add(whole, s.activation, out=s.y)

    def backward_input(self, p, s, bias_gradient=None):
        direct = np.array(s.own_dy)
        self.slope(s.activation, s.dy, s.dz, s.scratch)
        if bias_gradient is not None:
            np.copyto(bias_gradient, self.sums(s.dz))
        if s.dx is not None:
            np.einsum("oi,on->in", p.weight, s.dz, out=s.dx)
            if self.shard.layer.residual:
                s.dx += direct
        return DONE
