"""Runtime of a model chunk: its memory, weight versions and channels; and the memory of a rank by purpose.

A rank has one chunk, or several in an interleaved schedule.

If a later pass still reads the current version of the weights, the update writes the next version to another buffer, so
that a stash costs no copy; the buffer is free again after its last reader. Including the current weights, a stage holds
as many versions as its weight policy requires: K-k at stage k for stashed weights. Batch ranks with a shared replica
share its versions and use the buffers in the same order. An update starts when all of them have reached it, so that no
rank reads the buffer that it writes. Predicted weights are private to every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from math import ceil
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.nn.kernels import HostArray
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.parallel.workspace import ConcatenatedMicrobatches, Workspace
from hybridnn.pipeline.schedules.instructions import Instruction, ReceiveActivations, ReceiveGradients
from hybridnn.pipeline.schedules.program import ChunkPlan

if TYPE_CHECKING:
    from hybridnn.pipeline.execution.point_to_point import Channels, ExpectedMessage


class ChunkRuntime:
    """Consecutive layers with their memory and channels.

    Parameters
    ----------
    samples : int
        Largest number of samples of a microbatch, over all ranks.
    weights : WeightStore, optional
        Of the smaller runtime that this one replaces.
    before : ChunkRuntime, optional
        That of the chunk before on this rank, whose output may be the input of this one.

    Attributes
    ----------
    loss : ndarray, shape (1,)
        Loss of a microbatch, before it is added to that of earlier ones.
    concatenated : ConcatenatedMicrobatches or None
        Set if the weight gradients are one product over all microbatches.
    input_receiver, gradient_receiver, output_sender, gradient_sender : Receiver, Sender or None
        None at an end of the network, and between two chunks of the rank: see `Channels`.
    """

    def __init__(
        self,
        plan: ChunkPlan,
        grid: ProcessGrid,
        chunk: ModelChunk,
        optimizer: Optimizer,
        state: OptimizerState,
        *,
        samples: int,
        weights: WeightStore | None = None,
        before: ChunkRuntime | None = None,
    ) -> None:
        self.index, self.chunk = plan.index, chunk
        capacity, kernels, dtype = ceil(samples / grid.batch), chunk.kernels, chunk.weights.dtype
        # Between stages and within a model group rows travel, and the kernels of a device read along them.
        contiguous = grid.model > 1 or not all(plan.role) or not kernels.on_host
        source = before.workspace if before and plan.before is None and not plan.role.loads_input else None
        options: dict[str, Any] = {"features_contiguous": contiguous, "kernels": kernels, "before": source}
        self.workspace: Workspace = Workspace(chunk.shards, capacity, dtype, plan.role, plan.buffers, **options)
        self.weights = weights or WeightStore(chunk, optimizer, state, plan.weight_versions, predicts=plan.predicts)
        self.loss = kernels.zeros((1,), dtype)
        channels: Channels = (None, None, None, None)
        if not all(plan.role):
            from hybridnn.pipeline.execution.point_to_point import make_channels  # a single stage has none

            channels = make_channels(plan, grid, chunk, capacity)
        self.input_receiver, self.gradient_receiver, self.output_sender, self.gradient_sender = channels
        self.concatenated: ConcatenatedMicrobatches | None = None
        if plan.concatenates:
            columns = capacity * plan.microbatches
            loads_input = plan.role.loads_input
            self.concatenated = ConcatenatedMicrobatches(chunk.shards, columns, dtype, loads_input, kernels)

    def begin(
        self, messages: Callable[[type[Instruction], int], Iterable[ExpectedMessage]], rates: Sequence[float]
    ) -> None:
        """Prepare for a run of a schedule with these learning rates of the updates, and start the first receives.

        `messages` returns the messages of a kind of instruction and a chunk, in order.
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
    def buffer_bytes(self) -> int:
        """Bytes of messages, gradients of activations, and concatenated microbatches."""
        channels = (self.input_receiver, self.gradient_receiver, self.output_sender, self.gradient_sender)
        transient = self.workspace.nbytes - self.workspace.activation_bytes
        return transient + sum(item.nbytes for item in (*channels, self.concatenated) if item is not None)


# -- weight versions ---------------------------------------------------------------------------------------------------


Views = list[LayerParameters]


