"""The engine of a GPU: samples in its memory, steps as CUDA graphs, and evaluation in large blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.gpu.cuda_graphs import CudaGraphSteps, StepCapture
from hybridnn.gpu.device_samples import DeviceSampleCache, DeviceSplit, gather_on_device, read_and_copy
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.pipeline.schedules.program import plan_chunk
from hybridnn.training.data_split import DataSplit
from hybridnn.training.device import TrainingDevice
from hybridnn.training.engine import Engine, Load
from hybridnn.training.metrics import MinibatchLosses

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

    Parameters
    ----------
    capture : StepCapture, optional
        Captures steps as CUDA graphs; only on grids of batch ranks.
    """

    def __init__(self, *arguments: Any, capture: StepCapture | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config, grid, layout = self.config, self._grid, self.layout
        self.samples = DeviceSampleCache(self._kernels, grid, self.dtype)
        self._graphs: CudaGraphSteps | None = None
        if capture is not None:
            chunk, state = self.chunks[0], self.states[0]
            self._graphs = CudaGraphSteps(capture, chunk, config.optimizer, state, config.batch_size, grid.batch_group)
        if grid.pipeline == 1:  # forward passes of more samples, in workspaces of their own
            forward = layout.largest_schedules()[1]
            plans = [plan_chunk((forward, forward), 0, index) for index in range(layout.chunks)]
            self._forward = self._executors(plans)

    def place(self, split: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """As `Engine.place`: on the device if they fit, unless rank 0 scatters them from host memory; collective."""
        return split if self.config.distribution != "local" else self.samples.place(split, given, keep_as)

    def _loading(self, split: DataSplit, batches: Sequence[NDArray[np.int64]]) -> tuple[Load, Sequence[Any]]:
        if isinstance(split, DeviceSplit):
            return gather_on_device(split.on_device, batches, self._kernels, self._grid)
        load, samples = super()._loading(split, batches)
        return read_and_copy(load, self._kernels), samples

    def train(self, split: DataSplit, minibatches: Sequence[Minibatch], losses: MinibatchLosses) -> Iterator[Minibatch]:
        """As `Engine.train`; steps on samples in device memory are replayed as CUDA graphs."""
        if self._graphs is None or not isinstance(split, DeviceSplit):
            yield from super().train(split, minibatches, losses)
            return
        executor = self._begin(split.task, minibatches)
        self._graphs.begin(split.on_device, minibatches, executor)
        losses.read_from(self._graphs.losses)  # which the device writes
        for minibatch in minibatches:
            self.is_updating = True  # a captured step is one call
            self._graphs.step(minibatch, lambda captured: self._step(executor, captured, lambda captured, total: None))
            self.is_updating = False
            yield minibatch

    def _forward_size(self, samples: int) -> int:
        """Samples of a forward pass: those of a microbatch, or without a pipeline more."""
        microbatch, sizes = super()._forward_size(samples), self.config.model.sizes
        if self._grid.pipeline > 1:
            return microbatch
        bytes_per_sample = (sum(sizes) + 2 * max(sizes)) * self.dtype.itemsize
        return max(microbatch, min(EVALUATED_SAMPLES, EVALUATION_BYTES // bytes_per_sample))

    def free(self) -> None:
        """As `Engine.free`; also frees samples on the device and CUDA graphs."""
        self.samples.free()
        if self._graphs is not None:
            self._graphs.free()
        super().free()
