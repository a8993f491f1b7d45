"""The engine of a GPU: samples in its memory, evaluation in large blocks, and steps as CUDA graphs.

A step is captured once per size of minibatch, and replayed in all later steps of this size.

A replay launches all kernels of a step at once; for small networks, launching them one by one takes longer than the
computation. A replay repeats the captured calls with the same arguments. What changes from step to step is therefore on
the device for a whole epoch: the order of the samples, the scalars of the updates, and memory for the losses. The
device counts the steps, so that a step is one launch by the host.

With several batch ranks and NCCL, the graph includes the all-reduce of the gradients. Captures and replays are then
collective; all ranks capture the same steps because the decision depends only on the sizes of the global minibatches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, cast
from weakref import finalize, ref

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Call, CapturedCalls, Recorder, capture_calls
from hybridnn.gpu.cupy_kernels import CupyKernels
from hybridnn.gpu.device_samples import (
    DeviceSampleCache,
    DeviceSamples,
    DeviceSplit,
    PartOfOrder,
    gather_on_device,
    read_and_copy,
)
from hybridnn.nn.kernels import Array
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.execution.executor import Executor, Minibatch
from hybridnn.pipeline.schedules.instructions import Update
from hybridnn.pipeline.schedules.program import plan_chunk
from hybridnn.training.data_split import DataSplit
from hybridnn.training.device import TrainingDevice
from hybridnn.training.engine import Engine, Executors, Load
from hybridnn.training.epoch import MinibatchLosses

# -- steps as CUDA graphs --------------------------------------------------------------------------------------------

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]
"""Captures the device work that a function enqueues; returns a function that enqueues it again."""


class StepCapture(NamedTuple):
    """Capture of steps as CUDA graphs."""

    record: Capture
    required: bool = True  # whether it is an error if steps cannot be captured, whose kernels are else launched singly


STEP = Update(0)  # the last instruction of a step stands for all in the recorder


SCALARS = 4
"""Most numbers of `StepScalars`."""


class _EpochMemory(NamedTuple):
    """Arrays of an epoch on the device, at the same addresses in all epochs."""

    order: Array  # indices of the samples of all steps
    table: Array  # `StepScalars` of every step, shape (steps, SCALARS)
    losses: Array  # shape (steps,)
    indices: Array  # of the samples of a step


class CudaGraphSteps:
    """CUDA graphs of the steps of an executor on one set of device samples; others require new captures."""

    def __init__(
        self,
        capture: StepCapture,
        chunk: ModelChunk,
        optimizer: Optimizer,
        state: OptimizerState,
        batch_size: int,
        group: Group,
    ) -> None:
        # weak: their memory is freed before they are replaced
        self._made_for: tuple[ref[DeviceSamples], ref[Executor]] | None = None
        self._chunk, self._kernels = chunk, cast("CupyKernels", chunk.kernels)
        self._record = capture.record
        self._may_fail = not capture.required and group.size == 1  # one of several ranks cannot leave the others
        self._optimizer, self._state, self._group = optimizer, state, group
        self._epoch: _EpochMemory | None = None
        self._step = self._kernels.zeros((1,), np.int64)
        self._batch_size = batch_size
        self._scalars = self._kernels.zeros((SCALARS,), state.scratch.dtype)
        self._tried: set[int] = set()
        self._failed = False
        self._replays: dict[int, Callable[[object], None]] = {}
        # The transport keeps a reference to this mapping: it must free the graphs before it disconnects the ranks.
        finalize(self, self._replays.clear)

    def begin(self, samples: DeviceSamples, minibatches: Sequence[Minibatch], executor: Executor) -> Array:
        """Begin the steps of `executor` on consecutive `minibatches` of `samples`.

        All but the last have the batch size. Their indices, and the scalars of their updates, are copied to the device,
        which writes the sum of the losses of every step to the array that is returned.
        """
        kernels, order = self._kernels, minibatches[0].samples.order
        if self._made_for is None or self._made_for[0]() is not samples or self._made_for[1]() is not executor:
            self.free()
            self._made_for = ref(samples), ref(executor)
        if self._epoch is None or len(self._epoch.table) < len(minibatches) or self._epoch.order.size < order.size:
            self._free_graphs()
            self._epoch = _EpochMemory(
                kernels.empty(order.shape, np.int64),
                kernels.empty((len(minibatches), SCALARS), self._scalars.dtype),
                kernels.zeros((len(minibatches),), np.float64),
                kernels.empty((min(self._batch_size, order.size),), np.int64),
            )
        kernels.copy(order, self._epoch.order[: order.size])
        kernels.put(self._scalars_of(minibatches), self._epoch.table[: len(minibatches)])
        self._step[...] = 0
        return self._epoch.losses

    def _scalars_of(self, minibatches: Sequence[Minibatch]) -> NDArray[Any]:
        """Scalars of the next updates, shape (minibatches, 4), in the weights' dtype: others would promote ufuncs."""
        table, state = np.zeros((len(minibatches), SCALARS), self._scalars.dtype), replace(self._state)
        for row, minibatch in zip(table, minibatches, strict=True):
            scalars = self._optimizer.step_scalars(state, minibatch.rate)
            row[: len(scalars)] = scalars
            state.updates += 1
        return table

    def step(self, minibatch: Minibatch, run: Callable[[Minibatch], None]) -> None:
        """Train on the next minibatch of the epoch.

        `run` enqueues the work of a step; it is captured with a minibatch whose indices have a fixed address.
        """
        start, about = perf_counter(), (STEP, minibatch.number)
        self._state.device_scalars = self._scalars
        try:
            self._replay(minibatch.size, partial(self._enqueue, minibatch, run), about)
        finally:
            self._state.device_scalars = None
        self._group.recorder.end_compute("step", start, about)

    def _enqueue(self, minibatch: Minibatch, run: Callable[[Minibatch], None]) -> None:
        """Enqueue the work of the step that the device has counted to."""
        assert self._epoch is not None
        order, table, losses, indices = self._epoch
        indices = indices[: minibatch.size]
        self._kernels.begin_step(self._step, order, self._batch_size, indices, table, self._scalars)
        run(replace(minibatch, samples=PartOfOrder(indices, 0)))
        self._kernels.end_step(self._step, self._chunk.replica.total_loss, losses)

    def free(self) -> None:
        """Free all graphs, and the memory of an epoch."""
        self._made_for = self._epoch = None
        self._free_graphs()

    def _free_graphs(self) -> None:
        """Free all graphs."""
        self._tried.clear()
        self._replays.clear()

    def _replay(self, size: int, run: Callable[[], None], about: object) -> None:
        """Run the first step of a size, which allocates and compiles; capture the second; replay later ones.

        Steps are run without capture if the ranks are no longer connected, and after a capture that failed and may
        fail. `about` is the purpose of replayed calls.
        """
        is_first = size not in self._tried
        if is_first or self._failed or not self._group.transport.register_graphs(self._replays):
            self._tried.add(size)
            run()
            return
        updates = self._state.updates
        if size in self._replays:
            self._replays[size](about)
        elif not self._capture(size, run):
            self._state.updates = updates
            run()
            return
        self._state.updates = updates + 1

    def _capture(self, size: int, run: Callable[[], None]) -> bool:
        """Capture a step and run it once; False if CUDA refuses it, which then has computed nothing."""
        replays: list[Replay] = []
        try:
            calls = capture_calls(self._group.recorder, lambda: replays.append(self._record(run)))
        except Exception as error:  # CuPy raises different exceptions
            if not self._may_fail:
                raise
            self._failed = True
            what = f"CUDA cannot capture a step ({error}): kernels are launched one by one"
            warnings.warn(what, RuntimeWarning, stacklevel=2)
            return False
        replays[0]()  # the capture computed nothing, but its calls are already in the recorder
        self._replays[size] = partial(_replay_calls, self._group.recorder, calls, replays[0])
        return True


