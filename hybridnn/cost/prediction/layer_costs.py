"""What the passes of a chunk of layers cost on one rank of its stage.

Where the seconds of an instruction go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hybridnn.cost.machine.compute import Compute
from hybridnn.cost.machine.machine import Overlap
from hybridnn.cost.prediction.groups import Groups
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.layer_split import split_layers


@dataclass(frozen=True, slots=True)
class InstructionSeconds:
    """Seconds of an instruction.

    Attributes
    ----------
    computing : float
    communication : float
        Waited for.
    overhead : float
        Loading, copying, and Python between instructions.
    hidden : float
        Communication that passes while the rank computes; not part of the time.
    """

    computing: float = 0.0
    communication: float = 0.0
    overhead: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        """Time of the instruction."""
        return self.computing + self.communication + self.overhead

    def __add__(self, other: InstructionSeconds) -> InstructionSeconds:
        return InstructionSeconds(
            self.computing + other.computing,
            self.communication + other.communication,
            self.overhead + other.overhead,
            self.hidden + other.hidden,
        )


@dataclass(frozen=True)
class ChunkCosts:
    """Costs of the passes of consecutive layers, on the rank of a model group that has most of them.

    Attributes
    ----------
    splits : tuple of LayerShard
    stage : int
    model : int
        Ranks of the model group.
    loads_input : bool
        Whether the first layer is the network's first, which needs no gradient of its input.
    compute : Compute
    groups : Groups
    itemsize : int
    overlap : Overlap or None
        None where the backward pass waits for its messages at once.
    """

    splits: tuple[LayerShard, ...]
    stage: int
    model: int
    loads_input: bool
    compute: Compute
    groups: Groups
    itemsize: int
    overlap: Overlap | None

    @classmethod
    def of(
        cls,
        layers: Sequence[DenseLayer],
        split: str,
        stage: int,
        model: int,
        compute: Compute,
        groups: Groups,
        itemsize: int,
        overlap: Overlap | None,
    ) -> ChunkCosts:
        """Split the layers; rank 0 has the largest blocks."""
        splits = tuple(split_layers(layers, split, model, 0))
        return cls(splits, stage, model, layers[0].index == 0, compute, groups, itemsize, overlap)

    @cached_property
    def parameter_layout(self) -> ParameterLayout:
        """Where the rank's weights and biases lie in its flat buffer."""
        return ParameterLayout(self.splits)

    @property
    def parameters(self) -> int:
        """Numbers of that buffer."""
        return self.parameter_layout.size

    def forward(self, samples: int) -> InstructionSeconds:
        """The forward pass of a microbatch."""
        return sum((self._forward(split, samples) for split in self.splits), InstructionSeconds())

    def input_gradient(self, samples: int) -> InstructionSeconds:
        """The backward pass without the weight gradients."""
        return sum(
            (self._input_gradient(place, samples, 0.0) for place in range(len(self.splits))), InstructionSeconds()
        )

    def weight_gradient(self, samples: int, *, accumulate: bool) -> InstructionSeconds:
        """The weight gradients of so many samples, added to those of earlier microbatches or not."""
        return sum((self._weight_gradient(split, samples, accumulate) for split in self.splits), InstructionSeconds())

    def backward(self, samples: int, *, accumulate: bool) -> InstructionSeconds:
        """The whole backward pass; a layer's weight gradient runs beside the sum of its input gradient."""
        total = InstructionSeconds()
        for place, split in enumerate(self.splits):
            weight = self._weight_gradient(split, samples, accumulate)
            total = total + weight + self._input_gradient(place, samples, weight.computing)
        return total

    def products(self, samples: int, ranks: int) -> InstructionSeconds:
        """One rank's part of the weight gradients of so many samples, where each of `ranks` takes some of the rows."""
        return InstructionSeconds(
            sum(self._weight_gradient(split, samples, False).computing for split in self.splits) / ranks
        )

    def joining(self, samples: int) -> float:
        """Copying a microbatch's inputs and gradients side by side, for one product over all microbatches."""
        numbers = sum(sum(split.weight_shape) for split in self.splits) * samples
        return self.compute.packing.seconds(numbers) + self.compute.packing.call_seconds * (2 * len(self.splits) - 1)

    def _cached(self, split: LayerShard) -> bool:
        rows, columns = split.weight_shape
        return self._fits(rows * columns)

    def _fits(self, numbers: int) -> bool:
        return numbers * self.itemsize < self.compute.cache_bytes

    def _forward(self, split: LayerShard, samples: int) -> InstructionSeconds:
        rows, columns = split.weight_shape
        layer, compute = split.layer, self.compute
        seconds = compute.forward.seconds(rows, columns, samples, cached=self._cached(split))
        seconds += compute.activation(layer.activation).forward.seconds(
            rows * samples, cached=self._fits(rows * samples)
        )
        if layer.residual:
            seconds += compute.packing.seconds(rows * samples)
        outputs = layer.outputs * samples * self.itemsize
        message = 0.0
        if split.by_inputs:
            message = self.groups.model("allreduce", outputs, self.stage)
        elif split.gathers:
            message = self.groups.model("allgather", outputs, self.stage)
        return InstructionSeconds(seconds, message)

    def _input_gradient(self, place: int, samples: int, beside: float) -> InstructionSeconds:
        """The gradient of one layer's input; its sum may travel beside `beside` seconds of computing."""
        split = self.splits[place]
        rows, columns = split.weight_shape
        layer, compute = split.layer, self.compute
        seconds = compute.activation(layer.activation).gradient.seconds(
            rows * samples, cached=self._fits(rows * samples)
        )
        if place == 0 and self.loads_input:
            return InstructionSeconds(seconds)
        seconds += compute.input_gradient.seconds(rows, columns, samples, cached=self._cached(split))
        if layer.residual:
            seconds += compute.packing.seconds(columns * samples)
        if split.by_inputs or self.model == 1:
            return InstructionSeconds(seconds)
        nbytes = columns * samples * self.itemsize
        travels = travel(self.groups.model("allreduce", nbytes, self.stage), beside, self.overlap)
        return InstructionSeconds(seconds) + travels

    def _weight_gradient(self, split: LayerShard, samples: int, accumulate: bool) -> InstructionSeconds:
        rows, columns = split.weight_shape
        cached = self._cached(split)
        seconds = self.compute.weight_gradient.seconds(rows, columns, samples, cached=cached)
        if accumulate:
            seconds += self.compute.packing.seconds(rows * columns, cached=cached)
        return InstructionSeconds(seconds)


def travel(blocking: float, beside: float, overlap: Overlap | None) -> InstructionSeconds:
    """A collective that takes `blocking` seconds when waited for at once, and may run beside `beside` of computing."""
    if overlap is None:
        return InstructionSeconds(communication=blocking)
    alone = blocking * overlap.nonblocking_factor
    hidden = min(alone * overlap.hidden_fraction, beside)
    return InstructionSeconds(hidden * (overlap.compute_slowdown - 1), alone - hidden, 0.0, hidden)
