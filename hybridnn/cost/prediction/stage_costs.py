"""Costs of the instructions of a layout's schedule on a machine, as `hybridnn.cost.prediction.times` needs them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from hybridnn.cost.machine import Compute, Machine, MessageOverhead
from hybridnn.cost.prediction.groups import Collective, Groups, Placement, has_own_replicas, replica_groups
from hybridnn.cost.prediction.layer_costs import ChunkCosts, chunk_costs, compute_at, of_shapes, overlapped
from hybridnn.cost.prediction.times import TimeBreakdown
from hybridnn.cost.prediction.workload import Workload
from hybridnn.parallel.shared_replica import slice_bounds
from hybridnn.pipeline.layout import Layout
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
from hybridnn.pipeline.schedules.schedule import Channel, Message

LOSS_BYTES = 8  # the loss, which the last stage of an exact pipeline broadcasts

NeighbourOverheads = tuple[MessageOverhead | None, MessageOverhead | None]
"""Of the messages between a stage and the ones before and after it; None where it is unknown."""


class MessageTimes(NamedTuple):
    """Seconds of a message between two stages."""

    transit: float  # from the call that sends it to the end of the one that receives it, without their overheads
    link: float  # in which it occupies the link between their nodes


class StageCosts:
    """Costs of the instructions of every stage, on the rank of the stage that has most to do.

    `hidden` is the fraction of a message between stages that overlaps with computing on its receiver; the other
    attributes are those of `UnscheduledCosts`.
    """

    def __init__(self, workload: Workload, layout: Layout, machine: Machine) -> None:
        self.workload, self.layout = workload, layout
        self._policy = METHODS[layout.method].policy
        self._overlap = machine.overlap if layout.overlap else None
        self.groups, self.compute, self.chunks, self.overheads, self.equal_stages = _unscheduled_costs(
            machine, workload, replace(layout, method="sequential", microbatches=1, merges=False)
        )
        # Where overheads are known, they are part of the computations, and nothing else occupies a receiver.
        self.hidden = 1.0 if any(map(any, self.overheads)) else machine.overlap.hidden_fraction
        self._equal_microbatches = (*layout.equal_microbatches(workload.batch_size), ALL_MICROBATCHES)
        self._predicts = METHODS[layout.method].predicts
        self._breakdowns: dict[tuple[Any, ...], TimeBreakdown] = {}
        self._messages: dict[tuple[Channel, int], MessageTimes] = {}

    # -- times of a schedule -----------------------------------------------------------------------------------------

    def duration(self, stage: int, instruction: Instruction) -> float:
        """Seconds of a computation, with the collectives, copies and loads that belong to it."""
        return self.breakdown(stage, instruction).total

    def message(self, message: Message) -> float:
        """Seconds of a message between two stages, without what it takes from them: that is part of `duration`."""
        return self.message_times(message).transit

    def link(self, message: Message) -> float:
        """Seconds in which a message occupies the link between the nodes of two stages."""
        return self.message_times(message).link

    def message_times(self, message: Message) -> MessageTimes:
        """Times of a message between two stages."""
        channel, _, microbatch = message
        key = channel, self._equal_microbatches[microbatch]
        if key not in self._messages:
            nbytes, between, machine = (
                self.message_bytes(message),
                (channel.sender, channel.receiver),
                self.groups.machine,
            )
            flows, overhead = self.groups.flows(*between), self.groups.overhead(*between)
            whole = machine.message_seconds(nbytes, spans_nodes=flows > 0, flows=flows)
            in_ranks = 0.0 if overhead is None else 2 * overhead.seconds(nbytes)
            self._messages[key] = MessageTimes(max(whole - in_ranks, 0.0), machine.link_seconds(nbytes, flows))
        return self._messages[key]

    def barrier_seconds(self) -> float:
        """Seconds of a barrier of all ranks."""
        return self.groups.world.collective("barrier", 0).seconds

    def breakdown(self, stage: int, instruction: Instruction) -> TimeBreakdown:
        """Breakdown of the duration of a computation."""
        kind, chunk, equal = type(instruction), instruction.chunk, self.equal_stages[stage]
        microbatch = self._equal_microbatches[instruction.microbatch]
        prediction = self._weight_prediction_seconds(stage, instruction) if self._predicts else 0.0
        key = (kind, equal, chunk, microbatch, prediction)
        if key not in self._breakdowns:
            cost = _INSTRUCTION_COSTS[kind](self, equal, chunk, microbatch)
            self._breakdowns[key] = cost + TimeBreakdown(overhead=prediction) if prediction else cost
        return self._breakdowns[key]

    @staticmethod
    def is_computation(instruction: Instruction) -> bool:
        """Whether an instruction has a duration: loads and messages are part of those that have."""
        return type(instruction) in _INSTRUCTION_COSTS

    def loss_seconds(self, stage: int, instruction: Instruction) -> float:
        """Seconds of the loss and its gradient in a computation."""
        chunk = instruction.chunk
        if not isinstance(instruction, Backward | InputGradient) or not self._is_last(stage, chunk):
            return 0.0
        return self._loss_seconds(stage, chunk, self._samples(stage, instruction.microbatch))

    def message_bytes(self, message: Message) -> int:
        """Bytes of a message, on the rank that sends or receives most."""
        channel, _, microbatch = message
        splits = self.chunks[channel.receiver][channel.chunk].splits
        features = splits[-1].layer.outputs if channel.gradients else splits[0].layer.inputs
        samples = max(self._samples(stage, microbatch) for stage in (channel.sender, channel.receiver))
        return features * samples * self.workload.itemsize

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
        costs = self.chunks[stage][chunk]
        elements = 1 if max(placement) > 1 else costs.parameters + 1
        return self.groups.batch(stage).collective("allreduce", elements * costs.itemsize)

    def slice_reduction(self, stage: int, elements: int, placement: Placement) -> Collective:
        """Sum of a slice of shared gradients over its owners, one on each of several nodes."""
        return self.groups.owners(stage, placement).collective("allreduce", elements * self.workload.itemsize)

    def update_barrier(self, stage: int) -> Collective:
        """The barrier after the update of a shared replica."""
        return self.groups.sharers(stage).collective("barrier", 0)

    def loss_broadcast(self) -> list[Collective]:
        """The loss, from the last stage of an exact pipeline to all ranks."""
        pipelined = self.layout.exact and len(self.layout.stages) > 1
        return [self.groups.world.collective("broadcast", LOSS_BYTES)] if pipelined else []

    # -- passes ------------------------------------------------------------------------------------------------------

    def _samples(self, stage: int, microbatch: int) -> int:
        batch_size = self.workload.batch_size
        if microbatch == ALL_MICROBATCHES:
            return self.layout.minibatch_samples(stage, batch_size)
        return self.layout.microbatch_samples(stage, microbatch, batch_size)

    def _is_first(self, stage: int, chunk: int) -> bool:
        return stage == 0 and chunk == 0

    def _is_last(self, stage: int, chunk: int) -> bool:
        return stage == len(self.layout.stages) - 1 and chunk == self.layout.chunks - 1

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
        return self.compute.packing.seconds(parameters, cached=self._cached(parameters))

    def _cached(self, elements: int) -> bool:
        return elements * self.workload.itemsize < self.compute.cache_bytes

    def _loss_seconds(self, stage: int, chunk: int, samples: int) -> float:
        elements = self.chunks[stage][chunk].splits[-1].layer.outputs * samples
        return self.compute.loss(self.workload.classification).seconds(elements)

    def _instruction(self) -> TimeBreakdown:
        """Python around one instruction."""
        return TimeBreakdown(overhead=self.compute.instruction_seconds)

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
        total = costs.forward(samples) + self._instruction()
        inputs, outputs = costs.splits[0].layer.inputs, costs.splits[-1].layer.outputs
        before, after = self.overheads[stage]
        if self._is_first(stage, chunk):
            total += self._load(inputs, inputs * self.workload.itemsize, samples)
        else:
            total += self._pack(inputs, samples, before)
        if self._is_last(stage, chunk):
            total += self._load(1 if self.workload.classification else outputs, self.workload.target_bytes, samples)
        else:
            total += self._pack(outputs, samples, after)
        return total

    def _recompute(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        return self.chunks[stage][chunk].forward(self._samples(stage, microbatch)) + self._instruction()

    def _around_backward(self, stage: int, chunk: int, samples: int) -> TimeBreakdown:
        """The loss or the received gradient of the outputs, and the message with the gradient of the inputs."""
        costs, (before, after) = self.chunks[stage][chunk], self.overheads[stage]
        total = self._instruction()
        if self._is_last(stage, chunk):
            total += TimeBreakdown(self._loss_seconds(stage, chunk, samples))
        else:
            total += self._pack(costs.splits[-1].layer.outputs, samples, after)
        if not self._is_first(stage, chunk):
            total += self._pack(costs.splits[0].layer.inputs, samples, before)
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
        return self.chunks[stage][chunk].weight_gradient(samples, accumulate=microbatch > 0) + self._instruction()

    # -- gradient reduction and update -------------------------------------------------------------------------------

    def _reduce(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        """All-reduce of all chunks' gradients; with overlap, during the last microbatch's backward pass."""
        total = self._instruction()
        if self.layout.stages[stage][0] == 1:
            return total
        samples = self._samples(stage, self.layout.microbatches - 1)
        for number, costs in enumerate(self.chunks[stage]):
            placements = replica_groups(self.layout, stage)
            blocking = max(self.reduction(stage, number, placement).seconds for placement in placements)
            if not has_own_replicas(self.layout, stage):
                total += TimeBreakdown(communication=blocking)
                continue
            concurrent = costs.backward(samples, accumulate=False).computing
            total += overlapped(blocking, concurrent, self._overlap)
        return total

    def _update(self, stage: int, chunk: int, microbatch: int) -> TimeBreakdown:
        updates = (self._group_update(stage, placement) for placement in replica_groups(self.layout, stage))
        total = max(updates, key=lambda update: update.total)
        total += self._instruction() + TimeBreakdown(overhead=self.compute.step_seconds)
        return total + TimeBreakdown(communication=_seconds(self.loss_broadcast()))

    def _group_update(self, stage: int, placement: Placement) -> TimeBreakdown:
        """The update in a batch group with that placement."""
        parameters = [costs.parameters for costs in self.chunks[stage]]
        if max(placement) == 1:
            return TimeBreakdown(self._update_seconds(sum(parameters), arrays=2 + self.workload.slots))
        return sum((self._shared_update(stage, elements, placement) for elements in parameters), TimeBreakdown())

    def _update_seconds(self, parameters: int, arrays: int) -> float:
        update = self.compute.update(self.workload.update_rule)
        return update.seconds(parameters, cached=self._cached(parameters * arrays))

    def _shared_update(self, stage: int, parameters: int, placement: Placement) -> TimeBreakdown:
        """Reducing slices of a chunk's gradients inside a node and between nodes, updating them, and the barrier.

        On nodes with fewer ranks each has more slices, and adds fewer gradients: the largest of both counts.
        """
        slices = max(placement)
        largest = slice_bounds(parameters, slices, 0)[1]
        elements_by_ranks = {ranks: -(-slices // ranks) * largest for ranks in placement}
        added = max(elements * (ranks - 1) for ranks, elements in elements_by_ranks.items())
        updated, arrays = max(elements_by_ranks.values()), slices + 1 + self.workload.slots
        seconds = self.compute.packing.seconds(added, cached=self._cached(updated * arrays))
        seconds += self._update_seconds(updated, arrays)
        communication = self.update_barrier(stage).seconds
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
    overheads: tuple[NeighbourOverheads, ...]  # by stage
    equal_stages: tuple[int, ...]  # for every stage the first one with the same costs


@lru_cache(1 << 10)
def _unscheduled_costs(machine: Machine, workload: Workload, layout: Layout) -> UnscheduledCosts:
    """Costs of a layout without its schedule, at the pace of the slowest of all ranks, which wait for each other."""
    groups, dtype = Groups(layout, machine), workload.dtype
    busy_ranks = groups.busy_ranks
    pace = machine.compute_for(dtype, busy_ranks).pace(layout.ranks)
    firsts: dict[Hashable, int] = {}
    chunks, overheads, equal, last = [], [], [], len(layout.stages) - 1
    for stage in range(len(layout.stages)):
        model = groups.model(stage)
        shared = layout.model_split, model.ranks, model.crossings, dtype, busy_ranks, pace, layout.overlap
        parts = layout.layers_of(workload.model, stage)
        chunks.append(tuple(chunk_costs(machine, of_shapes(layers), *shared) for layers in parts))
        overheads.append(_neighbour_overheads(groups, stage, last + 1))
        known = tuple(item is not None for item in overheads[-1])
        key = chunks[-1], stage == 0, stage == last, groups.like(stage), known
        equal.append(firsts.setdefault(key, stage))
    compute = compute_at(machine, dtype, busy_ranks, pace)
    return UnscheduledCosts(groups, compute, tuple(chunks), tuple(overheads), tuple(equal))


def _neighbour_overheads(groups: Groups, stage: int, stages: int) -> NeighbourOverheads:
    """With several chunks, the last stage sends to the first."""
    if stages == 1:
        return None, None
    before, after = (stage - 1) % stages, (stage + 1) % stages
    return groups.overhead(before, stage), groups.overhead(stage, after)
