"""Costs of the instructions of a layout's schedule on a machine: passes of the layers, messages, and updates.

Those of equal layers, chunks, stages and microbatches are computed once. `hybridnn.cost.prediction.times` adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from hybridnn.cost.collectives import Crossings
from hybridnn.cost.machine import Compute, Machine, MessageOverhead, Overlap
from hybridnn.cost.order_search import StageTimes
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.groups import Collective, Groups, Placement, RankGroups, replica_groups
from hybridnn.cost.prediction.memory import layer_collectives
from hybridnn.cost.prediction.times import MessageTimes, TimeBreakdown
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.dense import split_layers
from hybridnn.parallel.shared_replica import slice_bounds
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.compiled_schedule import Channel, Message
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
from hybridnn.pipeline.schedules.methods import METHODS

# -- passes of the layers of a chunk ---------------------------------------------------------------------------------


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
        calls = layer_collectives(split, self.groups.ranks, self.compute.itemsize)[backward]
        return [self.groups.collective(operation, nbytes * samples) for operation, nbytes in calls]

    def _forward(self, split: LayerShard, samples: int) -> TimeBreakdown:
        rows, columns = split.weight_shape
        outputs, layer, compute = rows * samples, split.layer, self.compute
        seconds = compute.forward.seconds(rows, columns, samples, cached=self.compute.caches(rows * columns))
        seconds += compute.activation(layer.activation).forward.seconds(outputs, cached=self.compute.caches(outputs))
        if layer.residual:
            seconds += compute.packing.seconds(outputs)
        return TimeBreakdown(seconds, sum(item.seconds for item in self.collectives(split, samples)))

    def _input_gradient(self, split: LayerShard, samples: int, concurrent: float) -> TimeBreakdown:
        """Gradient of a layer's input; its all-reduce may overlap with `concurrent` seconds of computing."""
        rows, columns = split.weight_shape
        outputs, layer, compute = rows * samples, split.layer, self.compute
        seconds = compute.activation(layer.activation).gradient.seconds(outputs, cached=self.compute.caches(outputs))
        if layer.index == 0:  # the network's input has no gradient
            return TimeBreakdown(seconds)
        seconds += compute.input_gradient.seconds(rows, columns, samples, cached=self.compute.caches(rows * columns))
        if layer.residual:
            seconds += compute.packing.seconds(columns * samples)
        blocking = sum(item.seconds for item in self.collectives(split, samples, backward=True))
        return TimeBreakdown(seconds) + overlapped(blocking, concurrent, self.overlap)

    def _weight_gradient(self, split: LayerShard, samples: int, accumulate: bool) -> TimeBreakdown:
        rows, columns = split.weight_shape
        cached = self.compute.caches(rows * columns)
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
    return ChunkCosts(layers, split, groups, compute, machine.overlap if overlaps else None)


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


# -- instructions ----------------------------------------------------------------------------------------------------

LOSS_BYTES = 8  # the loss, which the last stage of an exact pipeline broadcasts


