"""A replica whose gradients nobody keeps: weight gradients are products, added where the optimizer wants them.

SGD reads a gradient once, to add it to the velocity, or to the weights. So the backward pass leaves weight gradients
out, and the update takes each product ``dz xᵀ`` straight into its place: no gradient is written, read or summed.

Batch ranks of one node let each other see ``x`` and ``dz`` in memory that they share. Every rank updates some rows of
the weights, with the products of everybody's samples: the sum over the ranks is part of the product. All ranks meet
twice in a step: at the all-reduce of the loss, from when on nobody reads weights of this step, and behind the update,
before anybody writes over ``x`` and ``dz``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.backend import Array
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.nn.parameters import ALIGNMENT, LayerParameters, ParameterLayout
from hybridnn.parallel.dense import WeightGradientArrays
from hybridnn.parallel.node_memory import NodeMemory, PrivateMemory
from hybridnn.parallel.replicas.node_replica import NodeReplica
from hybridnn.parallel.replicas.sharing import slice_bounds

Layers = Sequence[WeightGradientArrays]
Views = Sequence[LayerParameters]

ROWS = 16
"""Ranks own whole multiples of so many rows, where a layer has them: blocks of a matrix product."""

LEAST_PARAMETERS = 1 << 16
"""From so many on products pay; below, more calls cost more than they save."""


@dataclass(frozen=True)
class _Rows:
    """Rows of a layer's weights, and those of its biases that this rank has, that one rank updates.

    Attributes
    ----------
    place : int
        Of the layer.
    rows : slice
    bias : slice
        Among the biases of the layer on this rank.
    bias_rows : slice
        The same among the rows of the layer.
    """

    place: int
    rows: slice
    bias: slice
    bias_rows: slice

    @classmethod
    def of(cls, layout: ParameterLayout, place: int, rows: slice) -> _Rows:
        """With the biases that belong to the rows."""
        shard = layout.shards[place]
        first = shard.bias_rows.start - shard.rows.start
        start = max(rows.start, first)
        stop = max(start, min(rows.stop, first + shard.bias_size))
        return cls(place, rows, slice(start - first, stop - first), slice(start, stop))

    def views_in(self, views: Views) -> tuple[Array, Array]:
        """Weights and biases among the views of a flat buffer."""
        return views[self.place].weight[self.rows], views[self.place].bias[self.bias]


def fused_update_pays(model: MLP, batch_size: int, batch: int, split: int) -> bool:
    """Whether weight gradients are better products at the update than arrays.

    They then need no memory, but room for every layer's ``dz``, and for activations that are not those of training.

    Parameters
    ----------
    model : MLP
    batch_size : int
        Most samples of a minibatch, over all ranks.
    batch, split : int
        Ranks that share the samples, and ranks that share the weights.
    """
    return model.parameters >= split * max(LEAST_PARAMETERS, 2 * -(-batch_size // batch) * sum(model.sizes))


def owned_rows(layout: ParameterLayout, ranks: int, rank: int) -> Iterator[tuple[int, slice]]:
    """Places of layers and rows of their weights that a rank updates: equal shares of all numbers, consecutive ones."""
    shapes = [shard.weight_shape for shard in layout.shards]
    total, before = sum(rows * (columns + 1) for rows, columns in shapes), 0
    for place, (rows, columns) in enumerate(shapes):

        def cut(number: int, before: int = before, rows: int = rows, columns: int = columns) -> int:
            """The row where the share of rank `number` begins."""
            row = max(0, total * number - before * ranks) / (ranks * (columns + 1))
            return rows if row >= rows else min(rows, round(row / ROWS) * ROWS)

        if cut(rank) < cut(rank + 1):
            yield place, slice(cut(rank), cut(rank + 1))
        before += rows * (columns + 1)


class FusedUpdateReplica(NodeReplica):
    """A replica of batch ranks that are all on one node, or of one rank alone.

    Parameters
    ----------
    memory : NodeMemory or PrivateMemory
        Of the batch group.
    batch : Group
    layout : ParameterLayout
    dtype : dtype
    arrays : int
        As for `SharedReplica`.
    """

    def __init__(
        self, memory: NodeMemory | PrivateMemory, batch: Group, layout: ParameterLayout, dtype: DTypeLike, arrays: int
    ) -> None:
        window = memory.allocate((arrays, layout.size), dtype)
        super().__init__(memory, batch, iter(window), dtype)
        self._layout, self._dtype = layout, np.dtype(dtype)
        self._counts = memory.allocate((batch.size,), np.int64)
        self._owned = [_Rows.of(layout, *item) for item in owned_rows(layout, batch.size, batch.rank)]
        self._layers_of_ranks: list[Callable[[int], Layers]] = []
        self._known: dict[int, tuple[Array, Views]] = {}
        self._scale = 1.0
        # Memory lies near the rank that touches it first.
        window[:, slice(*slice_bounds(layout.size, batch.size, batch.rank))] = 0
        self._counts[batch.rank] = 0
        self.publish()

    @property
    def rank(self) -> int:
        """This rank's place in the batch group."""
        return self._batch.rank

    @property
    def nbytes(self) -> int:
        """Bytes of the losses, and of everybody's numbers of samples."""
        return self.loss.nbytes + self._total.nbytes + self.bytes_per_rank(self._counts.nbytes)

    def shown_arrays(self, numbers: Sequence[int]) -> list[Iterator[Array]]:
        """Memory that all ranks see, for what products are taken from: of each rank, arrays of so many numbers."""
        lines = [-(-number // ALIGNMENT) * ALIGNMENT for number in numbers]
        rows = self._memory.allocate((self._batch.size, sum(lines)), self._dtype)

        def pieces(row: Array) -> Iterator[Array]:
            for first, number in zip(accumulate(lines, initial=0), numbers, strict=False):
                yield row[first : first + number]

        return [pieces(row) for row in rows]

    def take_from(self, layers_of_ranks: Sequence[Callable[[int], Layers]]) -> None:
        """Say where the products find every rank's layers of a minibatch, from that rank's number of samples."""
        self._layers_of_ranks = list(layers_of_ranks)

    def computed(self, samples: int) -> None:
        """The backward pass of so many samples is done on this rank, up to the weight gradients."""
        self._counts[self.rank] = samples

    def finish(self) -> None:
        """See `NodeReplica.finish`; nothing of the new gradient is clipped yet."""
        super().finish()
        self._scale = 1.0

    def new_state(self, optimizer: Optimizer, weights: Array) -> OptimizerState:
        """State before the first update, its slots in the memory that is shared."""
        slots = {name: self.new_array() for name in optimizer.slot_names}
        return OptimizerState(slots, kernels.empty((0,), self._dtype))

    def update(
        self, optimizer: Optimizer, weights: Array, state: OptimizerState, rate: float, out: Array | None = None
    ) -> None:
        """Update the rows of this rank in place, and return when all rows are."""
        entry = optimizer.linear_update(weights, state, rate)
        assert entry is not None, "gradients that are read more than once are kept by other replicas"
        assert out is None, "nor are there several versions of the weights"
        into = self._views(entry.target)
        self._add_products(self._owned, into, entry.factor, entry.keep)
        if entry.step is not None:
            for item in self._owned:
                for of_step, of_weights in zip(item.views_in(into), item.views_in(self._views(weights)), strict=True):
                    kernels.add_scaled(of_weights, entry.step, of_step)
        self.publish()

    def full_gradient(self) -> Array:
        """The sum of all gradients, made anew."""
        whole = kernels.zeros((self._layout.size,), self._dtype)
        everything = [_Rows.of(self._layout, *item) for item in owned_rows(self._layout, 1, 0)]
        self._add_products(everything, self._layout.views(whole), 1.0, 1.0)
        self.publish()
        return whole

    def squared_norm_into(self, norm: Array) -> None:
        """Squared norm of the sum of all gradients."""
        norm[0] = kernels.squared_norm(self.full_gradient())

    def clip(self, squared_norm: Array, limit: float) -> None:
        """Scale the products of this step, which have not been taken yet."""
        norm = sqrt(squared_norm[0])
        if norm > limit:
            self._scale *= limit / norm

    def _add_products(self, owned: Sequence[_Rows], into: Views, factor: float, keep: float) -> None:
        """``into = keep * into + factor * gradient`` on some rows, with the samples of all ranks, as it was clipped."""
        factor *= self._scale
        counts = self._counts.tolist()  # before the first step nobody has any
        ranks = [layers_of(counts[rank]) for rank, layers_of in enumerate(self._layers_of_ranks) if counts[rank]]
        for item in owned:
            weight, bias = item.views_in(into)
            kept = keep
            for layers in ranks:
                layer = layers[item.place]
                kernels.add_product(layer.dz[item.rows], layer.x.T, weight, factor, kept)
                if bias.size:
                    kernels.add_row_sums(layer.dz[item.bias_rows], layer.ones, bias, factor, kept)
                kept = 1.0

    def _views(self, flat: Array) -> Views:
        """Views of an array that is there as long as the replica."""
        if id(flat) not in self._known:
            self._known[id(flat)] = flat, self._layout.views(flat)
        return self._known[id(flat)][1]
