"""Costs of the passes of a chunk: the layers of a virtual stage on one rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial

import numpy as np

from hybridnn.cost.collectives import Crossings
from hybridnn.cost.machine import Compute, Machine, Overlap
from hybridnn.cost.prediction.groups import Collective, RankGroups
from hybridnn.cost.prediction.memory import layer_collectives
from hybridnn.cost.prediction.times import TimeBreakdown
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.dense import split_layers


@dataclass(frozen=True, eq=False)
class ChunkCosts:
    """Costs of the passes of consecutive layers, on the first rank of a model group, whose shards are the largest.

    Without `overlap`, the backward pass waits for every all-reduce at once. Costs that were computed are kept: see
    `chunk_costs`.
    """

    layers: tuple[DenseLayer, ...]
    split: str
    groups: RankGroups
    compute: Compute
    itemsize: int
    overlap: Overlap | None
    _known: dict[tuple[str, int, bool], TimeBreakdown] = field(default_factory=dict)

    @cached_property
    def splits(self) -> tuple[LayerShard, ...]:
        """The layers as split over the model group, with the rank's shards."""
        return tuple(split_layers(self.layers, self.split, self.groups.ranks, 0))

    @cached_property
    def parameters(self) -> int:
        """Elements of the rank's parameter buffer."""
        return ParameterLayout(self.splits).size

    def forward(self, samples: int) -> TimeBreakdown:
        """Forward pass of a microbatch."""
        return self._once("forward", samples, False, lambda split: self._forward(split, samples))

    def input_gradient(self, samples: int) -> TimeBreakdown:
        """Backward pass without the weight gradients."""
        return self._once("input gradient", samples, False, lambda split: self._input_gradient(split, samples, 0.0))

    def weight_gradient(self, samples: int, *, accumulate: bool) -> TimeBreakdown:
        """Weight gradients, added to those of earlier microbatches with `accumulate`."""
        of_layer = partial(self._weight_gradient, samples=samples, accumulate=accumulate)
        return self._once("weight gradient", samples, accumulate, of_layer)

    def backward(self, samples: int, *, accumulate: bool) -> TimeBreakdown:
        """Whole backward pass; a layer's weight gradient overlaps with the all-reduce of its input gradient."""

        def of_layer(split: LayerShard) -> TimeBreakdown:
            weight = self._weight_gradient(split, samples, accumulate)
            return weight + self._input_gradient(split, samples, weight.computing)

        return self._once("backward", samples, accumulate, of_layer)

    def _once(
        self, name: str, samples: int, accumulate: bool, of_layer: Callable[[LayerShard], TimeBreakdown]
    ) -> TimeBreakdown:
        """Sum over the layers, computed at the first call."""
        key = name, samples, accumulate
        if key not in self._known:
            self._known[key] = sum((of_layer(split) * times for split, times in self._different), TimeBreakdown())
        return self._known[key]

    @cached_property
    def _different(self) -> tuple[tuple[LayerShard, int], ...]:
        """One of all layers of each shape and split, which cost the same, and their number."""
        alike: dict[Hashable, list[LayerShard]] = {}
        for split in self.splits:
            alike.setdefault((split.layer, split.by_inputs, split.gathers), []).append(split)
        return tuple((splits[0], len(splits)) for splits in alike.values())

    def joining_seconds(self, samples: int) -> float:
        """Copying a microbatch's inputs and gradients side by side, for one product over all microbatches."""
        rows = sum(sum(split.weight_shape) for split in self.splits)
        first, packing = self.splits[0], self.compute.packing
        # Of the network's input, every sample is contiguous.
        parts = rows - first.weight_shape[1] if first.layer.index == 0 else rows
        calls = packing.call_seconds * (2 * len(self.splits) - 1)
        return packing.seconds(rows * samples) + calls + parts * self.compute.row_seconds

    def collectives(self, split: LayerShard, samples: int, *, backward: bool = False) -> list[Collective]:
        """Collectives of a layer's pass in the model groups, with a number of samples."""
        calls = layer_collectives(split, self.groups.ranks, self.itemsize)[backward]
        return [self.groups.collective(operation, nbytes * samples) for operation, nbytes in calls]

    def _cached(self, elements: int) -> bool:
        return elements * self.itemsize < self.compute.cache_bytes

    def _forward(self, split: LayerShard, samples: int) -> TimeBreakdown:
        rows, columns = split.weight_shape
        outputs, layer, compute = rows * samples, split.layer, self.compute
        seconds = compute.forward.seconds(rows, columns, samples, cached=self._cached(rows * columns))
        seconds += compute.activation(layer.activation).forward.seconds(outputs, cached=self._cached(outputs))
        if layer.residual:
            seconds += compute.packing.seconds(outputs)
        return TimeBreakdown(seconds, sum(item.seconds for item in self.collectives(split, samples)))

    def _input_gradient(self, split: LayerShard, samples: int, concurrent: float) -> TimeBreakdown:
        """Gradient of a layer's input; its all-reduce may overlap with `concurrent` seconds of computing."""
        rows, columns = split.weight_shape
        outputs, layer, compute = rows * samples, split.layer, self.compute
        seconds = compute.activation(layer.activation).gradient.seconds(outputs, cached=self._cached(outputs))
        if layer.index == 0:  # the network's input has no gradient
            return TimeBreakdown(seconds)
        seconds += compute.input_gradient.seconds(rows, columns, samples, cached=self._cached(rows * columns))
        if layer.residual:
            seconds += compute.packing.seconds(columns * samples)
        blocking = sum(item.seconds for item in self.collectives(split, samples, backward=True))
        return TimeBreakdown(seconds) + overlapped(blocking, concurrent, self.overlap)

    def _weight_gradient(self, split: LayerShard, samples: int, accumulate: bool) -> TimeBreakdown:
        rows, columns = split.weight_shape
        cached = self._cached(rows * columns)
        seconds = self.compute.weight_gradient.seconds(rows, columns, samples, cached=cached)
        if accumulate:
            seconds += self.compute.packing.seconds(rows * columns, cached=cached)
        return TimeBreakdown(seconds)


