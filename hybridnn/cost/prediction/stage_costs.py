"""What every instruction of a layout's schedule costs on a machine.

Gradients on their way between ranks: their bytes, and what rounding them takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hybridnn.cost.machine.compute import Compute
from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.groups import Groups
from hybridnn.cost.prediction.layer_costs import ChunkCosts, InstructionSeconds, travel
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.parallel.compressed_allreduce import compressed_bytes, piece_sizes
from hybridnn.parallel.gradient_reduction import compressed_piece_sizes
from hybridnn.parallel.replicas.sharing import slice_bounds
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.message_flow import Message
from hybridnn.pipeline.schedules.methods import METHODS

ROUNDING_COPIES = {"bfloat16": 12, "float16": 65}
"""Times that a number could be copied while it is rounded, added up, rounded again and read, by NumPy in the cache."""


def bytes_of_gradients(layout: Layout, stage: int, costs: ChunkCosts) -> int:
    """Bytes of a chunk's gradients that a batch group sums, with the loss behind them where they are not rounded."""
    words = layout.words(stage)
    if words is None:
        return (costs.parameters + 1) * costs.itemsize
    sizes = compressed_piece_sizes(costs.parameter_layout.ends, costs.itemsize, layout.overlap)
    return compressed_bytes(sizes, layout.stages[stage][0], words)


def bytes_of_slice(layout: Layout, stage: int, numbers: int, itemsize: int, nodes: int) -> int:
    """Bytes of a slice of shared gradients, of so many numbers, that its owners on so many nodes sum."""
    words = layout.words(stage)
    if words is None:
        return numbers * itemsize
    return compressed_bytes(piece_sizes(numbers), nodes, words)


def rounding_seconds(layout: Layout, stage: int, numbers: int, compute: Compute) -> float:
    """Computing of a sum of so many numbers that is not part of it where they travel as computed."""
    words = layout.words(stage)
    # They are rounded in pieces that stay in the cache.
    return 0.0 if words is None else ROUNDING_COPIES[words.name] * compute.packing.seconds(numbers, cached=True)


