"""Runtime of a model chunk: its memory, weight versions and channels.

A rank has one chunk, or several in an interleaved schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from numpy.typing import NDArray

from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.concatenated_microbatches import ConcatenatedMicrobatches
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.parallel.workspace import MicrobatchBuffers, StageRole, Workspace
from hybridnn.pipeline.execution.point_to_point import Channel, Message, Receiver, Sender
from hybridnn.pipeline.execution.program import MessageDepths, StageProgram, message_depths
from hybridnn.pipeline.execution.routes import StagePosition, pieces_received, pieces_sent
from hybridnn.pipeline.execution.weight_store import WeightStore
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Instruction,
    ReceiveActivations,
    ReceiveGradients,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Schedule

EXTRA_BUFFERS = 1
"""Per channel: receives started ahead of the schedule, and sends in flight while the next message is packed."""


@dataclass(frozen=True)
class ChunkBytes:
    """Memory of a chunk, in bytes.

    Attributes
    ----------
    weight_versions : int
        Stashed and predicted weights, without the current version.
    activations : int
        Inputs and activations of the microbatches in flight.
    buffers : int
        Messages, gradients of activations, and concatenated microbatches.
    """

    weight_versions: int
    activations: int
    buffers: int


@dataclass(frozen=True)
class ChunkRuntime:
    """Consecutive layers with their memory and channels.

    Attributes
    ----------
    index : int
        Index of the chunk on its rank.
    workspace, training_workspace : Workspace
        For evaluation, and for training; usually the same object.
    concatenated : ConcatenatedMicrobatches or None
        Set if the weight gradients are one product over all microbatches.
    loss : ndarray, shape (1,)
        Loss of a microbatch, before it is added to that of earlier ones.
    input_receiver, gradient_receiver : Receiver or None
        None if the chunk loads its inputs, or computes the loss.
    output_sender, gradient_sender : Sender or None
        None if the chunk has the last layer, or the first one.
    """

    index: int
    chunk: ModelChunk
    workspace: Workspace
    training_workspace: Workspace
    weights: WeightStore
    concatenated: ConcatenatedMicrobatches | None
    loss: NDArray[Any]
    input_receiver: Receiver | None
    gradient_receiver: Receiver | None
    output_sender: Sender | None
    gradient_sender: Sender | None

    def expect_targets(self, *, classification: bool) -> None:
        """Allocate workspace for the targets of a task."""
        self.workspace.expect_targets(classification=classification)
        self.training_workspace.expect_targets(classification=classification)

    def begin(self, messages: Callable[[type[Instruction], int], Iterable[Message]], rates: Sequence[float]) -> None:
        """Prepare for a run of a schedule.

        Parameters
        ----------
        messages : callable
            Returns the messages of a kind of instruction and a chunk, in order.
        rates : sequence of float
            Learning rates of the updates.
        """
        self.weights.begin(rates)
        if self.input_receiver is not None:
            self.input_receiver.begin(messages(ReceiveActivations, self.index))
        if self.gradient_receiver is not None:
            self.gradient_receiver.begin(messages(ReceiveGradients, self.index))

    def finish(self) -> None:
        """Wait for all sends."""
        for sender in (self.output_sender, self.gradient_sender):
            if sender is not None:
                sender.finish()

    @property
    def bytes(self) -> ChunkBytes:
        """Memory in addition to weights, gradients and optimizer state."""
        channels = (self.input_receiver, self.gradient_receiver, self.output_sender, self.gradient_sender)
        workspaces = {id(workspace): workspace for workspace in (self.workspace, self.training_workspace)}.values()
        activations = sum(workspace.activation_bytes for workspace in workspaces)
        transient = sum(workspace.nbytes for workspace in workspaces) - activations
        concatenated = 0 if self.concatenated is None else self.concatenated.nbytes
        buffers = transient + concatenated + sum(channel.nbytes for channel in channels if channel is not None)
        return ChunkBytes(self.weights.nbytes, activations, buffers)


def make_runtime(
    schedules: tuple[Schedule, Schedule],
    grid: ProcessGrid,
    index: int,
    chunk: ModelChunk,
    optimizer: Optimizer,
    state: OptimizerState,
    *,
    batch_size: int,
    synchronous: bool,
) -> ChunkRuntime:
    """Allocate the memory and the channels of a chunk.

    Parameters
    ----------
    schedules : tuple of Schedule
        Schedules of training and of evaluation with the largest memory.
    batch_size : int
        Largest number of samples of a minibatch, over all ranks.
    synchronous : bool
        As for `Sender`.
    """
    schedule, pipeline_rank = schedules[0], grid.pipeline_rank
    role = StageRole(schedule.is_first(pipeline_rank, index), schedule.is_last(pipeline_rank, index))
    program = StageProgram(schedule, pipeline_rank)
    plan = program.memory
    # Minibatches are split into microbatches, and these over the batch ranks, both by the block partition.
    capacity = ceil(ceil(batch_size / schedule.microbatches) / grid.batch)
    dtype = chunk.weights.dtype
    predicts = any(ahead > 0 for _, ahead in program.reads.values())
    order = schedule.orders[pipeline_rank]
    joins = any(isinstance(item, WeightGradient) and item.microbatch == ALL_MICROBATCHES for item in order)
    concatenated_capacity = capacity * schedule.microbatches
    own_position = StagePosition(pipeline_rank, grid.batch_rank, grid.model_rank)
    depths = MessageDepths(*map(max, *(message_depths(item, pipeline_rank, index) for item in schedules)))
    first, last = chunk.shards[0].layer, chunk.shards[-1].layer

    def receiver(tag: int, neighbor: int, features: int, depth: int) -> Receiver:
        routes = partial(pieces_received, grid.stages, own_position, neighbor)
        return Receiver(grid, chunk.kernels, Channel(tag, routes, features, capacity, depth + EXTRA_BUFFERS), dtype)

    def sender(tag: int, neighbor: int, features: int, depth: int) -> Sender:
        routes = partial(pieces_sent, grid.stages, own_position, neighbor)
        channel = Channel(tag, routes, features, capacity, depth + EXTRA_BUFFERS)
        return Sender(grid, chunk.kernels, channel, dtype, synchronous=synchronous)

    input_receiver = gradient_receiver = output_sender = gradient_sender = None
    if not role.loads_input:
        before, chunk_before = schedule.before(pipeline_rank, index)
        input_receiver = receiver(_tag(index, 0), before, first.inputs, depths.input_receiver)
        gradient_sender = sender(_tag(chunk_before, 1), before, first.inputs, depths.gradient_sender)
    if not role.loads_target:
        after, chunk_after = schedule.after(pipeline_rank, index)
        gradient_receiver = receiver(_tag(index, 1), after, last.outputs, depths.gradient_receiver)
        output_sender = sender(_tag(chunk_after, 0), after, last.outputs, depths.output_sender)
    buffers = MicrobatchBuffers(plan.inputs[index], plan.activations[index], program.splits_backward)
    workspace = chunk.workspace(capacity, role, buffers)
    return ChunkRuntime(
        index,
        chunk,
        workspace,
        chunk.training_workspace(capacity, role) or workspace,
        WeightStore(chunk, optimizer, state, plan.peak_weight_versions, predicts=predicts),
        ConcatenatedMicrobatches(chunk.shards, concatenated_capacity, dtype, role.loads_input, chunk.kernels)
        if joins
        else None,
        chunk.kernels.zeros((1,), dtype),
        input_receiver,
        gradient_receiver,
        output_sender,
        gradient_sender,
    )


def _tag(chunk: int, gradients: int) -> int:
    """Tag of the channel to `chunk` that carries activations (0) or gradients (1)."""
    return 2 * chunk + gradients
