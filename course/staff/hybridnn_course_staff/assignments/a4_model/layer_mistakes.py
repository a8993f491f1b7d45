"""Known wrong solutions of A4: the two layers."""

from __future__ import annotations

import numpy as np

from hybridnn.comm.blocks import block_slice
from hybridnn.comm.group import DONE, Request
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays
from hybridnn_course.exercises.a4_model.calls import Array
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a4_model.solution import ColumnDense, RowDense, in_variant

AFTER, BEFORE = {"residual": ["after activation"]}, {"residual": ["before activation"]}


# -- columns ----------------------------------------------------------------------------------------------------------


class _GatherForgotten(ColumnDense):
    def gather(self, s: LayerArrays) -> None:
        pass


class _AlwaysGathers(ColumnDense):
    def gather(self, s: LayerArrays) -> None:
        self.group.allgather_rows(s.y)


class _GathersBySum(ColumnDense):
    def gather(self, s: LayerArrays) -> None:
        if self.shard.gathers:
            own = s.local_y.copy()
            s.y[...] = 0
            s.y[self.shard.rows] = own
            self.group.allreduce(s.y)


class _BiasAfterActivation(ColumnDense):
    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        np.matmul(p.weight, s.x, out=s.activation)
        if self.adds_before and s.own_x is not None:
            s.activation += s.own_x
        self.kernels.activate(self.name, s.activation, s.scratch)
        s.activation += p.bias_column
        if s.own_x is not None:
            np.copyto(s.local_y, s.activation if self.adds_before else s.activation + s.own_x)
        self.gather(s)


class _DxNotSummed(ColumnDense):
    def reduce(self, dx: Array) -> Request:
        return DONE


class _DxSummedTwice(ColumnDense):
    def reduce(self, dx: Array) -> Request:
        self.group.allreduce(dx)
        return super().reduce(dx)


class _WaitsTooEarly(ColumnDense):
    def reduce(self, dx: Array) -> Request:
        self.group.allreduce(dx)
        return DONE


class _FirstRowsOfDy(ColumnDense):
    def differentiate(self, s: LayerArrays) -> None:
        first = s.dy[: len(s.dz)].copy()
        self.kernels.gradient_of_activation(self.name, s.activation, first, s.dz, s.scratch)


class _ColumnSlopeOfSum(ColumnDense):
    def differentiate(self, s: LayerArrays) -> None:
        self.kernels.gradient_of_activation(self.name, s.local_y, s.own_dy, s.dz, s.scratch)


class _ResidualGradientPTimes(ColumnDense):
    def add_residual(self, s: LayerArrays) -> None:
        if s.own_dx is not None and s.dx is not None and s.dx.shape == s.dy.shape:
            s.dx += s.dy
        else:
            super().add_residual(s)


class _ColumnResidualGradientMissing(ColumnDense):
    def add_residual(self, s: LayerArrays) -> None:
        pass


class _ColumnResidualGradientElsewhere(ColumnDense):
    def add_residual(self, s: LayerArrays) -> None:
        if s.own_dx is not None:
            s.own_dx += s.own_dy if self.adds_before else s.dz


class _ResidualAfterReduce(ColumnDense):
    def complete(self, s: LayerArrays, dx: Array) -> Request:
        request = self.reduce(dx)
        self.add_residual(s)
        return request


class _ColumnBiasGradientLeftOut(ColumnDense):
    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        np.matmul(s.dz, s.x.T, out=gradient.weight)