class StageCosts:
    """Costs of the instructions of every stage, on the rank of the stage that has most to do.

    Parameters
    ----------
    workload : Workload
    layout : Layout
    machine : Machine

    Attributes
    ----------
    groups : Groups
    hidden : float
        Fraction of a message between stages that passes while its receiver computes.
    """

    def __init__(self, workload: Workload, layout: Layout, machine: Machine) -> None:
        self._workload, self._layout = workload, layout
        self._policy = METHODS[layout.method].policy
        self.groups = Groups(layout, machine)
        self._takes_products = layout.takes_products(workload)
        self._overlap = machine.overlap if layout.overlap else None
        self.hidden = machine.overlap.hidden_fraction
        self.compute = _paced(machine, workload.dtype, self.groups.busy_ranks, layout.ranks)
        self.chunks = [
            [self._chunk(stage, chunk) for chunk in range(layout.chunks)] for stage in range(len(layout.stages))
        ]
        self._known: dict[tuple[Any, ...], InstructionSeconds] = {}

    def _chunk(self, stage: int, chunk: int) -> ChunkCosts:
        layout, workload = self._layout, self._workload
        layers, model = layout.layers_of(workload.model, stage, chunk), layout.stages[stage][1]
        return ChunkCosts.of(
            layers, layout.split, stage, model, self.compute, self.groups, workload.itemsize, self._overlap
        )

    # -- what a simulation asks for ----------------------------------------------------------------------------------

    def duration(self, stage: int, instruction: Instruction) -> float:
        """Time of a computation, with the collectives, copies and loads that belong to it."""
        return self.shares(stage, instruction).total

    def message(self, message: Message) -> float:
        """Time of a message between two stages."""
        return self.groups.message(self.message_bytes(message), message[0].sender, message[0].receiver)

    def barrier_seconds(self) -> float:
        """Time of a barrier among all ranks."""
        return self.groups.world("barrier", 0)

    # -- what a prediction asks for ----------------------------------------------------------------------------------

    def shares(self, stage: int, instruction: Instruction) -> InstructionSeconds:
        """Where the time of a computation goes."""
        kind, chunk, microbatch = type(instruction), instruction.chunk, instruction.microbatch
        ahead = self._reads_ahead(stage, instruction)
        samples = self._samples(stage, microbatch)
        key = (kind, stage, chunk, samples, microbatch == 0, microbatch == ALL_MICROBATCHES, ahead)
        if key not in self._known:
            self._known[key] = _SHARES[kind](self, stage, chunk, microbatch) + InstructionSeconds(overhead=ahead)
        return self._known[key]

    @staticmethod
    def computes(instruction: Instruction) -> bool:
        """Whether an instruction occupies its stage: loads and messages are part of those that do."""
        return type(instruction) in _SHARES

    def loss_seconds(self, stage: int, instruction: Instruction) -> float:
        """The part of a computation's time that is the loss and its gradient."""
        chunk = instruction.chunk
        if not isinstance(instruction, Backward | InputGradient) or not self._is_last(stage, chunk):
            return 0.0
        return self._loss_seconds(stage, chunk, self._samples(stage, instruction.microbatch))

    def message_bytes(self, message: Message) -> int:
        """Bytes of a message, on the rank that sends or receives most."""
        channel, _, microbatch = message
        if channel.gradients:
            splits = self.chunks[channel.receiver][channel.chunk].splits
            features = splits[-1].layer.outputs
        else:
            features = self.chunks[channel.receiver][channel.chunk].splits[0].layer.inputs
        samples = max(self._samples(stage, microbatch) for stage in (channel.sender, channel.receiver))
        return features * samples * self._workload.itemsize

    def gradient_bytes(self, stage: int, chunk: int) -> int:
        """Bytes of a chunk's gradients on their way, with the loss behind them where they are not rounded."""
        return bytes_of_gradients(self._layout, stage, self.chunks[stage][chunk])

    # -- kinds of instruction ----------------------------------------------------------------------------------------

    def _samples(self, stage: int, microbatch: int) -> int:
        batch_size = self._workload.batch_size
        if microbatch == ALL_MICROBATCHES:
            return self._layout.samples_of_all(stage, batch_size)
        return self._layout.samples_of(stage, microbatch, batch_size)

    def _is_first(self, stage: int, chunk: int) -> bool:
        return stage == 0 and chunk == 0

    def _is_last(self, stage: int, chunk: int) -> bool:
        return stage == len(self._layout.stages) - 1 and chunk == self._layout.chunks - 1

    def _reads_ahead(self, stage: int, instruction: Instruction) -> float:
        """Time to predict the weights that a pass reads, where it reads predicted ones."""
        if isinstance(instruction, Forward):
            read = self._policy.forward(stage, len(self._layout.stages), instruction.minibatch)
        elif isinstance(instruction, Backward | InputGradient):
            read = self._policy.backward(stage, len(self._layout.stages), instruction.minibatch)
        else:
            return 0.0
        if not read.ahead:
            return 0.0
        parameters = self.chunks[stage][instruction.chunk].parameters
        return self.compute.packing.seconds(parameters, cached=self._fits_cache(parameters))

    def _fits_cache(self, numbers: int) -> bool:
        return numbers * self._workload.itemsize < self.compute.cache_bytes

    def _loss_seconds(self, stage: int, chunk: int, samples: int) -> float:
        numbers = self.chunks[stage][chunk].splits[-1].layer.outputs * samples
        return self.compute.loss(self._workload.classification).seconds(numbers)

    def _instructions(self, count: int) -> InstructionSeconds:
        return InstructionSeconds(overhead=count * self.compute.instruction_seconds)

    def _load(self, features: int, samples: int) -> InstructionSeconds:
        """Taking a microbatch's samples, or targets, from the data; or rank 0 takes the minibatch, and sends it."""
        workload, groups = self._workload, self.groups
        if workload.distribution == "local":
            return self._instructions(1) + InstructionSeconds(overhead=self.compute.load.seconds(features * samples))
        _, model = self._layout.stages[0]
        nbytes = features * workload.batch_size * workload.itemsize
        if workload.distribution == "scatter":
            seconds = groups.world("scatter", nbytes * model)
        else:
            part = features * samples * workload.itemsize
            seconds = groups.batch("scatter", nbytes, 0) + groups.model("broadcast", part, 0)
        taken = InstructionSeconds(0.0, seconds, self.compute.load.seconds(features * workload.batch_size))
        return self._instructions(1) + taken

    def _pack(self, features: int, samples: int) -> InstructionSeconds:
        """Copying a message to or from its buffer, with the instruction that sends or receives it."""
        return self._instructions(1) + InstructionSeconds(overhead=self.compute.packing.seconds(features * samples))

    def _forward(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        samples, costs = self._samples(stage, microbatch), self.chunks[stage][chunk]
        total = costs.forward(samples) + self._instructions(1)
        first, last = costs.splits[0].layer.inputs, costs.splits[-1].layer.outputs
        if self._is_first(stage, chunk):
            total += self._load(first, samples)
        else:
            total += self._pack(first, samples)
        if self._is_last(stage, chunk):
            total += self._load(1 if self._workload.classification else last, samples)
        else:
            total += self._pack(last, samples)
        return total

    def _recompute(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        return self.chunks[stage][chunk].forward(self._samples(stage, microbatch)) + self._instructions(1)

    def _around_backward(self, stage: int, chunk: int, samples: int) -> InstructionSeconds:
        """The loss, or the message with the gradient of the outputs; and the message with that of the inputs."""
        costs = self.chunks[stage][chunk]
        total = self._instructions(1)
        if self._is_last(stage, chunk):
            total += InstructionSeconds(self._loss_seconds(stage, chunk, samples))
        else:
            total += self._pack(costs.splits[-1].layer.outputs, samples)
        if not self._is_first(stage, chunk):
            total += self._pack(costs.splits[0].layer.inputs, samples)
        return total

    def _backward(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        samples, costs = self._samples(stage, microbatch), self.chunks[stage][chunk]
        if self._takes_products:
            backward = costs.input_gradient(samples)
        else:
            backward = costs.backward(samples, accumulate=microbatch > 0)
        return backward + self._around_backward(stage, chunk, samples)

    def _input_gradient(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        samples, costs = self._samples(stage, microbatch), self.chunks[stage][chunk]
        total = costs.input_gradient(samples) + self._around_backward(stage, chunk, samples)
        return total + InstructionSeconds(overhead=costs.joining(samples)) if self._layout.merges else total

    def _weight_gradient(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        samples = self._samples(stage, microbatch)
        return self.chunks[stage][chunk].weight_gradient(samples, accumulate=microbatch > 0) + self._instructions(1)

    def _reduce(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        """The sum of all chunks' gradients; where it overlaps, it does so with the last microbatch's backward pass."""
        total = self._instructions(1)
        if self._layout.stages[stage][0] == 1:
            return total
        if not self._layout.keeps_replicas(stage):  # the loss alone; the gradients are summed as they are applied
            loss = self.groups.batch("allreduce", self._workload.itemsize, stage)
            return total + InstructionSeconds(communication=loss * len(self.chunks[stage]))
        samples = self._samples(stage, self._layout.microbatches - 1)
        for number, costs in enumerate(self.chunks[stage]):
            blocking = self.groups.batch("allreduce", self.gradient_bytes(stage, number), stage)
            if self._layout.words(stage) is not None:
                total += InstructionSeconds(rounding_seconds(self._layout, stage, costs.parameters, self.compute))
                blocking += self.groups.batch("allreduce", self._workload.itemsize, stage)
            beside = costs.backward(samples, accumulate=False).computing
            total += travel(blocking, beside, self._overlap)
        return total

    def _update(self, stage: int, chunk: int, microbatch: int) -> InstructionSeconds:
        if self._takes_products:
            total = self._update_with_products()
        else:
            # The groups that lie on nodes in the least favourable way are the slowest.
            ways = (self._update_of(stage, sharers) for sharers in self._layout.sharers(stage))
            total = max(ways, key=lambda shares: shares.total)
        total += self._instructions(1) + InstructionSeconds(overhead=self.compute.step_seconds)
        if self._layout.exact and len(self._layout.stages) > 1:
            total += InstructionSeconds(
                communication=self.groups.world("broadcast", 8)
            )  # the loss, from the last stage
        return total

    def _update_with_products(self) -> InstructionSeconds:
        """Weight gradients taken straight to their place, of some rows with all samples, and the barrier behind."""
        (costs,), ranks = self.chunks[0], self._layout.stages[0][0]
        total = costs.products(self._workload.batch_size, ranks)
        if self._workload.optimizer == "momentum":  # they went to the velocity, which the weights follow
            numbers = costs.parameters // ranks
            follow = self.compute.update("sgd").seconds(numbers, cached=self._fits_cache(2 * numbers))
            total += InstructionSeconds(follow)
        return total + InstructionSeconds(communication=self.groups.sharers("barrier", 0, 0))

    def _update_seconds(self, parameters: int, arrays: int) -> float:
        update = self.compute.update(self._workload.optimizer)
        return update.seconds(parameters, cached=self._fits_cache(parameters * arrays))

    def _update_of(self, stage: int, sharers: tuple[int, ...]) -> InstructionSeconds:
        """The update of a batch group with so many ranks on each of its nodes, without the Python around it."""
        parameters = [costs.parameters for costs in self.chunks[stage]]
        if max(sharers) == 1:
            return InstructionSeconds(self._update_seconds(sum(parameters), arrays=2 + self._workload.slots))
        return sum((self._shared_update(stage, numbers, sharers) for numbers in parameters), InstructionSeconds())

    def _shared_update(self, stage: int, parameters: int, sharers: tuple[int, ...]) -> InstructionSeconds:
        """Adding up a rank's slices of a chunk's gradients, over the nodes too, updating them, and the barrier behind.

        Of the ranks that do most: on nodes with fewer ranks each has more slices, and adds up fewer gradients.
        """
        slices = max(sharers)
        largest = slice_bounds(parameters, slices, 0)[1]
        most = {on_node: -(-slices // on_node) * largest for on_node in sharers}
        added = max(numbers * (on_node - 1) for on_node, numbers in most.items())
        updated, arrays = max(most.values()), slices + 1 + self._workload.slots
        seconds = self.compute.packing.seconds(added, cached=self._fits_cache(updated * arrays))
        seconds += self._update_seconds(updated, arrays)
        travels = self.groups.sharers("barrier", 0, stage)
        if len(sharers) > 1:
            nbytes = bytes_of_slice(self._layout, stage, largest, self._workload.itemsize, len(sharers))
            travels += self.groups.owners("allreduce", nbytes, stage, sharers) * (updated // largest)
            seconds += rounding_seconds(self._layout, stage, updated, self.compute)
        return InstructionSeconds(seconds, travels)


_SHARES: Mapping[type[Instruction], Callable[[StageCosts, int, int, int], InstructionSeconds]] = MappingProxyType(
    {
        Forward: StageCosts._forward,
        Recompute: StageCosts._recompute,
        Backward: StageCosts._backward,
        InputGradient: StageCosts._input_gradient,
        WeightGradient: StageCosts._weight_gradient,
        ReduceGradients: StageCosts._reduce,
        Update: StageCosts._update,
    }
)


@lru_cache
def _paced(machine: Machine, dtype: str, busy_ranks: int, ranks: int) -> Compute:
    """Costs of computing at the pace of the last of all ranks, which meet in every step; kept for a plan."""
    compute = machine.compute_for(dtype, busy_ranks)
    return compute.scaled(compute.pace(ranks))
