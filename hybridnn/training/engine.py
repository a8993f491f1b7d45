"""Engine: the layers and the optimizer state of one rank, trained and evaluated by executing schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, isfinite, sqrt
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.comm.blocks import block_slice
from hybridnn.errors import NonFiniteLossError, SettingError
from hybridnn.nn.kernels import NUMPY, Array, HostArray, Kernels
from hybridnn.nn.losses import loss_gradient, resolve_loss
from hybridnn.parallel.distribution import make_distributor
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk, ReplicaConfig
from hybridnn.parallel.workspace import StageArrays
from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime, make_runtime, plan_chunk
from hybridnn.pipeline.execution.executor import Executor, Minibatch
from hybridnn.pipeline.execution.program import make_program
from hybridnn.pipeline.layout import Layout
from hybridnn.training.config import TrainConfig
from hybridnn.training.data_split import DataSplit, Loader, minibatches
from hybridnn.training.device import StepCapture
from hybridnn.training.global_arrays import GlobalArrays
from hybridnn.training.layout_choice import choose_sharing, uses_fused_update
from hybridnn.training.metrics import (
    ClassificationSums,
    Metrics,
    MetricSums,
    MinibatchLosses,
    RegressionSums,
    broadcast_from_last_stage,
)

if TYPE_CHECKING:
    from hybridnn.gpu.cuda_graphs import CudaGraphSteps, DeviceSampleCache, GraphedExecutor
    from hybridnn.parallel.replica_sharing import Sharing
    from hybridnn.pipeline.execution.memory_breakdown import MemoryBreakdown


EVALUATED_SAMPLES, EVALUATION_BYTES = 1 << 12, 1 << 28
"""Most samples of a forward pass on a GPU, over all ranks, and most bytes of its workspaces.