COLUMNS = (
    Mistake(
        "gather-forgotten",
        in_variant(_GatherForgotten),
        "Each rank has only its own rows of y. What does the next layer multiply where `shard.gathers` is true?",
    ),
    Mistake(
        "gathers-without-need",
        in_variant(_AlwaysGathers),
        "The outputs are gathered where `shard.gathers` is false. Which rows does y have then?",
    ),
    Mistake(
        "allreduce-for-allgather",
        in_variant(_GathersBySum),
        "The values are right, but the blocks were put together by an all-reduce of zeros and blocks. Which collective "
        "sends each element only once?",
    ),
    Mistake(
        "bias-after-activation",
        in_variant(_BiasAfterActivation),
        "The bias was added to the output of the activation. What is the activation applied to?",
    ),
    Mistake(
        "dx-not-summed",
        in_variant(_DxNotSummed),
        "Each rank has only the part of dx that comes from its own outputs. Which outputs depend on an input?",
    ),
    Mistake(
        "dx-summed-twice",
        in_variant(_DxSummedTwice),
        "dx was summed over the ranks twice. What does each rank have after the first sum, and what after the second?",
    ),
    Mistake(
        "waits-too-early",
        in_variant(_WaitsTooEarly),
        "The values are right, but the all-reduce has ended before the weight gradient begins. What does "
        "`backward_input` return with `overlap`?",
    ),
    Mistake(
        "first-rows-of-dy",
        in_variant(_FirstRowsOfDy),
        "Every rank used the first rows of dy. Which rows of y did this rank compute?",
    ),
    Mistake(
        "derivative-of-residual-sum",
        in_variant(_ColumnSlopeOfSum),
        "The derivative of the activation was taken at y, which has the residual input in it. Which array has the "
        "output of the activation alone?",
        variants=AFTER,
    ),
    Mistake(
        "residual-p-times",
        in_variant(_ResidualGradientPTimes),
        "Every rank added all rows of dy to its part of dx, and then the parts were summed. How often is a row in "
        "the sum?",
    ),
    Mistake(
        "residual-gradient-missing",
        in_variant(_ColumnResidualGradientMissing),
        "dx has only what comes through the weights. Along which second way does y depend on x?",
    ),
    Mistake(
        "residual-gradient-elsewhere",
        in_variant(_ColumnResidualGradientElsewhere),
        "The forward pass is right, but the backward pass adds the gradient of the other side of the activation to dx. "
        "Where does the residual input enter: before the activation, or after it?",
    ),
    Mistake(
        "residual-after-sum",
        in_variant(_ResidualAfterReduce),
        "The residual gradient was added after the all-reduce had begun. Who may write to dx while it is in flight, "
        "and who has the rows of the other ranks afterwards?",
    ),
    Mistake(
        "bias-gradient-left-out",
        in_variant(_ColumnBiasGradientLeftOut),
        "The gradient of the bias is not written where `backward_input` got no `bias_gradient`. What is `biases` of "
        "`backward_weight` for?",
    ),
)


# -- rows -------------------------------------------------------------------------------------------------------------


class _ActivationBeforeSum(RowDense):
    def sum_addends(self, s: LayerArrays) -> None:
        pass

    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        np.matmul(p.weight, s.x, out=s.activation)
        self.add_bias(p, s)
        if self.residual and self.adds_before:
            self.add_block(s)
        self.kernels.activate(self.name, s.activation, s.scratch)
        self.group.allreduce(s.activation)
        if self.residual:
            self.add_input(s)


class _SumForgotten(RowDense):
    def sum_addends(self, s: LayerArrays) -> None:
        pass


class _BiasAfterSum(RowDense):
    def forward(self, p: LayerParameters, s: LayerArrays) -> None:
        np.matmul(p.weight, s.x, out=s.activation)
        if self.residual and self.adds_before:
            self.add_block(s)
        self.sum_addends(s)
        self.add_bias(p, s)
        self.kernels.activate(self.name, s.activation, s.scratch)
        if self.residual:
            self.add_input(s)


class _AddendsGathered(RowDense):
    def sum_addends(self, s: LayerArrays) -> None:
        ranks, (rows, samples) = self.group.size, s.activation.shape
        addends = np.empty((ranks * rows, samples), s.activation.dtype)
        addends[block_slice(len(addends), ranks, self.group.rank)] = s.activation
        self.group.allgather_rows(addends)
        np.sum(addends.reshape(ranks, rows, samples), axis=0, out=s.activation)


class _ResidualPTimes(RowDense):
    def add_bias(self, p: LayerParameters, s: LayerArrays) -> None:
        super().add_bias(p, s)
        if self.residual:
            s.activation += self.gathered_input(s)

    def add_block(self, s: LayerArrays) -> None:
        pass

    def add_input(self, s: LayerArrays) -> None:
        np.copyto(s.y, s.activation)


class _ResidualOfOwnBlock(RowDense):
    def add_block(self, s: LayerArrays) -> None:
        pass

    def sum_addends(self, s: LayerArrays) -> None:
        super().sum_addends(s)
        if self.residual and self.adds_before:
            s.activation[self.shard.columns] += s.x

    def add_input(self, s: LayerArrays) -> None:
        np.copyto(s.y, s.activation)
        if not self.adds_before:
            s.y[self.shard.columns] += s.x


class _GathersForResidual(RowDense):
    def add_block(self, s: LayerArrays) -> None:
        pass

    def sum_addends(self, s: LayerArrays) -> None:
        super().sum_addends(s)
        if self.residual:
            s.activation += self.gathered_input(s)


class _DxSummed(RowDense):
    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        super().backward_input(p, s, bias_gradient)
        if s.dx is not None:
            self.group.allreduce(s.dx)
        return DONE


