"""Engine: the layers and the optimizer state of one rank, trained and evaluated by executing schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property, lru_cache, partial
from math import ceil, isfinite, sqrt
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.blocks import block_slice
from hybridnn.errors import NonFiniteLossError
from hybridnn.nn.kernels import NUMPY, Array, HostArray, Kernels, weighted_cross_entropy
from hybridnn.nn.mlp import resolve_loss
from hybridnn.parallel.distribution import make_fetch
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk, ReplicaConfig
from hybridnn.parallel.workspace import StageArrays
from hybridnn.pipeline.execution.chunk_runtime import ChunkPlan, ChunkRuntime, make_runtime, plan_chunk
from hybridnn.pipeline.execution.executor import Executor, Loss, Minibatch, NoteWeights
from hybridnn.pipeline.execution.program import make_program
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS, Method
from hybridnn.training.config import TrainConfig
from hybridnn.training.data_split import DataSplit, minibatches
from hybridnn.training.global_arrays import GlobalArrays
from hybridnn.training.layout_choice import uses_fused_update
from hybridnn.training.metrics import (
    ClassificationSums,
    Metrics,
    MinibatchLosses,
    RegressionSums,
    broadcast_from_last_stage,
)

if TYPE_CHECKING:
    from hybridnn.nn.optimizers import OptimizerState
    from hybridnn.parallel.replica_sharing import Sharing
    from hybridnn.pipeline.execution.memory_breakdown import MemoryBreakdown
    from hybridnn.training.staleness import StalenessDiagnosis

Load = Callable[[Any, int, int, Array | None, Array | None], None]
"""``load(samples, start, stop, x, y)`` of `Minibatch`."""

KEPT_EXECUTORS = 4  # for training, for forward passes, and for shorter last epochs of both


class Engine:
    """Weights, optimizer state and workspaces of this rank, on the CPU; `hybridnn.gpu` has the engine of a GPU.

    Every method is collective over the grid. `config` is validated; `sharing` is None for a private replica; with
    `fused_update`, weight-gradient products are fused with the update if `uses_fused_update` allows it.
    """

    def __init__(
        self,
        config: TrainConfig,
        grid: ProcessGrid,
        layout: Layout,
        sharing: Sharing | None,
        kernels: Kernels = NUMPY,
        *,
        fused_update: bool = True,
    ) -> None:
        self.config, self.layout, self.dtype = config, layout, np.dtype(config.dtype)
        self._grid, self._sharing, self._kernels = grid, sharing, kernels
        kernels.compile(self.dtype)
        fused = fused_update and uses_fused_update(config, grid, layout, sharing, on_host=kernels.on_host)
        schedules = layout.largest_schedules()
        if grid.pipeline > 1:
            _lint(layout, METHODS[layout.method])
        plans = [plan_chunk(schedules, grid.pipeline_rank, index) for index in range(layout.chunks)]
        replica = ReplicaConfig(sharing, plans[0].weight_versions + len(config.optimizer.slot_names), fused)
        self.chunks = [
            ModelChunk(layers, grid, layout.model_split, self.dtype, layout.overlap, kernels, replica)
            for layers in layout.layers_of(config.model, grid.pipeline_rank)
        ]
        self.states = [chunk.replica.new_state(config.optimizer, chunk.weights) for chunk in self.chunks]
        self.arrays = GlobalArrays(config.model, grid, layout, self.chunks)
        self.class_weights: Array | None = None  # shape (outputs,), factors of the training loss
        self._fetch = make_fetch(grid, config.distribution)
        self.staleness: StalenessDiagnosis | None = None
        if config.diagnose_staleness and grid.pipeline > 1:
            from hybridnn.training.staleness import StalenessDiagnosis

            stage, every = grid.pipeline_rank, config.log_every
            self.staleness = StalenessDiagnosis(self.chunks, self.arrays, layout, stage, every)
        self._task = ""
        self.is_updating = False  # whether weights or optimizer state are being changed
        self._training = self._forward = self._executors(plans, config.batch_size)

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self.states[0].updates

    # -- training ----------------------------------------------------------------------------------------------------

    def new_losses(self, minibatches: Sequence[Minibatch]) -> MinibatchLosses:
        """Workspace for the losses of the next minibatches; losses that are not finite end the training."""
        return MinibatchLosses(self._kernels, self._grid, minibatches, self._stop)

    def place(self, split: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """The samples of a split where steps read them: on the host, where they are.

        `given` are the samples as the caller passed them: `Rows`, which are immutable, or an array, which may have
        changed. A device keeps them under the name `keep_as` for the next training.
        """
        return split

    def make_minibatches(
        self, split: DataSplit, batches: Sequence[NDArray[np.int64]], rates: Sequence[float], first: int = 0
    ) -> list[Minibatch]:
        """Consecutive minibatches from sample indices and learning rates; `first` is the number of the first one."""
        load, samples = self._loading(split, batches)
        return [
            Minibatch(number, len(batch), rate, own, load)
            for number, (batch, rate, own) in enumerate(zip(batches, rates, samples, strict=True), first)
        ]

    def _loading(self, split: DataSplit, batches: Sequence[NDArray[np.int64]]) -> tuple[Load, Sequence[Any]]:
        """The function that reads samples into the arrays of a step, and what stands for the samples of each batch."""
        rows, fetch = split.rows, self._fetch

        def load(indices: NDArray[np.int64], start: int, stop: int, x: Array | None, y: Array | None) -> None:
            fetch(rows, indices[start:stop], x, y)

        return load, batches

    def train(self, split: DataSplit, minibatches: Sequence[Minibatch], losses: MinibatchLosses) -> Iterator[Minibatch]:
        """Do one update on each minibatch.

        Raises `NonFiniteLossError` on every rank; with an exact method on the CPU before the weights are changed.

        Yields
        ------
        Minibatch
            After its update. With an exact method on the CPU its loss has been fetched.
        """
        executor = self._begin(split.task, minibatches)
        take_loss = losses.add if self.layout.exact and self._kernels.on_host else losses.note
        for minibatch in minibatches:
            self._step(executor, minibatch, take_loss)
            yield minibatch

    def _begin(self, task: str, minibatches: Sequence[Minibatch]) -> Executor:
        """The executor for these minibatches, begun: an exact method repeats the program of one."""
        self._task = task
        executor = self._training.executor(task, 1 if self.layout.exact else len(minibatches), trains=True)
        executor.begin(minibatches)
        return executor

    def _step(self, executor: Executor, minibatch: Minibatch, take_loss: Callable[[Minibatch, Array], None]) -> None:
        """Do one update: the step of every method and device."""
        executor.gradient(minibatch)
        take_loss(minibatch, self.chunks[-1].replica.total_loss)
        if self.staleness is not None and self.staleness.is_logged(minibatch):
            self.staleness.note_update(minibatch, self.copy_gradient(), self.copy_weights())
        if self.config.clip_norm is not None:
            self._clip(self.config.clip_norm)
        self.is_updating = True
        executor.update(minibatch)
        self.is_updating = False

    def copy_weights(self) -> list[Array]:
        """Copies of this rank's weights by chunk, after the last update of its stage; collective over its replicas."""
        self._publish()  # shared weights are complete
        copies = [self._copy(chunk.weights) for chunk in self.chunks]
        self._publish()  # no rank updates them before all have copied
        return copies

    def copy_gradient(self) -> list[Array]:
        """Copies of the sums of the last gradients by chunk; collective over its replicas."""
        return [self._copy(chunk.replica.full_gradient()) for chunk in self.chunks]

    def exact_gradient(self, minibatch: Minibatch, weights: Sequence[Array]) -> list[Array]:
        """Gradient of the mean loss over a minibatch at other weights, by chunk, with an exact schedule.

        For the task that was trained last. Collective, while the pipeline is empty; the last gradient stays.
        """
        self.copy_gradient()  # segments of a shared replica hold their sums, before the pass and after it
        last = [self._copy(chunk.replica.gradient) for chunk in self.chunks]
        with self.other_weights(weights):
            executor = self._exact.executor(self._task, 1, trains=True)
            executor.begin([minibatch])
            executor.gradient(minibatch)
            for runtime in self._training.runtimes:
                runtime.finish()
        found = self.copy_gradient()
        for chunk, gradient in zip(self.chunks, last, strict=True):
            self._kernels.copy(gradient, chunk.replica.gradient)
        self._publish()
        return found

    @cached_property
    def _exact(self) -> Executors:
        """Executors of an exact method, in the workspaces of the training."""
        layout = self.layout if self.layout.exact else replace(self.layout, method="1f1b")
        return Executors(self._grid, layout, self._loss, lambda: self._training.runtimes)

    @contextmanager
    def other_weights(self, weights: Sequence[Array] | None) -> Iterator[None]:
        """Context in which the weights are others, by chunk; None: the current ones."""
        if weights is None:
            yield
            return
        saved = [(chunk.weights, chunk.parameters) for chunk in self.chunks]
        try:
            for chunk, flat in zip(self.chunks, weights, strict=True):
                chunk.weights, chunk.parameters = flat, chunk.layout.views(flat)
            yield
        finally:
            for chunk, (flat, views) in zip(self.chunks, saved, strict=True):
                chunk.weights, chunk.parameters = flat, views

    def _copy(self, array: Array) -> Array:
        copy = self._kernels.empty(array.shape, array.dtype)
        self._kernels.copy(array, copy)
        return copy

    def _clip(self, limit: float) -> None:
        """Scale the gradient down if its norm exceeds the limit; asynchronous on a device."""
        norm = self.arrays.squared_gradient_norm()
        for chunk in self.chunks:
            chunk.replica.clip(norm, limit)

    def require_finite(self, test: Metrics | None, step: int) -> None:
        """Check that the weights after a step and the validation loss are finite.

        Raises `NonFiniteLossError` on every rank.
        """
        if not np.isfinite(self.arrays.squared_norms([chunk.weights for chunk in self.chunks])).all():
            self._stop(f"the weights are no longer finite after step {step}", step)
        if test is not None and not isfinite(test.loss):
            self._stop(f"the validation loss became {test.loss} after step {step}", step)

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, every parameter counted once."""
        return sqrt(self._kernels.to_host(self.arrays.squared_gradient_norm())[0])

    # -- forward passes ----------------------------------------------------------------------------------------------

    def evaluate(self, split: DataSplit) -> Metrics:
        """Loss and accuracy or R² on all samples of `split`; every sample counts once."""
        grid, loss = self._grid, self._kernels.zeros((1,), self.dtype)
        batches = list(minibatches(np.arange(split.samples), self._forward_size))
        ranked = len(batches) * ceil(self._forward_size / grid.batch) if self.config.model.sizes[-1] == 2 else 0
        sums = (
            ClassificationSums(self._kernels, len(batches), ranked)
            if split.task == "classification"
            else RegressionSums(self._kernels, self.config.model.sizes[-1])
        )
        compute_loss = self._loss(split.task, weighted=False)

        def add(minibatch: Minibatch, arrays: StageArrays) -> None:
            compute_loss(arrays, minibatch.size, loss)
            sums.add(arrays.outputs, arrays.targets, loss)

        loaded = self.make_minibatches(split, batches, [0.0] * len(batches))
        self._forward.executor(split.task, len(batches), trains=False).forward(loaded, add)
        if grid.pipeline == 1:
            return sums.total(grid.batch_group)
        is_last = grid.pipeline_rank == grid.pipeline - 1
        text = json.dumps(asdict(sums.total(grid.batch_group))) if is_last else ""
        return Metrics(**json.loads(broadcast_text(grid.world, text, grid.rank_at(grid.pipeline - 1, 0, 0))))

    def predict(self, x: HostArray) -> HostArray:
        """Outputs for `x`, shape (samples, features) and the same on every rank; shape (samples, outputs)."""
        outputs = np.zeros((len(x), self.config.model.sizes[-1]), self.dtype)
        grid, kernels = self._grid, self._kernels

        def own(rows: HostArray) -> HostArray:
            return rows[block_slice(len(rows), grid.batch, grid.batch_rank)]

        def load(rows: slice, start: int, stop: int, out: HostArray | None, targets: HostArray | None) -> None:
            if out is not None:
                kernels.put(np.ascontiguousarray(own(x[rows][start:stop]), out.dtype), out)

        def take(minibatch: Minibatch, arrays: StageArrays) -> None:
            own(outputs[minibatch.samples])[...] = kernels.to_host(arrays.outputs).T

        starts = range(0, len(x), self._forward_size)
        blocks = [slice(start, min(start + self._forward_size, len(x))) for start in starts]
        batches = [Minibatch(i, rows.stop - rows.start, 0.0, rows, load) for i, rows in enumerate(blocks)]
        if batches:
            self._forward.executor(None, len(batches), trains=False).forward(batches, take)
        # Every sample was computed by one batch rank of the last stage; the others hold zeros.
        grid.batch_group.allreduce(outputs)
        broadcast_from_last_stage(grid, outputs)
        return outputs

    @property
    def _forward_size(self) -> int:
        """Samples of a forward pass, over all ranks: a microbatch."""
        return ceil(self.config.batch_size / self.layout.microbatches)

    # -- executors and their memory ----------------------------------------------------------------------------------

    def _executors(self, plans: Sequence[ChunkPlan], capacity: int, *, trains: bool = True) -> Executors:
        """Executors for minibatches of up to `capacity` samples."""

        def make_runtimes() -> list[ChunkRuntime]:
            return [
                make_runtime(
                    plan,
                    self._grid,
                    chunk,
                    self.config.optimizer,
                    state,
                    batch_size=capacity,
                    synchronous=self.config.synchronous_sends,
                    trains=trains,
                )
                for plan, chunk, state in zip(plans, self.chunks, self.states, strict=True)
            ]

        note_weights = None if self.staleness is None else self.staleness.note_weights
        return Executors(self._grid, self.layout, self._loss, make_runtimes, note_weights)

    def _loss(self, task: str, *, weighted: bool = True) -> Callable[[StageArrays, int, HostArray], None]:
        """The function that computes the sum of the losses of a microbatch, and the gradient of the mean loss.

        The mean is that over the minibatch of all ranks: sums travel, and are divided once by its number of samples, so
        that the gradient does not depend on the distribution of the samples.
        """
        kernels, classifies = self._kernels, resolve_loss(self.config.model, task) == "cross_entropy"

        def loss(arrays: StageArrays, size: int, total: HostArray) -> None:
            outputs, targets, gradient, scale = arrays.outputs, arrays.targets, arrays.output_gradient, 1.0 / size
            if weighted and self.class_weights is not None:
                columns, weights = arrays.columns, self.class_weights
                weighted_cross_entropy(outputs, targets, columns, weights, scale, gradient, total)
            elif classifies:
                kernels.cross_entropy(outputs, targets, arrays.columns, scale, gradient, total)
            else:
                kernels.mean_squared_error(outputs, targets.T, scale, gradient, total)

        return loss

    def restore(self, read: Callable[[], None]) -> None:
        """Fill weights and states with `read` on the ranks that own them; its errors are raised on all ranks."""
        is_leader = all(chunk.replica.is_leader for chunk in self.chunks)
        self._publish()
        agree(self._grid.world, read if is_leader else lambda: None)
        for chunk, state in zip(self.chunks, self.states, strict=True):
            chunk.replica.synchronize_state(state)
        self.is_updating = False

    def reset_optimizer(self) -> None:
        """Set the optimizer state to that before the first update."""
        for chunk, state in zip(self.chunks, self.states, strict=True):
            state.updates = state.delay = 0
            chunk.replica.fill(partial(_set_to_zero, state))
        self.is_updating = False

    def _publish(self) -> None:
        for chunk in self.chunks:
            chunk.replica.publish()

    def free(self) -> None:
        """Free shared memory; the engine is unusable afterwards."""
        if self._sharing is not None:
            self._sharing.memory.free()

    def memory(self, task: str) -> MemoryBreakdown:
        """Bytes on this rank, including all buffers for training on data of `task`; on a GPU without evaluations."""
        from hybridnn.pipeline.execution.memory_breakdown import MemoryBreakdown

        return MemoryBreakdown.of_rank(self.chunks, self.states, self._training.runtimes_for(task))

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated on this rank so far."""
        from hybridnn.pipeline.execution.memory_breakdown import MemoryBreakdown

        runtimes = [runtime for executors in {self._training, self._forward} for runtime in executors.runtimes]
        return MemoryBreakdown.of_rank(self.chunks, self.states, runtimes).total

    def _stop(self, what: str, step: int) -> NoReturn:
        for runtime in self._training.runtimes:
            runtime.finish()  # completes the sends: an exact method stops after the last message of the minibatch
        norms = np.sqrt(self.arrays.squared_norms([chunk.weights for chunk in self.chunks]))
        layers = ", ".join(f"layer {index}: {norm:.3g}" for index, norm in enumerate(norms))
        raise NonFiniteLossError(
            what,
            step,
            f"norms of the weights: {layers}. "
            "Try a lower optimizer.lr, a training.clip_norm, or a warm-up; check the scale of the data. "
            "To train this trainer again, load_weights(weights, reset_optimizer=True) and set_learning_rate",
        )