def _replay_calls(recorder: Recorder, calls: CapturedCalls, work: Callable[[], None], about: object) -> None:
    """Run `work`, which replays `calls` in a CUDA graph, and note them.

    Their purpose is `about`, the replayed step, not the captured one. They count in the totals and in the progress of
    each group. The time of `work` is the time to begin them, so each has a duration of zero.
    """
    for record, _ in calls:
        call = Call._make(record)._replace(start=perf_counter(), about=about)
        if call.number:  # 0 for messages
            call.channel.entered += 1
            call = call._replace(number=call.channel.entered)
            call.channel.recent.append(call)
        recorder.current_call = call
    work()
    for (name, channel, *_), sent in calls:
        recorder.end_communication(name, channel.axis, perf_counter(), sent, 1, about)


# -- engine ----------------------------------------------------------------------------------------------------------

EVALUATED_SAMPLES, EVALUATION_BYTES = 1 << 12, 1 << 28
"""Most samples of a forward pass, over all ranks, and most bytes of its workspaces.

The launches of a small minibatch take longer than its computation.
"""


@dataclass(frozen=True)
class GpuDevice(TrainingDevice):
    """A GPU; without `capture` its kernels are launched one by one."""

    capture: StepCapture | None = field(default=None, repr=False)

    def _engine(self, *arguments: Any, **options: Any) -> Engine:
        return GpuEngine(*arguments, capture=self.capture, **options)