class _BiasGradientOfAllRows(RowDense):
    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        request = super().backward_input(p, s, bias_gradient)
        if bias_gradient is not None:
            np.sum(s.dz, axis=1, out=bias_gradient)
        return request

    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        np.matmul(s.dz, s.x.T, out=gradient.weight)
        if biases:
            np.sum(s.dz, axis=1, out=gradient.bias)


class _BiasGradientOfFirstRows(RowDense):
    def backward_input(self, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Request:
        request = super().backward_input(p, s, bias_gradient)
        if bias_gradient is not None:
            np.sum(s.dz[: len(bias_gradient)], axis=1, out=bias_gradient)
        return request

    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        np.matmul(s.dz, s.x.T, out=gradient.weight)
        if biases:
            np.sum(s.dz[: len(gradient.bias)], axis=1, out=gradient.bias)


class _RowSlopeOfSum(RowDense):
    def differentiate(self, s: LayerArrays) -> None:
        self.kernels.gradient_of_activation(self.name, s.y, s.dy, s.dz, s.scratch)


class _RowResidualGradientMissing(RowDense):
    def add_residual(self, s: LayerArrays) -> None:
        pass


class _RowResidualGradientElsewhere(RowDense):
    def add_residual(self, s: LayerArrays) -> None:
        s.dx += s.own_dy if self.adds_before else s.dz[self.shard.columns]


class _RowBiasGradientLeftOut(RowDense):
    def backward_weight(self, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        np.matmul(s.dz, s.x.T, out=gradient.weight)


ROWS = (
    Mistake(
        "activation-before-sum",
        in_variant(_ActivationBeforeSum),
        "Each rank applied the activation to its own product, and the results were summed. Is the activation of a "
        "sum the sum of the activations?",
    ),
    Mistake(
        "sum-forgotten",
        in_variant(_SumForgotten),
        "Each rank has only the product of its own inputs. On which inputs does an output depend?",
    ),
    Mistake(
        "bias-after-sum",
        in_variant(_BiasAfterSum),
        "Each rank added the biases that it owns after the sum, so the others do not have them. When do the ranks' "
        "contributions come together?",
    ),
    Mistake(
        "products-gathered",
        in_variant(_AddendsGathered),
        "The values are right, but every rank got the products of all ranks and added them itself. Which collective "
        "adds while it sends?",
    ),
    Mistake(
        "residual-p-times",
        in_variant(_ResidualPTimes),
        "Every rank added all of x to its product, and then the products were summed. How often is x in the sum?",
    ),
    Mistake(
        "residual-of-own-rows",
        in_variant(_ResidualOfOwnBlock),
        "After the sum each rank added only its own rows of x, so the ranks now differ. Who has the other rows?",
    ),
    Mistake(
        "gathers-for-residual",
        in_variant(_GathersForResidual),
        "The values are right, but x was gathered for the residual sum. Each rank has some rows of x, and something is "
        "summed over the ranks anyway: what can a rank add its rows to?",
        variants=BEFORE,
    ),
    Mistake(
        "dx-summed",
        in_variant(_DxSummed),
        "dx was summed over the ranks. Which rows of dx does each of them have, and do they belong to the same inputs?",
    ),
    Mistake(
        "bias-gradient-of-all-rows",
        in_variant(_BiasGradientOfAllRows),
        "The gradient of the bias has all rows of the layer. Which biases does this rank own?",
    ),
    Mistake(
        "bias-gradient-of-first-rows",
        in_variant(_BiasGradientOfFirstRows),
        "Every rank computed the gradient of the first biases. Where in the bias does its own block begin?",
        variants={"bias_owner": ["in blocks"]},
    ),
    Mistake(
        "derivative-of-residual-sum",
        in_variant(_RowSlopeOfSum),
        "The derivative of the activation was taken at y, which has the residual input in it. Which array has the "
        "output of the activation alone?",
        variants=AFTER,
    ),
    Mistake(
        "residual-gradient-missing",
        in_variant(_RowResidualGradientMissing),
        "dx has only what comes through the weights. Along which second way does y depend on x?",
    ),
    Mistake(
        "residual-gradient-elsewhere",
        in_variant(_RowResidualGradientElsewhere),
        "The forward pass is right, but the backward pass adds the gradient of the other side of the activation to dx. "
        "Where does the residual input enter: before the activation, or after it?",
    ),
    Mistake(
        "bias-gradient-left-out",
        in_variant(_RowBiasGradientLeftOut),
        "The gradient of the bias is not written where `backward_input` got no `bias_gradient`. What is `biases` of "
        "`backward_weight` for?",
    ),
)