The launches of a small minibatch take longer than its computation.
"""

KEPT_EXECUTORS = 4  # executors in the cache: for training, for evaluation, and for shorter last epochs of both


class Engine:
    """Weights, optimizer state and workspaces of this rank.

    Every method is collective over the grid.

    Parameters
    ----------
    config : TrainConfig
        Validated by `TrainConfig.checked`.
    capture : StepCapture, optional
        Captures steps as CUDA graphs; only on grids of batch ranks.
    fused_update : bool
        Fuse weight-gradient products with the update if `uses_fused_update` allows it.

    Attributes
    ----------
    samples : DeviceSampleCache or None
        None on the CPU.
    """

    def __init__(
        self,
        config: TrainConfig,
        grid: ProcessGrid,
        layout: Layout,
        sharing: Sharing | None,
        kernels: Kernels = NUMPY,
        capture: StepCapture | None = None,
        *,
        fused_update: bool = True,
    ) -> None:
        self.config, self._grid, self.layout, self._sharing, self._kernels = config, grid, layout, sharing, kernels
        self.dtype = np.dtype(config.dtype)
        kernels.compile(self.dtype)
        fused = fused_update and uses_fused_update(config, grid, layout, sharing, on_host=kernels.on_host)
        schedules = layout.largest_schedules()
        if grid.pipeline > 1:
            from hybridnn.pipeline.checks.lint import lint

            for schedule in schedules:
                lint(schedule)
        self._chunk_plans = [plan_chunk(schedules, grid.pipeline_rank, index) for index in range(layout.chunks)]
        self._evaluation_plans = [
            plan_chunk((schedules[1], schedules[1]), grid.pipeline_rank, index)
            for index in range(layout.chunks * self._evaluates_large_blocks)
        ]
        arrays = self._chunk_plans[0].weight_versions + len(config.optimizer.slot_names)
        replica = ReplicaConfig(sharing, arrays, fused)
        self.chunks = [
            ModelChunk(layers, grid, layout.model_split, self.dtype, layout.overlap, kernels, replica)
            for layers in layout.layers_of(config.model, grid.pipeline_rank)
        ]
        self.states = [chunk.replica.new_state(config.optimizer, chunk.weights) for chunk in self.chunks]
        self.arrays = GlobalArrays(config.model, grid, layout, self.chunks)
        self.samples: DeviceSampleCache | None = None
        self._graphs: CudaGraphSteps | None = None
        if not kernels.on_host:
            from hybridnn.gpu.cuda_graphs import DeviceSampleCache  # not needed on the CPU

            self.samples = DeviceSampleCache(kernels, grid, self.dtype)
        if capture is not None:
            from hybridnn.gpu.cuda_graphs import CudaGraphSteps

            self._graphs = CudaGraphSteps(
                capture, self.chunks[0], config.optimizer, self.states[0], config.batch_size, grid.batch_group
            )
        self.loader = Loader(make_distributor(grid, config.distribution), kernels, grid)
        self._runtimes: list[ChunkRuntime] = []
        self._evaluation_runtimes: list[ChunkRuntime] = []
        self._executors: dict[tuple[str | None, bool, int], Executor] = {}

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self.states[0].updates

    # -- training ----------------------------------------------------------------------------------------------------

    def new_losses(self, minibatches: Sequence[Minibatch]) -> MinibatchLosses:
        """Workspace for the losses of the next minibatches; losses that are not finite end the training."""
        return MinibatchLosses(self._kernels, self._grid, minibatches, self._stop)

    def train(self, split: DataSplit, minibatches: Sequence[Minibatch], losses: MinibatchLosses) -> Iterator[Minibatch]:
        """Do one update on each minibatch.

        Raises `NonFiniteLossError` on every rank; with an exact method on the CPU before the weights are changed.

        Yields
        ------
        Minibatch
            After its update. With an exact method on the CPU its loss has been fetched.
        """
        executor = self._executor(split.task, True, 1 if self.layout.exact else len(minibatches))
        take_loss = losses.add if self.layout.exact and self._kernels.on_host else losses.note
        steps: Executor | GraphedExecutor = executor
        if self._graphs is not None and split.on_device is not None:
            steps = self._graphs.around(executor, split.on_device, losses, self._clip)
        steps.begin(minibatches)
        for minibatch in minibatches:
            steps.gradient(minibatch)
            if steps is executor:
                take_loss(minibatch, self.chunks[-1].replica.total_loss)
                self._clip()
            steps.update(minibatch)
            yield minibatch

    def copy_weights(self) -> list[Array]:
        """Copies of this rank's weights by chunk, after the last update of its stage; collective over its replicas."""
        self._publish()  # shared weights are complete
        copies = [self._copy(chunk.weights) for chunk in self.chunks]
        self._publish()  # no rank updates them before all have copied
        return copies

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

    def _clip(self) -> None:
        """Scale the gradient down if its norm exceeds the limit; asynchronous on a device."""
        if self.config.clip_norm is None:
            return
        norm = self.arrays.squared_gradient_norm()
        for chunk in self.chunks:
            chunk.replica.clip(norm, self.config.clip_norm)

    def require_finite(self, test: Metrics | None, step: int) -> None:
        """Check that the weights after a step and the test loss are finite.

        Raises `NonFiniteLossError` on every rank.
        """
        if not np.isfinite(self.arrays.squared_norms([chunk.weights for chunk in self.chunks])).all():
            self._stop(f"the weights are no longer finite after step {step}", step)
        if test is not None and not isfinite(test.loss):
            self._stop(f"the test loss became {test.loss} after step {step}", step)

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, every parameter counted once."""
        return sqrt(self._kernels.to_host(self.arrays.squared_gradient_norm())[0])

    # -- forward passes ----------------------------------------------------------------------------------------------

    def evaluate(self, split: DataSplit) -> Metrics:
        """Loss and accuracy or R² on all samples of `split`; every sample counts once."""
        grid, loss = self._grid, self._kernels.zeros((1,), self.dtype)
        batches = list(minibatches(np.arange(split.samples), self._forward_size))
        sums: MetricSums = RegressionSums(self._kernels, self.config.model.sizes[-1])
        if split.task == "classification":
            sums = ClassificationSums(self._kernels, len(batches))
        compute_loss = self._loss(split.task)

        def add(minibatch: Minibatch, arrays: StageArrays) -> None:
            compute_loss(arrays, minibatch.size, loss)
            sums.add(arrays.outputs, arrays.targets, loss)

        loaded = self.loader.minibatches(split, batches, [0.0] * len(batches))
        self._executor(split.task, False, len(batches)).forward(loaded, add)
        if grid.pipeline == 1:
            return sums.total(grid.batch_group)
        is_last = grid.pipeline_rank == grid.pipeline - 1
        totals = sums.total(grid.batch_group).to_array() if is_last else np.empty(4)
        broadcast_from_last_stage(grid, totals)
        return Metrics.from_array(totals)

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
            self._executor(None, False, len(batches)).forward(batches, take)
        # Every sample was computed by one batch rank of the last stage; the others hold zeros.
        grid.batch_group.allreduce(outputs)
        broadcast_from_last_stage(grid, outputs)
        return outputs

    @property
    def _forward_size(self) -> int:
        """Samples of a forward pass, the capacity of its workspaces: a microbatch, or more on a GPU."""
        microbatch = ceil(self.config.batch_size / self.layout.microbatches)
        if not self._evaluates_large_blocks:
            return microbatch
        sizes = self.config.model.sizes
        bytes_per_sample = (sum(sizes) + 2 * max(sizes)) * self.dtype.itemsize
        return max(microbatch, min(EVALUATED_SAMPLES, EVALUATION_BYTES // bytes_per_sample))

    @property
    def _evaluates_large_blocks(self) -> bool:
        return not self._kernels.on_host and self._grid.pipeline == 1

    # -- executors and their memory ----------------------------------------------------------------------------------

    def _executor(self, task: str | None, trains: bool, count: int) -> Executor:
        """The executor for `count` minibatches, for training or for forward passes only.

        Parameters
        ----------
        task : {"classification", "regression"} or None
            None if there are no targets.
        """
        key = task, trains, count
        executor = self._executors.pop(key, None)
        if executor is None:
            runtimes = self._runtimes_for(task, trains=trains)
            schedule = self.layout.schedule if trains else self.layout.forward_schedule
            program = make_program(schedule, self._grid.pipeline_rank, self._grid.pipeline, count)
            executor = Executor(program, self._grid, runtimes, None if task is None else self._loss(task))
        self._executors[key] = executor  # inserted last: the first one is the least recently used
        if len(self._executors) > KEPT_EXECUTORS:
            del self._executors[next(iter(self._executors))]
        return executor

    def _loss(self, task: str) -> Callable[[StageArrays, int, HostArray], None]:
        """The function that computes a microbatch's loss and output gradient."""
        kernels, name = self._kernels, resolve_loss(self.config.model, task)

        def loss(arrays: StageArrays, size: int, total: HostArray) -> None:
            outputs, targets, gradient = arrays.outputs, arrays.targets, arrays.output_gradient
            loss_gradient(kernels, name, outputs, targets, arrays.columns, size, gradient, total)

        return loss

    def _runtimes_for(self, task: str | None, *, trains: bool) -> list[ChunkRuntime]:
        """The runtimes of this rank's chunks, with workspace for the targets of a task."""
        own = self._evaluates_large_blocks and not trains
        runtimes, plans = self._runtimes, self._chunk_plans
        if own:
            runtimes, plans = self._evaluation_runtimes, self._evaluation_plans
        if not runtimes:
            runtimes += [
                make_runtime(
                    plan,
                    self._grid,
                    chunk,
                    self.config.optimizer,
                    state,
                    batch_size=self._forward_size if own else self.config.batch_size,
                    synchronous=self.config.synchronous_sends,
                    trains=not own,
                )
                for plan, chunk, state in zip(plans, self.chunks, self.states, strict=True)
            ]
        if task is not None:
            for runtime in runtimes:
                runtime.expect_targets(classification=task == "classification")
        return runtimes

    def restore(self, read: Callable[[], None]) -> None:
        """Fill weights and states with `read` on the ranks that own them; its errors are raised on all ranks."""
        is_leader = all(chunk.replica.is_leader for chunk in self.chunks)
        self._publish()
        agree(self._grid.world, read if is_leader else lambda: None)
        for chunk, state in zip(self.chunks, self.states, strict=True):
            chunk.replica.synchronize_state(state)

    def _publish(self) -> None:
        for chunk in self.chunks:
            chunk.replica.publish()

    def free(self) -> None:
        """Free shared memory, samples on the device and CUDA graphs; the engine is unusable afterwards."""
        if self.samples is not None:
            self.samples.free()
        if self._graphs is not None:
            self._graphs.free()
        if self._sharing is not None:
            self._sharing.memory.free()

    def memory(self, task: str) -> MemoryBreakdown:
        """Bytes on this rank, including all buffers for training on data of `task`; on a GPU without evaluations."""
        from hybridnn.pipeline.execution.memory_breakdown import MemoryBreakdown

        runtimes = self._runtimes_for(task, trains=True)
        return MemoryBreakdown.of_rank(self.chunks, self.states, runtimes)

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated on this rank so far."""
        from hybridnn.pipeline.execution.memory_breakdown import MemoryBreakdown

        runtimes = self._runtimes + self._evaluation_runtimes
        return MemoryBreakdown.of_rank(self.chunks, self.states, runtimes).total

    def _stop(self, what: str, step: int) -> NoReturn:
        for runtime in self._runtimes:
            runtime.finish()  # completes the sends: an exact method stops after the last message of the minibatch
        norms = np.sqrt(self.arrays.squared_norms([chunk.weights for chunk in self.chunks]))
        layers = ", ".join(f"layer {index}: {norm:.3g}" for index, norm in enumerate(norms))
        raise NonFiniteLossError(
            what,
            step,
            f"norms of the weights: {layers}. "
            "Try a lower optimizer.lr, a training.clip_norm, or a warm-up; check the scale of the data",
        )


def make_engine(
    config: TrainConfig,
    grid: ProcessGrid,
    layout: Layout,
    kernels: Kernels = NUMPY,
    capture: StepCapture | None = None,
    *,
    fused_update: bool = True,
) -> Engine:
    """Make an `Engine`; an error on one rank is raised on all. Collective over the grid.

    The parameters are those of `Engine`.

    Raises
    ------
    SettingError
        On every rank: the arrays do not fit the memory, or ``shared_replicas`` is true and impossible.
    GridError
        As for `choose_sharing`.
    """
    layout, sharing = choose_sharing(config, grid, layout, on_host=kernels.on_host)

    def make() -> Engine:
        try:
            return Engine(config, grid, layout, sharing, kernels, capture, fused_update=fused_update)
        except MemoryError as error:
            arrays = f"{config.model.parameters:,} parameters, their gradients and the optimizer's state"
            raise SettingError("model.sizes", config.model.sizes, f"{arrays} do not fit this rank's memory") from error

    return agree(grid.world, make)