class WeightStore:
    """Weight versions that the passes of a chunk read: at most `versions` at a time, including the current one."""

    def __init__(
        self, chunk: ModelChunk, optimizer: Optimizer, state: OptimizerState, versions: int, *, predicts: bool
    ) -> None:
        self._chunk, self._optimizer, self._state = chunk, optimizer, state
        self._free = [self._with_views(chunk.replica.new_array()) for _ in range(versions - 1)]
        current = chunk.weights
        self._predicted = self._with_views(chunk.kernels.empty(current.shape, current.dtype)) if predicts else None
        self._older: dict[int, tuple[HostArray, Views]] = {}  # by age, in updates
        self._rates: Sequence[float] = ()
        self._updates = 0
        self.nbytes = (versions - 1) * chunk.replica.bytes_per_rank(current.nbytes) + predicts * current.nbytes

    def begin(self, rates: Sequence[float]) -> None:
        """Start a run of a schedule, with the learning rates of its updates: drop all stashed versions."""
        self._free += self._older.values()
        self._older = {}
        self._rates, self._updates = rates, 0

    def read(self, age: int, ahead: int) -> Views:
        """Parameters for a pass: the version of `age` updates ago, or the prediction for `ahead` updates later."""
        if self._predicted is not None and ahead:
            out, views = self._predicted
            # The next update's rate for later weights, those of the updates between for earlier ones.
            now = self._updates
            rate = self._rates[now] if ahead > 0 else fmean(self._rates[now + ahead : now])
            self._optimizer.predict(self._chunk.weights, self._state, rate, ahead, out)
            return views
        return self._chunk.parameters if age == 0 else self._older[age][1]

    def update(self, rate: float, kept: Collection[int] = (), delay: int = 0) -> None:
        """Update the current weights.

        `kept` are the ages, after the update, of the older versions that are read later; 1 is the version before the
        update. `delay` is the number of updates since the version that the forward pass of this gradient read.
        """
        chunk, self._state.delay = self._chunk, delay
        self._free += [version for age, version in self._older.items() if age + 1 not in kept]
        self._older = {age + 1: version for age, version in self._older.items() if age + 1 in kept}
        if 1 in kept:
            self._older[1] = chunk.weights, chunk.parameters
            flat, views = self._free.pop()
            chunk.replica.update(self._optimizer, chunk.weights, self._state, rate, out=flat)
            chunk.weights, chunk.parameters = flat, views
        else:
            chunk.replica.update(self._optimizer, chunk.weights, self._state, rate)
        self._updates += 1

    def _with_views(self, flat: HostArray) -> tuple[HostArray, Views]:
        return flat, self._chunk.layout.views(flat)


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes of a rank's arrays, without the samples of the data set; of arrays that ranks share, this rank's share."""

    # current weights with their gradients, and the optimizer state
    weight_bytes: int
    optimizer_bytes: int
    weight_version_bytes: int  # stashed and predicted weights
    activation_bytes: int  # inputs and activations of the microbatches in flight
    buffer_bytes: int  # messages, gradients of activations, and microbatches concatenated for one product

    @classmethod
    def of_rank(
        cls, chunks: Sequence[ModelChunk], states: Sequence[OptimizerState], runtimes: Sequence[ChunkRuntime]
    ) -> MemoryBreakdown:
        """Add up the arrays of a rank."""
        return cls(
            sum(chunk.nbytes for chunk in chunks),
            sum(
                state.scratch.nbytes + sum(chunk.replica.bytes_per_rank(slot.nbytes) for slot in state.slots.values())
                for chunk, state in zip(chunks, states, strict=True)
            ),
            sum(runtime.weights.nbytes for runtime in runtimes),
            sum(runtime.workspace.activation_bytes for runtime in runtimes),
            sum(runtime.buffer_bytes for runtime in runtimes),
        )

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(astuple(self))

    def largest_of_stages(self, grid: ProcessGrid) -> tuple[MemoryBreakdown, ...]:
        """The maxima over the ranks of every stage, given each rank's own breakdown; collective over the grid."""
        table = np.zeros((grid.pipeline, len(fields(self))), np.int64)
        table[grid.pipeline_rank] = astuple(self)
        grid.world.allreduce(table, "max")
        return tuple(MemoryBreakdown(*row) for row in table.tolist())
