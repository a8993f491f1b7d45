"""CUDA graphs of training steps: one capture per minibatch size, replayed in all later steps of this size.

A replay launches all kernels of a step at once; for small networks, launching them one by one takes longer than the
computation. A replay repeats the captured calls with the same arguments. What changes from step to step is therefore on
the device for a whole epoch: the order of the samples, the scalars of the updates, and memory for the losses. The
device counts the steps, so that a step is one launch by the host.

With several batch ranks and NCCL, the graph includes the all-reduce of the gradients. Captures and replays are then
collective; all ranks capture the same steps because the decision depends only on the sizes of the global minibatches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, NamedTuple
from weakref import finalize, ref

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_size
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Call, CapturedCalls, Recorder, capture_calls
from hybridnn.data import ArrayRows, Rows
from hybridnn.nn.kernels import Array, Kernels
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.execution.executor import Executor, Minibatch
from hybridnn.pipeline.schedules.instructions import Update
from hybridnn.training.data_split import DataSplit, DeviceSamples, PartOfOrder
from hybridnn.training.device import Replay, StepCapture
from hybridnn.training.metrics import MinibatchLosses
from hybridnn.training.rank_comparison import digest_of

STEP = Update(0)  # the last instruction of a step stands for all in the recorder


SCALARS = 3
"""Most numbers of `StepScalars`."""


class _EpochMemory(NamedTuple):
    """Arrays of an epoch on the device, at the same addresses in all epochs."""

    order: Array  # indices of the samples of all steps
    table: Array  # `StepScalars` of every step, shape (steps, SCALARS)
    losses: Array  # shape (steps,)


class CudaGraphSteps:
    """CUDA graphs of the steps on one set of device samples; other samples require new captures."""

    def __init__(
        self,
        capture: StepCapture,
        chunk: ModelChunk,
        optimizer: Optimizer,
        state: OptimizerState,
        batch_size: int,
        group: Group,
    ) -> None:
        self._samples: ref[DeviceSamples] | None = None  # weak: their memory is freed before they are replaced
        self._chunk, self._kernels = chunk, chunk.kernels
        self._record = capture.record
        self._may_fail = not capture.required and group.size == 1  # one of several ranks cannot leave the others
        self._optimizer, self._state, self._group = optimizer, state, group
        self._epoch: _EpochMemory | None = None
        self._step = self._kernels.zeros((1,), np.int64)
        self._indices = self._kernels.empty((batch_size,), np.int64)
        self._scalars = self._kernels.zeros((SCALARS,), np.float64)
        self._tried: set[int] = set()
        self._failed = False
        self._replays: dict[int, Callable[[object], None]] = {}
        # The transport keeps a reference to this mapping: it must free the graphs before it disconnects the ranks.
        finalize(self, self._replays.clear)

    def around(
        self, executor: Executor, samples: DeviceSamples, losses: MinibatchLosses, clip: Callable[[], None]
    ) -> GraphedExecutor:
        """An executor for minibatches of `samples` that replays steps."""
        return GraphedExecutor(self, executor, samples, losses, clip)

    def begin(self, samples: DeviceSamples, minibatches: Sequence[Minibatch]) -> None:
        """Begin the steps on consecutive `minibatches` of `samples`.

        All but the last have the batch size. Their indices, and the scalars of their updates, are copied to the device.
        """
        kernels, order = self._kernels, minibatches[0].samples.order
        if self._samples is None or self._samples() is not samples:
            self.free()
            self._samples = ref(samples)
        if self._epoch is None or len(self._epoch.table) < len(minibatches) or self._epoch.order.size < order.size:
            self._free_graphs()
            self._epoch = _EpochMemory(
                kernels.empty(order.shape, np.int64),
                kernels.empty((len(minibatches), SCALARS), np.float64),
                kernels.zeros((len(minibatches),), np.float64),
            )
        kernels.copy(order, self._epoch.order[: order.size])
        kernels.put(self._scalars_of(minibatches), self._epoch.table[: len(minibatches)])
        self._step[...] = 0

    def _scalars_of(self, minibatches: Sequence[Minibatch]) -> NDArray[np.float64]:
        """Scalars of the next updates, shape (minibatches, 3)."""
        table, state = np.zeros((len(minibatches), SCALARS)), replace(self._state)
        for row, minibatch in zip(table, minibatches, strict=True):
            scalars = self._optimizer.step_scalars(state, minibatch.rate)
            row[: len(scalars)] = scalars
            state.updates += 1
        return table

    @property
    def losses(self) -> Array:
        """Sum of the losses of every step of the epoch, on the device."""
        assert self._epoch is not None
        return self._epoch.losses

    def step(self, minibatch: Minibatch, run: Callable[[Minibatch], None]) -> None:
        """Train on the next minibatch of the epoch.

        Parameters
        ----------
        run : callable
            Enqueues the work of a step; captured with a minibatch whose indices have a fixed address.
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
        order, table, losses = self._epoch
        indices = self._indices[: minibatch.size]
        self._kernels.begin_step(self._step, order, self._indices.size, indices, table, self._scalars)
        run(replace(minibatch, samples=PartOfOrder(indices, 0)))
        self._kernels.end_step(self._step, self._chunk.replica.total_loss, losses)

    def free(self) -> None:
        """Free all graphs, and the memory of an epoch."""
        self._samples = self._epoch = None
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
            self._chunk.replica.set_samples(block_size(size, self._group.size, self._group.rank))
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


