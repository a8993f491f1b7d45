"""Engine: the layers and the optimizer state of one rank, trained and evaluated by executing schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import agree
from hybridnn.comm.blocks import block_slice
from hybridnn.data.rows import dense
from hybridnn.errors import NonFiniteLossError
from hybridnn.nn.kernels import NUMPY, Array, HostArray, Kernels
from hybridnn.nn.mlp import resolve_loss
from hybridnn.nn.parameters import parameter_shapes
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.parallel.workspace import StageArrays
from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime, MemoryBreakdown, WeightStore
from hybridnn.pipeline.execution.executor import Executor, Minibatch, NoteWeights, TakeOutputs
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.methods import METHODS, Method
from hybridnn.pipeline.schedules.program import ChunkPlan, make_program, plan_chunk
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.training.config import TrainConfig
from hybridnn.training.data_split import DataSplit, make_fetch, minibatches
from hybridnn.training.layout_choice import does_not_fit, require_memory

if TYPE_CHECKING:
    from hybridnn.parallel.shared_replica import Sharing
    from hybridnn.training.epoch import MinibatchLosses
    from hybridnn.training.metrics import Metrics

Load = Callable[[Any, int, int, Array | None, Array | None], None]
"""``load(samples, start, stop, x, y)`` of `Minibatch`."""

KEPT_EXECUTORS = 4  # for training, for forward passes, and for shorter last epochs of both


class Engine:
    """Weights, optimizer state and workspaces of this rank, on the CPU; `hybridnn.gpu` has the engine of a GPU.

    Every method is collective over the grid. `config` is validated; `sharing` is None for a private replica.
    """

    def __init__(
        self,
        config: TrainConfig,
        grid: ProcessGrid,
        layout: Layout,
        sharing: Sharing | None,
        kernels: Kernels = NUMPY,
    ) -> None:
        self.config, self.layout, self.dtype = config, layout, np.dtype(config.dtype)
        self.grid, self._sharing, self.kernels = grid, sharing, kernels
        kernels.compile(self.dtype)
        schedules = layout.largest_schedules()
        if grid.pipeline > 1:
            _lint(layout, METHODS[layout.method])
        plans = [plan_chunk(schedules, grid.pipeline_rank, index) for index in range(layout.chunks)]
        arrays = plans[0].weight_versions + len(config.optimizer.slot_names)
        self.chunks = [
            ModelChunk(layers, grid, layout.model_split, self.dtype, layout.overlap, kernels, sharing, arrays)
            for layers in layout.layers_of(config.model, grid.pipeline_rank)
        ]
        self.states = [chunk.replica.new_state(config.optimizer, chunk.weights) for chunk in self.chunks]
        self._norms = [kernels.zeros((1,), np.float64) for _ in self.chunks]
        self.class_weights: HostArray | None = None  # of the training loss, shape (classes,)
        self._fetch = make_fetch(grid, config.distribution)
        self._note_update: Callable[[Minibatch], None] | None = None
        self.note_weights: NoteWeights | None = None  # see `observe`
        self.task = ""  # of the last training
        self.is_updating = False  # whether weights or optimizer state are being changed
        self.training = self.forward = Executors(self, plans)

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self.states[0].updates

    # -- training ----------------------------------------------------------------------------------------------------

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
        """Do one update on each minibatch, and yield it then; on the CPU its loss is fetched if the pipeline drains.

        Raises `NonFiniteLossError` on every rank; where the loss is fetched, before the weights are changed.
        """
        executor, exact = self._begin(split.task, minibatches), self.layout.exact
        take_loss = losses.add if self.layout.drains and self.kernels.on_host else losses.note
        for minibatch in minibatches:
            if exact:  # an evaluation between two steps may have replaced the workspaces by larger ones
                executor = self.training.executor(split.task, 1, trains=True)
            self._step(executor, minibatch, take_loss)
            yield minibatch

    def _begin(self, task: str, minibatches: Sequence[Minibatch]) -> Executor:
        """The executor for these minibatches, begun: an exact method repeats the program of one."""
        self.task = task
        self.reserve(task, training=max(minibatch.size for minibatch in minibatches))
        executor = self.training.executor(task, 1 if self.layout.exact else len(minibatches), trains=True)
        executor.begin(minibatches)
        return executor

    def _step(self, executor: Executor, minibatch: Minibatch, take_loss: Callable[[Minibatch, Array], None]) -> None:
        """Do one update: the step of every method and device."""
        executor.gradient(minibatch)
        take_loss(minibatch, self.chunks[-1].replica.total_loss)
        if self._note_update is not None:
            self._note_update(minibatch)
        if self.config.clip_norm is not None:
            # A stage of an asynchronous method updates before the last gradients of the others exist.
            norm = self.squared_gradient_norm() if self.layout.exact else self._squared_norm_of_stage()
            for chunk in self.chunks:
                chunk.replica.clip(norm, self.config.clip_norm)
        self.is_updating = True
        executor.update(minibatch)
        self.is_updating = False

    def copy_weights(self) -> list[Array]:
        """Copies of this rank's weights by chunk, after the last update of its stage; collective over its replicas."""
        self._publish()  # shared weights are complete
        copies = [chunk.weights.copy() for chunk in self.chunks]
        self._publish()  # no rank updates them before all have copied
        return copies

    def observe(
        self, note_weights: NoteWeights | None = None, note_update: Callable[[Minibatch], None] | None = None
    ) -> None:
        """Call `note_weights` before passes of trainings from now on, and `note_update` before updates."""
        self._note_update = note_update
        if note_weights != self.note_weights:
            self.note_weights = note_weights
            self.training.executor.cache_clear()

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

    def require_finite(self, test: Metrics | None, step: int) -> None:
        """Raise `NonFiniteLossError` on every rank unless weights after a step and the validation loss are finite."""
        if not np.isfinite(self.squared_norms([chunk.weights for chunk in self.chunks])).all():
            self.stop(f"the weights are no longer finite after step {step}", step)
        if test is not None and not isfinite(test.loss):
            self.stop(f"the validation loss became {test.loss} after step {step}", step)

    # -- the arrays of the whole network, over all stages of a pipeline ------------------------------------------------

    def squared_norms(self, flats: Sequence[HostArray]) -> NDArray[np.float64]:
        """Squared norms of all layers, shape (layers,), from a flat buffer for each chunk of this rank."""
        norms = np.zeros(len(self.config.model.layers))
        for chunk, flat in zip(self.chunks, flats, strict=True):
            first = chunk.layout.shards[0].layer.index
            norms[first : first + len(chunk.shards)] = chunk.squared_norms(flat)
        self._sum_over_stages(norms)
        return norms

    def _sum_over_stages(self, array: Array) -> None:
        """Sum an array, which is the same on all ranks of a stage, over the stages; collective over the grid."""
        if self.grid.pipeline > 1:
            if (self.grid.batch_rank, self.grid.model_rank) != (0, 0):
                array[...] = 0
            self.grid.world.allreduce(array)

    def squared_gradient_norm(self) -> Array:
        """Squared norm of the last gradient of the whole network, each parameter counted once: float64, shape (1,).

        On the device, without synchronization unless MPI reduces it; the next call overwrites it.
        """
        norm = self._squared_norm_of_stage()
        self._sum_over_stages(norm)
        return norm

    def _squared_norm_of_stage(self) -> Array:
        """Squared norm of the last gradient of this stage, as `squared_gradient_norm`."""
        norm, *chunk_norms = self._norms
        for chunk, chunk_norm in zip(self.chunks, self._norms, strict=True):
            chunk.squared_gradient_norm(chunk_norm)
        for chunk_norm in chunk_norms:
            self.chunks[0].kernels.add(norm, chunk_norm, norm)
        return norm

    def collect(self, flats: Sequence[HostArray]) -> dict[str, HostArray]:
        """Gather the global arrays ``layers.<i>.weight`` and ``.bias`` from the shards in `flats`, on every rank."""
        own: dict[str, HostArray] = {}
        for chunk, flat in zip(self.chunks, flats, strict=True):
            own |= chunk.gather_parameters(flat)
        shapes = parameter_shapes(self.config.model)
        arrays = {name: own[name] if name in own else np.zeros(shapes[name], flats[0].dtype) for name in shapes}
        for array in arrays.values():
            self._sum_over_stages(array)  # exactly: all but one of the addends are 0
        return arrays

    def load(self, weights: Mapping[str, HostArray] | None = None) -> None:
        """Copy this rank's shards of the global arrays `weights`, by default the initial weights."""

        def write() -> None:
            for chunk in self.chunks:
                chunk.load(weights, self.config.seed)

        self.restore(write)

    # -- forward passes ----------------------------------------------------------------------------------------------

    def evaluate(self, split: DataSplit) -> Metrics:
        """Loss and accuracy or R² on all samples of `split`; every sample counts once."""
        from hybridnn.training.metrics import evaluate  # not every training has one

        return evaluate(self, split)

    def predict(self, x: HostArray) -> HostArray:
        """Outputs for `x`, shape (samples, features) and the same on every rank; shape (samples, outputs)."""
        count = x.shape[0]  # a sparse array has no length
        outputs = np.zeros((count, self.config.model.sizes[-1]), self.dtype)
        grid, kernels = self.grid, self.kernels
        self.reserve(None, forward=count)

        def own(rows: HostArray) -> HostArray:
            return rows[block_slice(rows.shape[0], grid.batch, grid.batch_rank)]

        def load(rows: slice, start: int, stop: int, out: HostArray | None, targets: HostArray | None) -> None:
            if out is not None:
                kernels.put(np.ascontiguousarray(dense(own(x[rows][start:stop])), out.dtype), out)

        def take(minibatch: Minibatch, arrays: StageArrays) -> None:
            own(outputs[minibatch.samples])[...] = kernels.to_host(arrays.outputs).T

        size = self.forward_size(count)
        blocks = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        batches = [Minibatch(i, rows.stop - rows.start, 0.0, rows, load) for i, rows in enumerate(blocks)]
        if batches:
            self.forward.executor(None, len(batches), trains=False).forward(batches, take)
        # Every sample was computed by one batch rank of the last stage; the others hold zeros.
        grid.batch_group.allreduce(outputs)
        self.broadcast_from_last_stage(outputs)
        return outputs

    def broadcast_from_last_stage(self, array: Array) -> None:
        """Broadcast an array from the stage of the last layer, on whose ranks it is equal; collective over the grid."""
        if self.grid.pipeline > 1:
            self.grid.world.broadcast(array, self.grid.rank_at(self.layout.last_stage, 0, 0))

    def run_forward(self, split: DataSplit, take: TakeOutputs) -> None:
        """Forward passes of all samples; `take` receives outputs and targets on the last stage."""
        self.reserve(split.task, forward=split.samples)
        batches = list(minibatches(np.arange(split.samples), self.forward_size(split.samples)))
        if batches:
            loaded = self.make_minibatches(split, batches, [0.0] * len(batches))
            self.forward.executor(split.task, len(batches), trains=False).forward(loaded, take)

    def forward_size(self, samples: int) -> int:
        """Samples of a forward pass, over all ranks, where there are `samples`: a microbatch."""
        return max(1, ceil(min(self.config.batch_size, samples) / self.layout.microbatches))

    # -- executors and their memory ----------------------------------------------------------------------------------

    def reserve(self, task: str | None, *, training: int = 0, forward: int = 0, copies: int = 0) -> None:
        """Allocate the workspaces for so many samples to train on, and to evaluate or predict, if they are too small.

        Without a `task` samples have no targets. `copies` are further bytes that this rank will need. Collective.
        Raises `SettingError` on every rank: the memory of one does not suffice.
        """
        batch_size, microbatches = self.config.batch_size, self.layout.microbatches
        largest = {self.training: ceil(batch_size / microbatches), self.forward: self.forward_size(batch_size)}
        needed = {self.forward: min(self.forward_size(forward), forward)}
        needed[self.training] = max(needed.get(self.training, 0), ceil(min(batch_size, training) / microbatches))
        growing = {  # twofold at least, so that workspaces seldom grow where data do
            item: max(count, min(2 * item.most, largest[item])) for item, count in needed.items() if count > item.most
        }
        if not growing:
            return
        if self.training in growing:
            held, samples = self.memory_held, growing[self.training] * microbatches
            unwritten = 0 if self.updates else held.optimizer_bytes + sum(chunk.replica.nbytes for chunk in self.chunks)
            sizes = {"held": held.total, "more": copies, "unwritten": unwritten}
            labels = task == "classification"
            require_memory(self.config, self.grid, self.layout, self.kernels, samples, labels=labels, **sizes)

        def allocate() -> None:
            try:
                for executors, count in growing.items():
                    executors.grow(count)
                    executors.runtimes_for(task)
            except MemoryError as error:
                raise does_not_fit(self.config, of_samples=True) from error

        for executors in growing:
            executors.most = 0  # if one rank fails, none has them
        agree(self.grid.world, allocate)
        for executors, count in growing.items():
            executors.most = count

    def loss(self, task: str, *, weighted: bool = True) -> Callable[[StageArrays, int, HostArray], None]:
        """The function that computes the sum of the losses of a microbatch, and the gradient of the mean loss.

        The mean is that over the minibatch of all ranks, whatever the distribution of the samples.
        """
        kernels, classifies = self.kernels, resolve_loss(self.config.model, task) == "cross_entropy"

        def loss(arrays: StageArrays, size: int, total: HostArray) -> None:
            outputs, targets, gradient, scale = arrays.outputs, arrays.targets, arrays.output_gradient, 1.0 / size
            if not classifies:
                kernels.mean_squared_error(outputs, targets.T, scale, gradient, total)
            elif weighted and self.class_weights is not None:
                _weighted_cross_entropy(self.class_weights, outputs, targets, arrays.columns, scale, gradient, total)
            else:
                kernels.cross_entropy(outputs, targets, arrays.columns, scale, gradient, total)

        return loss

    def restore(self, write: Callable[[], None]) -> None:
        """Fill weights and states with `write` on the ranks that own them; its errors are raised on all ranks."""
        is_leader = all(chunk.replica.is_leader for chunk in self.chunks)
        self._publish()
        agree(self.grid.world, write if is_leader else lambda: None)
        for chunk, state in zip(self.chunks, self.states, strict=True):
            chunk.replica.synchronize_state(state)
        self.is_updating = False

    def reset_optimizer(self) -> None:
        """Set the optimizer state to that before the first update."""

        def reset() -> None:
            for state in self.states:
                state.updates = state.delay = 0
                for array in state.slots.values():
                    array[...] = 0

        self.restore(reset)

    def _publish(self) -> None:
        for chunk in self.chunks:
            chunk.replica.publish()

    def free(self) -> None:
        """Free shared memory; the engine is unusable afterwards, and so are its checkpoint writers."""
        self.chunks.clear()
        if self._sharing is not None:
            self._sharing.memory.free()

    def memory(self, task: str) -> MemoryBreakdown:
        """Bytes on this rank, including all buffers for training on data of `task`; on a GPU without evaluations."""
        if not self.training.runtimes:
            self.reserve(task, training=self.config.batch_size)
        return MemoryBreakdown.of_rank(self.chunks, self.states, self.training.runtimes_for(task))

    @property
    def memory_held(self) -> MemoryBreakdown:
        """Bytes allocated on this rank so far."""
        runtimes = [runtime for executors in {self.training, self.forward} for runtime in executors.runtimes]
        return MemoryBreakdown.of_rank(self.chunks, self.states, runtimes)

    def stop(self, what: str, step: int) -> NoReturn:
        """Raise `NonFiniteLossError` with the norms of the weights; every rank calls it."""
        for runtime in self.training.runtimes:
            runtime.finish()  # completes the sends: an exact method stops after the last message of the minibatch
        norms = np.sqrt(self.squared_norms([chunk.weights for chunk in self.chunks]))
        layers = ", ".join(f"layer {index}: {norm:.3g}" for index, norm in enumerate(norms))
        raise NonFiniteLossError(
            what,
            step,
            f"norms of the weights: {layers}. "
            "Try a lower optimizer.lr, a training.clip_norm, or a warm-up; check the scale of the data. "
            "To train this trainer again, load_weights(weights, reset_optimizer=True) and set_learning_rate",
        )


