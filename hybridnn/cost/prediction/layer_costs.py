"""Costs of the passes of a chunk: the layers of a virtual stage on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hybridnn.cost.machine import Compute, Overlap
from hybridnn.cost.prediction.groups import Collective, Groups
from hybridnn.cost.prediction.memory import layer_collectives
from hybridnn.cost.prediction.times import TimeBreakdown
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.dense import split_layers


@dataclass(frozen=True)
class ChunkCosts:
    """Costs of the passes of consecutive layers, on the first rank of a model group, whose shards are the largest.

    Without `overlap`, the backward pass waits for every all-reduce at once.
    """

    layers: tuple[DenseLayer, ...]
    split: str
    stage: int
    compute: Compute
    groups: Groups
    itemsize: int
    overlap: Overlap | None

    @cached_property
    def splits(self) -> tuple[LayerShard, ...]:
        """The layers as split over the model group, with the rank's shards."""
        return tuple(split_layers(self.layers, self.split, self.groups.model_ranks(self.stage), 0))

    @cached_property
    def parameter_layout(self) -> ParameterLayout:
        """Layout of the rank's parameter buffer."""
        return ParameterLayout(self.splits)

    @property
    def parameters(self) -> int:
        """Elements of that buffer."""
        return self.parameter_layout.size

    def forward(self, samples: int) -> TimeBreakdown:
        """Forward pass of a microbatch."""
        return sum((self._forward(split, samples) for split in self.splits), TimeBreakdown())

    def input_gradient(self, samples: int) -> TimeBreakdown:
        """Backward pass without the weight gradients."""
        return sum((self._input_gradient(split, samples, 0.0) for split in self.splits), TimeBreakdown())

    def weight_gradient(self, samples: int, *, accumulate: bool) -> TimeBreakdown:
        """Weight gradients, added to those of earlier microbatches with `accumulate`."""
        return sum((self._weight_gradient(split, samples, accumulate) for split in self.splits), TimeBreakdown())

    def backward(self, samples: int, *, accumulate: bool) -> TimeBreakdown:
        """Whole backward pass; a layer's weight gradient overlaps with the all-reduce of its input gradient."""
        total = TimeBreakdown()
        for split in self.splits:
            weight = self._weight_gradient(split, samples, accumulate)
            total = total + weight + self._input_gradient(split, samples, weight.computing)
        return total

    def fused_products(self, samples: int, ranks: int) -> TimeBreakdown:
        """One rank's part of the weight gradients, if each of `ranks` computes some of their rows."""
        return TimeBreakdown(
            sum(self._weight_gradient(split, samples, False).computing for split in self.splits) / ranks
        )

    def joining_seconds(self, samples: int) -> float:
        """Copying a microbatch's inputs and gradients side by side, for one product over all microbatches."""
        elements = sum(sum(split.weight_shape) for split in self.splits) * samples
        return self.compute.packing.seconds(elements) + self.compute.packing.call_seconds * (2 * len(self.splits) - 1)

    def collectives(self, split: LayerShard, samples: int, *, backward: bool = False) -> list[Collective]:
        """Collectives of a layer's pass in the model groups, with a number of samples."""
        calls = layer_collectives(split, self.groups.model_ranks(self.stage), self.itemsize)[backward]
        return [self.groups.model(operation, nbytes * samples, self.stage) for operation, nbytes in calls]

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


def overlapped(blocking: float, concurrent: float, overlap: Overlap | None) -> TimeBreakdown:
    """A collective of `blocking` seconds that may overlap with `concurrent` seconds of computing."""
    if overlap is None:
        return TimeBreakdown(communication=blocking)
    nonblocking = blocking * overlap.nonblocking_factor
    hidden = min(nonblocking * overlap.hidden_fraction, concurrent)
    slowdown = hidden * (overlap.compute_slowdown - 1)
    return TimeBreakdown(slowdown, nonblocking - hidden, communication_hidden=hidden)