@lru_cache(1 << 12)
def chunk_costs(
    machine: Machine,
    layers: tuple[DenseLayer, ...],
    split: str,
    ranks: int,
    crossings: Crossings | None,
    dtype: str,
    busy_ranks: int,
    pace: float,
    overlaps: bool,
) -> ChunkCosts:
    """Costs of consecutive layers, from `of_shapes`, in model groups with these ranks; `pace` as for `compute_at`."""
    groups, compute = RankGroups(machine, ranks, crossings), compute_at(machine, dtype, busy_ranks, pace)
    itemsize = np.dtype(dtype).itemsize
    return ChunkCosts(layers, split, groups, compute, itemsize, machine.overlap if overlaps else None)


@lru_cache(128)
def compute_at(machine: Machine, dtype: str, busy_ranks: int, pace: float) -> Compute:
    """Costs of computing with so many busy ranks on a node, all of them `pace` times those of the machine."""
    return machine.compute_for(dtype, busy_ranks).scaled(pace)


def of_shapes(layers: Iterable[DenseLayer]) -> tuple[DenseLayer, ...]:
    """The same object for all layers of a shape; only the network's first layer costs less than others."""
    return tuple(_layer(min(at.index, 1), at.inputs, at.outputs, at.activation, at.residual, "") for at in layers)


_layer = lru_cache(1 << 12)(DenseLayer)


def overlapped(blocking: float, concurrent: float, overlap: Overlap | None) -> TimeBreakdown:
    """A collective of `blocking` seconds that may overlap with `concurrent` seconds of computing."""
    if overlap is None:
        return TimeBreakdown(communication=blocking)
    nonblocking = blocking * overlap.nonblocking_factor
    hidden = min(nonblocking * overlap.hidden_fraction, concurrent)
    slowdown = hidden * (overlap.compute_slowdown - 1)
    return TimeBreakdown(slowdown, nonblocking - hidden, communication_hidden=hidden)