class Executors:
    """Executors of a rank, compiled once for each number of minibatches, on the same workspaces.

    These are allocated when the first executor is needed: `runtimes` is empty before. `loss` makes the loss function of
    a task, and `make_runtimes` the runtimes of this rank's chunks; `note_weights` is called in training.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        layout: Layout,
        loss: Callable[[str], Loss],
        make_runtimes: Callable[[], list[ChunkRuntime]],
        note_weights: NoteWeights | None = None,
    ) -> None:
        self._grid, self._layout, self._loss, self._make_runtimes = grid, layout, loss, make_runtimes
        self._note_weights = note_weights
        self.runtimes: list[ChunkRuntime] = []
        self.executor = lru_cache(KEPT_EXECUTORS)(self._make_executor)

    def _make_executor(self, task: str | None, count: int, *, trains: bool) -> Executor:
        """The executor for `count` minibatches, for training or for forward passes only; no `task`: no targets."""
        schedule = self._layout.schedule if trains else self._layout.forward_schedule
        program = make_program(schedule, self._grid.pipeline_rank, self._grid.pipeline, count)
        loss, note = None if task is None else self._loss(task), self._note_weights if trains else None
        return Executor(program, self._grid, self.runtimes_for(task), loss, note)

    def runtimes_for(self, task: str | None) -> list[ChunkRuntime]:
        """The runtimes, with workspace for the targets of a task."""
        if not self.runtimes:
            self.runtimes = self._make_runtimes()
        if task is not None:
            for runtime in self.runtimes:
                runtime.expect_targets(classification=task == "classification")
        return self.runtimes


def _set_to_zero(state: OptimizerState) -> None:
    for slot in state.slots.values():
        slot[...] = 0


@lru_cache(1)
def _lint(layout: Layout, method: Method) -> None:
    """Check the rules of the schedules of a layout, once for the ranks of a process."""
    from hybridnn.pipeline.checks.lint import lint  # not needed on one stage

    for schedule in layout.largest_schedules():
        lint(schedule)
