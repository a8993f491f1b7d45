"""Chunk: consecutive layers of a rank with the memory, weight versions and channels for their execution.

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
from hybridnn.parallel.gradient_accumulation import JoinedMicrobatches
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.stage import Stage
from hybridnn.parallel.workspace import MicrobatchBuffers, StageRole, Workspace
from hybridnn.pipeline.execution.mailbox import Channel, Inbox, Message, Outbox
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

AHEAD = 1
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
        Messages, gradients of activations, and joined microbatches.
    """

    weight_versions: int
    activations: int
    buffers: int


@dataclass(frozen=True)
class Chunk:
    """Consecutive layers with their memory and channels.

    Attributes
    ----------
    index : int
        Index of the chunk on its rank.
    workspace, training_workspace : Workspace
        For evaluation, and for training; usually the same object.
    joined : JoinedMicrobatches or None
        Set if the weight gradients are one product over all microbatches.
    loss : ndarray, shape (1,)
        Loss of a microbatch, before it is added to that of earlier ones.
    input_messages, gradient_messages : Inbox or None
        None if the chunk loads its inputs, or computes the loss.
    outputs_to_send, gradients_to_send : Outbox or None
        None if the chunk has the last layer, or the first one.
    """

    index: int
    stage: Stage
    workspace: Workspace
    training_workspace: Workspace
    weights: WeightStore
    joined: JoinedMicrobatches | None
    loss: NDArray[Any]
    input_messages: Inbox | None
    gradient_messages: Inbox | None
    outputs_to_send: Outbox | None
    gradients_to_send: Outbox | None

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
        if self.input_messages is not None:
            self.input_messages.begin(messages(ReceiveActivations, self.index))
        if self.gradient_messages is not None:
            self.gradient_messages.begin(messages(ReceiveGradients, self.index))

    def finish(self) -> None:
        """Wait for all sends."""
        for outbox in (self.outputs_to_send, self.gradients_to_send):
            if outbox is not None:
                outbox.finish()

    @property
    def bytes(self) -> ChunkBytes:
        """Memory in addition to weights, gradients and optimizer state."""
        mailboxes = (self.input_messages, self.gradient_messages, self.outputs_to_send, self.gradients_to_send)
        workspaces = {id(workspace): workspace for workspace in (self.workspace, self.training_workspace)}.values()
        activations = sum(workspace.activation_bytes for workspace in workspaces)
        transient = sum(workspace.nbytes for workspace in workspaces) - activations
        joined = 0 if self.joined is None else self.joined.nbytes
        buffers = transient + joined + sum(mailbox.nbytes for mailbox in mailboxes if mailbox is not None)
        return ChunkBytes(self.weights.nbytes, activations, buffers)


def make_chunk(
    schedules: tuple[Schedule, Schedule],
    grid: ProcessGrid,
    index: int,
    stage: Stage,
    optimizer: Optimizer,
    state: OptimizerState,
    *,
    batch_size: int,
    synchronous: bool,
) -> Chunk:
    """Make a chunk and allocate its memory.

    Parameters
    ----------
    schedules : tuple of Schedule
        Schedules of training and of evaluation with the largest memory.
    batch_size : int
        Largest number of samples of a minibatch, over all ranks.
    synchronous : bool
        As for `Outbox`.
    """
    schedule, pipeline_rank = schedules[0], grid.pipeline_rank
    role = StageRole(schedule.is_first(pipeline_rank, index), schedule.is_last(pipeline_rank, index))
    program = StageProgram(schedule, pipeline_rank)
    plan = program.memory
    # Minibatches are split into microbatches, and these over the batch ranks, both by the block partition.
    capacity = ceil(ceil(batch_size / schedule.microbatches) / grid.batch)
    dtype = stage.weights.dtype
    predicts = any(ahead > 0 for _, ahead in program.reads.values())
    order = schedule.orders[pipeline_rank]
    joins = any(isinstance(item, WeightGradient) and item.microbatch == ALL_MICROBATCHES for item in order)
    joined_capacity = capacity * schedule.microbatches
    own_position = StagePosition(pipeline_rank, grid.batch_rank, grid.model_rank)
    depths = MessageDepths(*map(max, *(message_depths(item, pipeline_rank, index) for item in schedules)))
    first, last = stage.shards[0].layer, stage.shards[-1].layer

    def inbox(tag: int, neighbor: int, features: int, depth: int) -> Inbox:
        routes = partial(pieces_received, grid.stages, own_position, neighbor)
        return Inbox(grid, stage.kernels, Channel(tag, routes, features, capacity, depth + AHEAD), dtype)

    def outbox(tag: int, neighbor: int, features: int, depth: int) -> Outbox:
        routes = partial(pieces_sent, grid.stages, own_position, neighbor)
        channel = Channel(tag, routes, features, capacity, depth + AHEAD)
        return Outbox(grid, stage.kernels, channel, dtype, synchronous=synchronous)

    input_messages = gradient_messages = outputs_to_send = gradients_to_send = None
    if not role.loads_input:
        before, chunk_before = schedule.before(pipeline_rank, index)
        input_messages = inbox(_tag(index, 0), before, first.inputs, depths.inputs)
        gradients_to_send = outbox(_tag(chunk_before, 1), before, first.inputs, depths.gradients_to_send)
    if not role.loads_target:
        after, chunk_after = schedule.after(pipeline_rank, index)
        gradient_messages = inbox(_tag(index, 1), after, last.outputs, depths.gradients)
        outputs_to_send = outbox(_tag(chunk_after, 0), after, last.outputs, depths.outputs_to_send)
    buffers = MicrobatchBuffers(plan.inputs[index], plan.activations[index], program.splits_backward)
    workspace = stage.workspace(capacity, role, buffers)
    return Chunk(
        index,
        stage,
        workspace,
        stage.training_workspace(capacity, role) or workspace,
        WeightStore(stage, optimizer, state, plan.peak_weight_versions, predicts=predicts),
        JoinedMicrobatches(stage.shards, joined_capacity, dtype, role.loads_input, stage.kernels) if joins else None,
        stage.kernels.zeros((1,), dtype),
        input_messages,
        gradient_messages,
        outputs_to_send,
        gradients_to_send,
    )


def _tag(chunk: int, gradients: int) -> int:
    """Tag of the channel to `chunk` that carries activations (0) or gradients (1)."""
    return 2 * chunk + gradients