class GraphedExecutor:
    """An executor whose steps, from the gradient to the update, are replayed as CUDA graphs."""

    def __init__(
        self,
        graphs: CudaGraphSteps,
        executor: Executor,
        samples: DeviceSamples,
        losses: MinibatchLosses,
        clip: Callable[[], None],
    ) -> None:
        self._graphs, self._executor, self._samples, self._losses, self._clip = graphs, executor, samples, losses, clip

    def begin(self, minibatches: Sequence[Minibatch]) -> None:
        """As `Executor.begin`; the device writes the losses."""
        self._executor.begin(minibatches)
        self._graphs.begin(self._samples, minibatches)
        self._losses.read_from(self._graphs.losses)

    def gradient(self, minibatch: Minibatch) -> None:
        """Do the whole step."""
        self._graphs.step(minibatch, self._run)

    def update(self, minibatch: Minibatch) -> None:
        """Do nothing: `gradient` has done the update."""

    def _run(self, minibatch: Minibatch) -> None:
        self._executor.gradient(minibatch)
        self._clip()
        self._executor.update(minibatch)


# -- samples in device memory ------------------------------------------------------------------------------------------

FREE_MEMORY_DIVISOR = 8
"""Samples occupy at most 1/8 of a device's free memory: several ranks may share the device, and there are two data
splits."""

COPY_ROWS = 1 << 14

SampleLayout = tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]
"""Shape and dtype of inputs and of targets; None for those that this rank does not read."""


@dataclass(frozen=True)
class _CacheEntry:
    """Samples on the device with their key: a digest of arrays, or the rows object itself."""

    key: bytes | Rows
    samples: DeviceSamples

    def matches(self, key: bytes | Rows) -> bool:
        return self.key is key or (isinstance(key, bytes) and self.key == key)


class DeviceSampleCache:
    """The samples of the last fit in this rank's device memory; empty if the CPU trains.

    The first pipeline stage holds the inputs, the last one the targets. Either all batch ranks of a stage hold samples
    or none does, because they may capture steps, which is collective.
    """

    def __init__(self, kernels: Kernels, grid: ProcessGrid, dtype: np.dtype[Any]) -> None:
        self._kernels, self._grid, self._dtype = kernels, grid, dtype
        self._entries: dict[str, _CacheEntry] = {}

    def place(self, split: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """Copy the samples of a data split to this rank's device if they fit; collective.

        Parameters
        ----------
        given : object
            The samples as the caller passed them: `Rows`, which are immutable, or an array, which may have changed.
        keep_as : str or None
            Name of the cache entry, which replaces an earlier one of this name. If the shapes are equal, the memory is
            reused, and the captured steps remain valid for the new samples.
        """
        rows = split.rows
        if rows is None or self._kernels.on_host:
            return split
        # The caller may modify an array between two calls, so arrays are identified by a digest of their contents.
        key = rows if rows is given or not isinstance(rows, ArrayRows) else digest_of(rows.x, rows.y)
        found = next((entry for entry in self._entries.values() if entry.matches(key)), None)
        if not self._on_any(found is None):
            assert found is not None
            if keep_as is not None:
                self._entries[keep_as] = found
            return replace(split, on_device=found.samples)
        samples = self._memory_for(keep_as, self._layout(rows))
        if samples is None:
            return split
        for start in range(0, rows.samples, COPY_ROWS):
            stop = min(start + COPY_ROWS, rows.samples)
            read_block = partial(rows.take, np.arange(start, stop))
            blocks = (None if array is None else array[start:stop] for array in (samples.x, samples.y))
            _copy_to_device(self._kernels, read_block, *blocks)
        if keep_as is not None:
            self._entries[keep_as] = _CacheEntry(key, samples)
        return replace(split, on_device=samples)

    def free(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def _memory_for(self, keep_as: str | None, layout: SampleLayout) -> DeviceSamples | None:
        """Device memory for samples, reused or new; None if a batch rank has not enough."""
        old = None if keep_as is None else self._entries.pop(keep_as, None)
        is_shared = old is not None and any(entry.samples is old.samples for entry in self._entries.values())
        if old is not None and not is_shared and _layout_of(old.samples) == layout:
            return old.samples
        del old
        needed = sum(prod(array[0]) * array[1].itemsize for array in layout if array is not None)
        if self._on_any(needed > self._kernels.free_bytes() // FREE_MEMORY_DIVISOR):
            return None
        return DeviceSamples(*(None if array is None else self._kernels.empty(*array) for array in layout))

    def _layout(self, rows: Rows) -> SampleLayout:
        targets = self._dtype if rows.targets_shape else np.dtype(np.int64)
        is_first, is_last = self._grid.pipeline_rank == 0, self._grid.pipeline_rank == self._grid.pipeline - 1
        return (
            ((rows.samples, rows.features), self._dtype) if is_first else None,
            ((rows.samples, *rows.targets_shape), targets) if is_last else None,
        )

    def _on_any(self, flag: bool) -> bool:
        """Whether `flag` is True on any batch rank; collective over the batch group."""
        flags = np.array([flag], np.int64)
        self._grid.batch_group.allreduce(flags, "max")
        return bool(flags[0])


def _layout_of(samples: DeviceSamples) -> SampleLayout:
    return tuple(None if array is None else (array.shape, array.dtype) for array in (samples.x, samples.y))


def _copy_to_device(kernels: Kernels, read: Callable[..., None], *arrays: Array | None) -> None:
    """Fill host buffers with `read` and copy them to the device arrays that are not None."""
    buffers = [None if array is None else np.empty(array.shape, array.dtype) for array in arrays]
    read(*buffers)
    for buffer, array in zip(buffers, arrays, strict=True):
        if buffer is not None:
            kernels.put(buffer, array)


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
