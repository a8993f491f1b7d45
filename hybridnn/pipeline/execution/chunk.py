"""A chunk: consecutive layers of a rank with everything the executor needs to run them in a pipeline.

A rank has one, or several in an interleaved schedule.
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
"""Receives begun ahead of the schedule, and sends that may be under way while the next is packed, per channel."""


@dataclass(frozen=True)
class ChunkBytes:
    """Memory of a chunk, in bytes.

    Attributes
    ----------
    weight_versions : int
        Copies of older weights, and predicted ones; without the current.
    activations : int
        Inputs and activations that wait for their backward pass.
    buffers : int
        Messages, gradients on their way through the layers, and joined microbatches.
    """

    weight_versions: int
    activations: int
    buffers: int


@dataclass(frozen=True)
class Chunk:
    """Layers, memory and channels.

    Attributes
    ----------
    index : int
        Number of the chunk on its rank.
    stage : Stage
    workspace, training_workspace : Workspace
        Of passes that only go forward, and of those that train; mostly the same.
    weights : WeightStore
    joined : JoinedMicrobatches or None
        Where one product takes the weight gradients of all microbatches.
    loss : ndarray, shape (1,)
        Loss of a microbatch that is added to earlier ones.
    input_messages, gradient_messages : Inbox or None
        None where the data or the loss are the source.
    outputs_to_send, gradients_to_send : Outbox or None
        None where nobody wants them.
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
        """Make room for the targets of a task."""
        self.workspace.expect_targets(classification=classification)
        self.training_workspace.expect_targets(classification=classification)

    def begin(self, messages: Callable[[type[Instruction], int], Iterable[Message]], rates: Sequence[float]) -> None:
        """Prepare for a run of a schedule.

        Parameters
        ----------
        messages : callable
            From a kind of instruction and a chunk to its messages, in order.
        rates : sequence of float
            Learning rates of the updates.
        """
        self.weights.begin(rates)
        if self.input_messages is not None:
            self.input_messages.begin(messages(ReceiveActivations, self.index))
        if self.gradient_messages is not None:
            self.gradient_messages.begin(messages(ReceiveGradients, self.index))

    def finish(self) -> None:
        """Return when everything has been sent."""
        for outbox in (self.outputs_to_send, self.gradients_to_send):
            if outbox is not None:
                outbox.finish()

    @property
    def bytes(self) -> ChunkBytes:
        """Memory beside weights, gradients and optimizer state."""
        mail = (self.input_messages, self.gradient_messages, self.outputs_to_send, self.gradients_to_send)
        workspaces = {id(space): space for space in (self.workspace, self.training_workspace)}.values()
        activations = sum(space.activation_bytes for space in workspaces)
        transient = sum(space.nbytes for space in workspaces) - activations
        joined = 0 if self.joined is None else self.joined.nbytes
        buffers = transient + joined + sum(box.nbytes for box in mail if box is not None)
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
    """Allocate what a chunk needs to run `schedules` and all that need no more than they do.

    Parameters
    ----------
    schedules : tuple of Schedule
        Of training and of evaluation.
    batch_size : int
        Most samples of a minibatch, over all ranks.
    synchronous : bool
        As for `Outbox`.
    """
    schedule, place = schedules[0], grid.pipeline_rank
    role = StageRole(schedule.is_first(place, index), schedule.is_last(place, index))
    program = StageProgram(schedule, place)
    plan = program.memory
    # A microbatch of the block partition, dealt out by the block partition once more.
    capacity = ceil(ceil(batch_size / schedule.microbatches) / grid.batch)
    dtype = stage.weights.dtype
    predicts = any(ahead > 0 for _, ahead in program.reads.values())
    joins = any(isinstance(i, WeightGradient) and i.microbatch == ALL_MICROBATCHES for i in schedule.orders[place])
    everything = capacity * schedule.microbatches
    here = StagePosition(place, grid.batch_rank, grid.model_rank)
    depths = MessageDepths(*map(max, *(message_depths(item, place, index) for item in schedules)))
    first, last = stage.shards[0].layer, stage.shards[-1].layer

    def inbox(tag: int, neighbor: int, features: int, most: int) -> Inbox:
        routes = partial(pieces_received, grid.stages, here, neighbor)
        return Inbox(grid, stage.kernels, Channel(tag, routes, features, capacity, most + AHEAD), dtype)

    def outbox(tag: int, neighbor: int, features: int, most: int) -> Outbox:
        channel = Channel(tag, partial(pieces_sent, grid.stages, here, neighbor), features, capacity, most + AHEAD)
        return Outbox(grid, stage.kernels, channel, dtype, synchronous=synchronous)

    input_messages = gradient_messages = outputs_to_send = gradients_to_send = None
    if not role.loads_input:
        before, chunk_before = schedule.before(place, index)
        input_messages = inbox(_tag(index, 0), before, first.inputs, depths.inputs)
        gradients_to_send = outbox(_tag(chunk_before, 1), before, first.inputs, depths.gradients_to_send)
    if not role.loads_target:
        after, chunk_after = schedule.after(place, index)
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
        JoinedMicrobatches(stage.shards, everything, dtype, role.loads_input, stage.kernels) if joins else None,
        stage.kernels.zeros((1,), dtype),
        input_messages,
        gradient_messages,
        outputs_to_send,
        gradients_to_send,
    )


def _tag(chunk: int, gradients: int) -> int:
    """Tag of the channel to `chunk` that carries activations (0) or gradients (1)."""
    return 2 * chunk + gradients