class Executors:
    """Executors of an engine, compiled once for each number of minibatches, on the same workspaces.

    Attributes
    ----------
    runtimes : list of ChunkRuntime
        Of the engine's chunks; empty before `grow`.
    most : int
        Samples of the largest microbatch that the workspaces hold.
    """

    def __init__(self, engine: Engine, plans: Sequence[ChunkPlan]) -> None:
        self._engine, self._plans = engine, plans
        self.most = 0
        self.runtimes: list[ChunkRuntime] = []
        self._stores: list[WeightStore | None] = [None] * len(plans)  # weight versions, which stay
        self.executor = lru_cache(KEPT_EXECUTORS)(self._make_executor)

    def grow(self, samples: int) -> None:
        """Allocate the workspaces for microbatches of `samples`, in place of smaller ones."""
        for runtime in self.runtimes:
            runtime.finish()
        self.executor.cache_clear()
        self.runtimes = []  # frees the smaller ones
        engine, config = self._engine, self._engine.config
        for plan, chunk, state, store in zip(self._plans, engine.chunks, engine.states, self._stores, strict=True):
            before = self.runtimes[-1] if self.runtimes else None
            own = plan, engine.grid, chunk, config.optimizer, state
            self.runtimes.append(ChunkRuntime(*own, samples=samples, weights=store, before=before))
        self._stores = [runtime.weights for runtime in self.runtimes]

    def _make_executor(self, task: str | None, count: int, *, trains: bool) -> Executor:
        """The executor for `count` minibatches, for training or for forward passes only; no `task`: no targets."""
        layout = self._engine.layout
        note = self._engine.note_weights if trains else None
        return self.new_executor(layout.schedule if trains else layout.forward_schedule, task, count, note)

    def new_executor(
        self, schedule: Callable[[int], Schedule], task: str | None, count: int, note: NoteWeights | None = None
    ) -> Executor:
        """An executor of other instructions than those of the layout, on the same workspaces."""
        grid, labels = self._engine.grid, None if task is None else task == "classification"
        program = make_program(schedule, grid.pipeline_rank, grid.pipeline, count)
        loss = None if task is None else self._engine.loss(task)
        return Executor(program, grid, self.runtimes_for(task), loss, note, labels)

    def runtimes_for(self, task: str | None) -> list[ChunkRuntime]:
        """The runtimes, with workspace for the targets of a task."""
        if task is not None:
            for runtime in self.runtimes:
                runtime.workspace.expect_targets(labels=task == "classification")
        return self.runtimes


def _weighted_cross_entropy(
    weights: HostArray,
    logits: HostArray,
    labels: HostArray,
    columns: HostArray,
    scale: float,
    gradient: HostArray,
    loss: HostArray,
) -> None:
    """`Kernels.cross_entropy` with each loss times the weight of its class; on the host only."""
    from scipy.special import log_softmax

    of_samples, logarithms = weights[labels], log_softmax(logits, axis=0)
    np.multiply(np.exp(logarithms), of_samples * scale, out=gradient)
    gradient[labels, columns] -= of_samples * scale
    loss[0] = -np.sum(of_samples * logarithms[labels, columns])


@lru_cache(1)
def _lint(layout: Layout, method: Method) -> None:
    """Check the rules of the schedules of a layout, once for the ranks of a process."""
    from hybridnn.pipeline.checks.lint import lint  # not needed on one stage

    for schedule in layout.largest_schedules():
        lint(schedule)
