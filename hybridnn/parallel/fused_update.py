"""Fused update: SGD with weight gradients that are computed during the update and never stored.

SGD reads a gradient once, to add it to the velocity, or to the weights. The backward pass therefore leaves weight
gradients out, and the update adds each product ``dz xᵀ`` directly to its target: no gradient is written, read or
summed.

The batch ranks of one node hold ``x`` and ``dz`` in shared memory. Every rank updates some rows of the weights with the
products of the samples of all ranks: the sum over the ranks is part of the product. The ranks synchronize twice in a
step: at the all-reduce of the loss, after which no rank reads the weights of this step, and after the update, before
any rank overwrites ``x`` and ``dz``.

On a GPU, a single rank does the same in memory of the device. There the optimizer must have a velocity: a product that
is added to the weights would be scaled by the learning rate, which a captured product could not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.nn.kernels import NUMPY, Array, Kernels, add_scaled
from hybridnn.nn.optimizers import SGD, Optimizer, OptimizerState
from hybridnn.nn.parameters import ALIGNMENT, LayerParameters, ParameterLayout
from hybridnn.parallel.dense import WeightGradientArrays
from hybridnn.parallel.node_memory import NodeMemory
from hybridnn.parallel.replica_sharing import NodeReplica, slice_bounds
from hybridnn.parallel.workspace import MicrobatchBuffers, Workspace

if TYPE_CHECKING:
    from hybridnn.parallel.replica import MakeWorkspace

Layers = Sequence[WeightGradientArrays]
Views = Sequence[LayerParameters]

PLAIN = SGD(momentum=0.0)
"""Its update of the weights by a velocity, instead of a gradient, is the last part of that with momentum."""

ROWS = 16  # ranks own multiples of so many rows, except at the end of a layer: blocks of a matrix product


@dataclass(frozen=True)
class _Rows:
    """Rows of a layer's weights that one rank updates, and those of this rank's biases among them."""

    layer: int
    rows: slice
    bias: slice  # among the layer's biases on this rank
    bias_rows: slice  # the same biases among the rows of the layer

    @classmethod
    def of(cls, layout: ParameterLayout, layer: int, rows: slice) -> _Rows:
        """The rows with their biases."""
        shard = layout.shards[layer]
        first = shard.bias_rows.start - shard.rows.start
        start = max(rows.start, first)
        stop = max(start, min(rows.stop, first + shard.bias_size))
        return cls(layer, rows, slice(start - first, stop - first), slice(start, stop))

    def views_in(self, views: Views) -> tuple[Array, Array]:
        """Weights and biases among the views of a flat buffer."""
        return views[self.layer].weight[self.rows], views[self.layer].bias[self.bias]


def owned_rows(layout: ParameterLayout, ranks: int, rank: int) -> Iterator[tuple[int, slice]]:
    """Layers, and rows of their weights, that a rank updates: consecutive, and equal shares of all elements."""
    shapes = [shard.weight_shape for shard in layout.shards]
    total, before = sum(rows * (columns + 1) for rows, columns in shapes), 0
    for layer, (rows, columns) in enumerate(shapes):

        def cut(rank: int, before: int = before, rows: int = rows, columns: int = columns) -> int:
            """First row of the share of `rank`."""
            row = max(0, total * rank - before * ranks) / (ranks * (columns + 1))
            return rows if row >= rows else min(rows, round(row / ROWS) * ROWS)

        if cut(rank) < cut(rank + 1):
            yield layer, slice(cut(rank), cut(rank + 1))
        before += rows * (columns + 1)


class FusedUpdateReplica(NodeReplica):
    """A replica of batch ranks that are all on one node, or of a single rank, which may have a GPU.

    The parameters are those of `SharedReplica`.
    """

    def __init__(
        self,
        memory: NodeMemory,
        batch: Group,
        layout: ParameterLayout,
        dtype: DTypeLike,
        arrays: int,
        kernels: Kernels = NUMPY,
    ) -> None:
        self._allocate = memory.allocate if kernels.on_host else kernels.empty
        window = self._allocate((arrays, layout.size), dtype)
        super().__init__(memory, batch, (window[number] for number in range(arrays)), dtype, kernels)
        self._layout, self._dtype = layout, np.dtype(dtype)
        self._counts = memory.allocate((batch.size,), np.int64)
        self._owned = [_Rows.of(layout, *item) for item in owned_rows(layout, batch.size, batch.rank)]
        # for every rank, what returns its layers' operands for its number of samples
        self._layers_of_ranks: list[Callable[[int], Layers]] = []
        self._cached_views: dict[int, tuple[Array, Views]] = {}
        # The operating system places memory near the rank that writes it first.
        window[:, slice(*slice_bounds(layout.size, batch.size, batch.rank))] = 0
        self._counts[batch.rank] = 0
        self.publish()

    @property
    def nbytes(self) -> int:
        """Bytes of the losses, and of the ranks' numbers of samples."""
        return int(self.loss.nbytes + self._total.nbytes) + self.bytes_per_rank(self._counts.nbytes)

    def training_workspace(self, make: MakeWorkspace, sizes: Sequence[int]) -> Workspace:
        """Workspace of training passes, with operands of weight gradients that all batch ranks read."""
        workspaces = [make(MicrobatchBuffers(keeps_dz=True), memory) for memory in self._allocate_operands(sizes)]
        self._layers_of_ranks = [partial(_layers, workspace) for workspace in workspaces]
        return workspaces[self._batch.rank]

    def _allocate_operands(self, sizes: Sequence[int]) -> list[Iterator[Array]]:
        """Shared memory for the operands of the weight gradients: for each rank, arrays of these sizes."""
        aligned = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        rows = self._allocate((self._batch.size, sum(aligned)), self._dtype)

        def arrays(row: Array) -> Iterator[Array]:
            for first, size in zip(accumulate(aligned, initial=0), sizes, strict=False):
                yield row[first : first + size]

        return [arrays(rows[number]) for number in range(self._batch.size)]

    def set_samples(self, samples: int) -> None:
        """Set the number of samples of this rank whose backward pass, up to the weight gradients, is complete."""
        self._counts[self._batch.rank] = samples

    def new_state(self, optimizer: Optimizer, weights: Array) -> OptimizerState:
        """State before the first update, its slots in shared memory."""
        slots = {name: self.new_array() for name in optimizer.slot_names}
        return OptimizerState(slots, self._kernels.empty((0,), self._dtype), self._kernels)

    def update(
        self, optimizer: Optimizer, weights: Array, state: OptimizerState, rate: float, out: Array | None = None
    ) -> None:
        """Update this rank's rows in place, and return when all rows are updated."""
        update = optimizer.linear_update(weights, state, rate)
        assert out is None, "there is only one version of the weights"
        target = self._views(update.target)
        self._add_products(self._owned, target, update.factor, update.keep)
        if update.step is not None and self._kernels.on_host:
            for item in self._owned:
                pairs = zip(item.views_in(target), item.views_in(self._views(weights)), strict=True)
                for of_target, of_weights in pairs:
                    add_scaled(of_weights, update.step, of_target)
        elif update.step is not None:
            scalars = (-update.step,) if state.device_scalars is None else state.device_scalars
            self._kernels.sgd_update(weights, update.target, None, weights, state.scratch, PLAIN, scalars)
        self.publish()

    def full_gradient(self) -> Array:
        """The sum of all gradients, computed again."""
        gradient = self._kernels.zeros((self._layout.size,), self._dtype)
        all_rows = [_Rows.of(self._layout, *item) for item in owned_rows(self._layout, 1, 0)]
        self._add_products(all_rows, self._layout.views(gradient), 1.0, 1.0)
        self.publish()
        return gradient

    def squared_norm_into(self, norm: Array) -> None:
        """Squared norm of the sum of all gradients."""
        self._kernels.squared_norm_into(self.full_gradient(), norm)

    def clip(self, squared_norm: Array, limit: float) -> NoReturn:
        """Not supported: with clipping, gradients are stored."""
        raise AssertionError("a fused update has no gradients to clip")

    def _add_products(self, owned: Sequence[_Rows], target: Views, factor: float, keep: float) -> None:
        """``target = keep * target + factor * gradient`` on some rows, with the samples of all ranks."""
        counts = self._counts.tolist()  # all 0 before the first step
        ranks = [layers_of(counts[rank]) for rank, layers_of in enumerate(self._layers_of_ranks) if counts[rank]]
        for item in owned:
            weight, bias = item.views_in(target)
            kept = keep
            for layers in ranks:
                layer = layers[item.layer]
                self._kernels.add_product(layer.dz[item.rows], layer.x.T, weight, factor, kept)
                self._kernels.add_row_sums(layer.dz[item.bias_rows], layer.ones, bias, factor, kept)
                kept = 1.0

    def _views(self, flat: Array) -> Views:
        """Views of an array that lives as long as the replica."""
        if id(flat) not in self._cached_views:
            self._cached_views[id(flat)] = flat, self._layout.views(flat)
        return self._cached_views[id(flat)][1]


def _layers(workspace: Workspace, samples: int) -> Layers:
    return workspace.arrays(samples).layers