class StageCosts:
    """Costs of the instructions of every stage, on the rank of the stage that has most to do.

    `hidden` is the fraction of a message between stages that overlaps with computing on its receiver; the other
    attributes are those of `UnscheduledCosts`.
    """

    def __init__(self, workload: Workload, layout: Layout, machine: Machine) -> None:
        self.workload, self.layout = workload, layout
        self._policy = METHODS[layout.method].policy
        self._overlap = machine.overlap if layout.overlap else None
        one_of_placement = layout.method if layout.chunks > 1 else "sequential"
        self.groups, self.compute, self.chunks, self.around, self.overheads, self.equal_stages = _unscheduled_costs(
            machine, workload, replace(layout, method=one_of_placement, microbatches=1, merges=False, order=())
        )
        # Where overheads are known, they are part of the computations, and nothing else occupies a receiver.
        is_known = any(any(map(any, of_chunks)) for of_chunks in self.overheads)
        self.hidden = 1.0 if is_known else machine.overlap.hidden_fraction
        self._equal_microbatches = (*layout.equal_microbatches(workload.batch_size), ALL_MICROBATCHES)
        self._predicts = METHODS[layout.method].predicts
        self.sums: dict[Hashable, float] = {}  # those that `hybridnn.cost.plan.StepBounds` has added up
        self._breakdowns: dict[tuple[Any, ...], TimeBreakdown] = {}
        self._messages: dict[tuple[Channel, int], MessageTimes] = {}

    # -- times of a schedule -----------------------------------------------------------------------------------------

    def duration(self, stage: int, instruction: Instruction) -> float:
        """Seconds of a computation, with the collectives, copies and loads that belong to it."""
        return self.breakdown(stage, instruction).total

    def message(self, message: Message) -> MessageTimes:
        """Times of a message between two stages, without what it takes from them: that is part of `duration`."""
        channel, _, microbatch = message
        key = channel, self._equal_microbatches[microbatch]
        if key not in self._messages:
            between, machine = (channel.sender, channel.receiver), self.groups.machine
            splits = self.chunks[channel.receiver][channel.chunk].splits
            features = splits[-1].layer.outputs if channel.gradients else splits[0].layer.inputs
            # on the rank that sends or receives most
            samples = max(self._samples(stage, microbatch) for stage in between)
            nbytes = features * samples * self.workload.itemsize
            flows, overhead = self.groups.flows(*between), self.groups.overhead(*between)
            whole = machine.message_seconds(nbytes, spans_nodes=flows > 0, flows=flows)
            in_ranks = 0.0 if overhead is None else 2 * overhead.seconds(nbytes)
            self._messages[key] = MessageTimes(max(whole - in_ranks, 0.0), machine.link_seconds(nbytes, flows))
        return self._messages[key]

    def barrier_seconds(self) -> float:
        """Seconds of a barrier of all ranks."""
        return self.groups.world.collective("barrier", 0).seconds

    def breakdown(self, stage: int, instruction: Instruction) -> TimeBreakdown:
        """Breakdown of the duration of a computation, with the Python around it."""
        kind, chunk, equal = type(instruction), instruction.chunk, self.equal_stages[stage]
        microbatch = self._equal_microbatches[instruction.microbatch]
        prediction = self._weight_prediction_seconds(stage, instruction) if self._predicts else 0.0
        key = (kind, equal, chunk, microbatch, prediction)
        if key not in self._breakdowns:
            python = TimeBreakdown(overhead=self.compute.instruction_seconds + prediction)
            self._breakdowns[key] = _INSTRUCTION_COSTS[kind](self, equal, chunk, microbatch) + python
        return self._breakdowns[key]

    def loss_seconds(self, stage: int, instruction: Instruction) -> float:
        """Seconds of the loss and its gradient in a computation."""
        chunk = instruction.chunk
        if not isinstance(instruction, Backward | InputGradient) or self.around[stage][chunk][1] is not None:
            return 0.0
        return self._loss_seconds(stage, chunk, self._samples(stage, instruction.microbatch))

    def stage_times(self) -> Iterator[StageTimes]:
        """Times of the stages for a search of their order: a pass includes what a message takes from its receiver."""
        last, middle, before = len(self.layout.stages) - 1, min(1, self.layout.microbatches - 1), 0.0
        for stage in range(last + 1):
            forward, gradient = (self.duration(stage, kind(0, middle)) for kind in (Forward, InputGradient))
            weight = self.duration(stage, WeightGradient(0, ALL_MICROBATCHES if self.layout.merges else middle))
            end = self.duration(stage, ReduceGradients(0)) + self.duration(stage, Update(0))
            after = self.message((Channel(stage, stage + 1, False, 0), 0, middle)).transit if stage < last else 0.0
            passes = forward + (1 - self.hidden) * before, gradient + (1 - self.hidden) * after
            once = (0.0, end + weight) if self.layout.merges else (weight, end)
            yield StageTimes(*passes, *once, message=self.hidden * after)
            before = after

    # -- collectives -------------------------------------------------------------------------------------------------

    def loads(self, sample_bytes: int, samples: int) -> list[Collective]:
        """Collectives that distribute the inputs, or the targets, of a minibatch from rank 0.

        `sample_bytes` are those of one input or target, `samples` those of a batch rank.
        """
        nbytes, groups = sample_bytes * self.workload.batch_size, self.groups
        if self.workload.distribution == "local":
            return []
        if self.workload.distribution == "scatter":
            return [groups.world.collective("scatter", nbytes * groups.model(0).ranks)]
        return [
            groups.batch(0).collective("scatter", nbytes),
            groups.model(0).collective("broadcast", sample_bytes * samples),
        ]

    def reduction(self, stage: int, chunk: int, placement: Placement) -> Collective:
        """Sum of a chunk's gradients and loss over a batch group with that placement, before the update.

        The loss travels with the gradients, or alone if the update of a shared replica sums them.
        """
        elements = 1 if max(placement) > 1 else self.chunks[stage][chunk].parameters + 1
        return self.groups.batch(stage).collective("allreduce", elements * self.workload.itemsize)

    def slice_reduction(self, stage: int, elements: int, placement: Placement) -> Collective:
        """Sum of a slice of shared gradients over its owners, one on each of several nodes."""
        return self.groups.owners(stage, placement).collective("allreduce", elements * self.workload.itemsize)

    def loss_broadcast(self) -> list[Collective]:
        """The loss, from the last stage of an exact pipeline to all ranks."""
        pipelined = self.layout.drains and len(self.layout.stages) > 1
        return [self.groups.world.collective("broadcast", LOSS_BYTES)] if pipelined else []

    # -- passes ------------------------------------------------------------------------------------------------------

    def _samples(self, stage: int, microbatch: int) -> int:
        batch_size = self.workload.batch_size
        if microbatch == ALL_MICROBATCHES:
            return self.layout.minibatch_samples(stage, batch_size)
        return self.layout.microbatch_samples(stage, microbatch, batch_size)

    def _weight_prediction_seconds(self, stage: int, instruction: Instruction) -> float:
        """Seconds of predicting the weights that a pass reads; 0 where it reads current or stashed ones."""
        if isinstance(instruction, Forward):
            read = self._policy.forward(stage, len(self.layout.stages), instruction.minibatch)
        elif isinstance(instruction, Backward | InputGradient):
            read = self._policy.backward(stage, len(self.layout.stages), instruction.minibatch)
        else:
            return 0.0
        if not read.ahead:
            return 0.0
        parameters = self.chunks[stage][instruction.chunk].parameters
        return self.compute.packing.seconds(parameters, cached=self.compute.caches(parameters))

    def _loss_seconds(self, stage: int, chunk: int, samples: int) -> float:
        elements = self.chunks[stage][chunk].splits[-1].layer.outputs * samples
        return self.compute.loss(self.workload.classification).seconds(elements)

    def _load(self, features: int, sample_bytes: int, samples: int) -> TimeBreakdown:
        """Gathering a microbatch's samples, or targets; or rank 0 gathers and distributes the minibatch."""
        is_local = self.workload.distribution == "local"
        gathered = features * (samples if is_local else self.workload.batch_size)
        return TimeBreakdown(
            communication=_seconds(self.loads(sample_bytes, samples)),
            overhead=self.compute.instruction_seconds + self.compute.load.seconds(gathered),
        )

    def _pack(self, features: int, samples: int, message: MessageOverhead | None) -> TimeBreakdown:
        """Copying a message to or from its buffer, the instruction that sends or receives it, and its overhead."""
        elements = features * samples
        return TimeBreakdown(
            communication=0.0 if message is None else message.seconds(elements * self.workload.itemsize),
            overhead=self.compute.instruction_seconds + self.compute.packing.seconds(elements),
        )

    def _forward(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        samples, costs = self._samples(stage, microbatch), self.chunks[stage][chunk]
        total = costs.forward(samples)
        inputs, outputs = costs.splits[0].layer.inputs, costs.splits[-1].layer.outputs
        (before, after), overheads = self.around[stage][chunk], self.overheads[stage][chunk]
        if before is None:
            total += self._load(inputs, inputs * self.workload.itemsize, samples)
        elif before != stage:
            total += self._pack(inputs, samples, overheads[0])
        if after is None:
            total += self._load(1 if self.workload.classification else outputs, self.workload.target_bytes, samples)
        elif after != stage:
            total += self._pack(outputs, samples, overheads[1])
        return total

    def _recompute(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        return self.chunks[stage][chunk].forward(self._samples(stage, microbatch))

    def _around_backward(self, stage: int, chunk: int, samples: int) -> TimeBreakdown:
        """The loss or the received gradient of the outputs, and the message with the gradient of the inputs."""
        costs, total = self.chunks[stage][chunk], TimeBreakdown()
        (before, after), overheads = self.around[stage][chunk], self.overheads[stage][chunk]
        if after is None:
            total += TimeBreakdown(self._loss_seconds(stage, chunk, samples))
        elif after != stage:
            total += self._pack(costs.splits[-1].layer.outputs, samples, overheads[1])
        if before not in (None, stage):
            total += self._pack(costs.splits[0].layer.inputs, samples, overheads[0])
        return total

    def _backward(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        samples, costs = self._samples(stage, microbatch), self.chunks[stage][chunk]
        backward = costs.backward(samples, accumulate=microbatch > 0)
        return backward + self._around_backward(stage, chunk, samples)

    def _input_gradient(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        samples, costs = self._samples(stage, microbatch), self.chunks[stage][chunk]
        total = costs.input_gradient(samples) + self._around_backward(stage, chunk, samples)
        return total + TimeBreakdown(overhead=costs.joining_seconds(samples)) if self.layout.merges else total

    def _weight_gradient(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        samples = self._samples(stage, microbatch)
        return self.chunks[stage][chunk].weight_gradient(samples, accumulate=microbatch > 0)

    # -- gradient reduction and update -------------------------------------------------------------------------------

    def _reduce(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        """All-reduce of all chunks' gradients; with overlap, during the last microbatch's backward pass."""
        total = TimeBreakdown()
        if self.layout.stages[stage][0] == 1:
            return total
        samples = self._samples(stage, self.layout.microbatches - 1)
        placements = replica_groups(self.layout, stage)
        for number, costs in enumerate(self.chunks[stage]):
            blocking = max(self.reduction(stage, number, placement).seconds for placement in placements)
            if min(map(max, placements)) > 1:  # all replicas are shared
                total += TimeBreakdown(communication=blocking)
                continue
            concurrent = costs.backward(samples, accumulate=False).computing
            total += overlapped(blocking, concurrent, self._overlap)
        return total

    def _update(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        updates = (self._group_update(stage, placement) for placement in replica_groups(self.layout, stage))
        around = TimeBreakdown(communication=_seconds(self.loss_broadcast()), overhead=self.compute.step_seconds)
        return max(updates, key=lambda update: update.total) + around

    def _group_update(self, stage: int, placement: Placement) -> TimeBreakdown:
        """The update in a batch group with that placement."""
        parameters = [costs.parameters for costs in self.chunks[stage]]
        if max(placement) == 1:
            return TimeBreakdown(self._update_seconds(sum(parameters), arrays=2 + self.workload.slots))
        return sum((self._shared_update(stage, elements, placement) for elements in parameters), TimeBreakdown())

    def _update_seconds(self, parameters: int, arrays: int) -> float:
        update = self.compute.update(self.workload.update_rule)
        return update.seconds(parameters, cached=self.compute.caches(parameters * arrays))

    def _shared_update(self, stage: int, parameters: int, placement: Placement) -> TimeBreakdown:
        """Reducing slices of a chunk's gradients inside a node and between nodes, updating them, and the barrier.

        On nodes with fewer ranks each has more slices, and adds fewer gradients: the largest of both counts.
        """
        slices = max(placement)
        largest = slice_bounds(parameters, slices, 0)[1]
        elements_by_ranks = {ranks: -(-slices // ranks) * largest for ranks in placement}
        added = max(elements * (ranks - 1) for ranks, elements in elements_by_ranks.items())
        updated, arrays = max(elements_by_ranks.values()), slices + 1 + self.workload.slots
        seconds = self.compute.packing.seconds(added, cached=self.compute.caches(updated * arrays))
        seconds += self._update_seconds(updated, arrays)
        communication = self.groups.sharers(stage).collective("barrier", 0).seconds
        if len(placement) > 1:
            communication += self.slice_reduction(stage, largest, placement).seconds * (updated // largest)
        return TimeBreakdown(seconds, communication)


_INSTRUCTION_COSTS: Mapping[type[Instruction], Callable[[StageCosts, int, int, int], TimeBreakdown]] = MappingProxyType(
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


def _seconds(collectives: Iterable[Collective]) -> float:
    return sum(item.seconds for item in collectives)


class UnscheduledCosts(NamedTuple):
    """The part of `StageCosts` that layouts with different methods have in common."""

    groups: Groups
    compute: Compute  # at the pace of the slowest of all ranks
    chunks: tuple[tuple[ChunkCosts, ...], ...]  # by stage and chunk
    # by stage and chunk, the stages of the virtual stages before and after it; None at an end of the network
    around: tuple[tuple[tuple[int | None, int | None], ...], ...]
    # of the messages between it and those; None where it is unknown
    overheads: tuple[tuple[tuple[MessageOverhead | None, ...], ...], ...]
    equal_stages: tuple[int, ...]  # for every stage the first one with the same costs


@lru_cache(1 << 10)
def _unscheduled_costs(machine: Machine, workload: Workload, layout: Layout) -> UnscheduledCosts:
    """Costs of a layout without its schedule, at the pace of the slowest of all ranks, which wait for each other."""
    groups, dtype = Groups(layout, machine), workload.dtype
    busy_ranks = groups.busy_ranks
    pace = machine.compute_for(dtype, busy_ranks).pace(layout.ranks)
    firsts: dict[Hashable, int] = {}
    chunks, around, overheads, equal, stages = [], [], [], [], len(layout.stages)
    places = (None, *layout.placement.stages(stages, layout.chunks), None)
    for stage in range(stages):
        model = groups.model(stage)
        shared = layout.model_split, model.ranks, model.crossings, dtype, busy_ranks, pace, layout.overlap
        parts = layout.layers_of(workload.model, stage)
        chunks.append(tuple(chunk_costs(machine, of_shapes(layers), *shared) for layers in parts))
        numbers = [layout.placement.virtual(stage, chunk, stages) for chunk in range(layout.chunks)]
        ends = tuple((places[number], places[number + 2]) for number in numbers)
        around.append(ends)
        overheads.append(tuple((_overhead(groups, it[0], stage), _overhead(groups, stage, it[1])) for it in ends))
        known = tuple(item is not None for pair in overheads[-1] for item in pair)
        kinds = tuple((other is None, other == stage) for pair in ends for other in pair)
        key = chunks[-1], kinds, groups.like(stage), known
        equal.append(firsts.setdefault(key, stage))
    compute = compute_at(machine, dtype, busy_ranks, pace)
    return UnscheduledCosts(groups, compute, tuple(chunks), tuple(around), tuple(overheads), tuple(equal))


def _overhead(groups: Groups, sender: int | None, receiver: int | None) -> MessageOverhead | None:
    return None if sender is None or receiver is None or sender == receiver else groups.overhead(sender, receiver)