class GpuEngine(Engine):
    """Weights, optimizer state and workspaces of this rank on its GPU.

    `capture` captures steps as CUDA graphs, on grids of batch ranks only.
    """

    def __init__(self, *arguments: Any, capture: StepCapture | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config, grid, layout = self.config, self.grid, self.layout
        self.samples = DeviceSampleCache(self.kernels, grid, self.dtype, layout.last_stage)
        self._graphs: CudaGraphSteps | None = None
        if capture is not None:
            chunk, state = self.chunks[0], self.states[0]
            self._graphs = CudaGraphSteps(capture, chunk, config.optimizer, state, config.batch_size, grid.batch_group)
        if grid.pipeline == 1:  # forward passes of more samples, in workspaces of their own
            forward = layout.largest_schedules()[1]
            plans = [plan_chunk((forward, forward), 0, index) for index in range(layout.chunks)]
            self.forward = Executors(self, plans)

    def place(self, split: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """As `Engine.place`: on the device if they fit, unless rank 0 scatters them from host memory; collective."""
        return split if self.config.distribution != "local" else self.samples.place(split, given, keep_as)

    def _loading(self, split: DataSplit, batches: Sequence[NDArray[np.int64]]) -> tuple[Load, Sequence[Any]]:
        if isinstance(split, DeviceSplit):
            return gather_on_device(split.on_device, batches, self.kernels, self.grid)
        load, samples = super()._loading(split, batches)
        return read_and_copy(load, self.kernels), samples

    def train(self, split: DataSplit, minibatches: Sequence[Minibatch], losses: MinibatchLosses) -> Iterator[Minibatch]:
        """As `Engine.train`; steps on samples in device memory are replayed as CUDA graphs."""
        if self._graphs is None or not isinstance(split, DeviceSplit):
            yield from super().train(split, minibatches, losses)
            return
        executor = self._begin(split.task, minibatches)
        losses.totals = self._graphs.begin(split.on_device, minibatches, executor)
        for minibatch in minibatches:
            self.is_updating = True  # a captured step is one call
            self._graphs.step(minibatch, lambda captured: self._step(executor, captured, lambda captured, total: None))
            self.is_updating = False
            yield minibatch

    def forward_size(self, samples: int) -> int:
        """Samples of a forward pass: those of a microbatch, or without a pipeline more."""
        microbatch, sizes = super().forward_size(samples), self.config.model.sizes
        if self.grid.pipeline > 1:
            return microbatch
        bytes_per_sample = (sum(sizes) + 2 * max(sizes)) * self.dtype.itemsize
        return max(microbatch, min(EVALUATED_SAMPLES, EVALUATION_BYTES // bytes_per_sample))

    def free(self) -> None:
        """As `Engine.free`; also frees samples on the device and CUDA graphs."""
        self.samples.free()
        if self._graphs is not None:
            self._graphs.free()
        super().free()
