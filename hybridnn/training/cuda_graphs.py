"""CUDA graphs of training steps: one capture per minibatch size, replayed in all later steps of this size.

A replay launches all kernels of a step at once; for small networks, launching them one by one takes longer than the
computation. A replay repeats the captured calls with the same arguments, so the inputs that change from step to step
are kept at fixed device addresses: the indices of the minibatch's samples and the scalars of the update.

With several batch ranks and NCCL, the graph includes the all-reduce of the gradients. Captures and replays are then
collective; all ranks capture the same steps because the decision depends only on the sizes of the global minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import finalize, ref

import numpy as np

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import capture_calls, replay_calls
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.training.data_split import DeviceSamples
from hybridnn.training.device import Capture, Replay

if TYPE_CHECKING:
    from typing_extensions import Self


class CudaGraphSteps:
    """CUDA graphs of the steps on one set of device samples; other samples require new captures."""

    def __init__(
        self,
        record: Capture,
        chunk: ModelChunk,
        optimizer: Optimizer,
        state: OptimizerState,
        batch_size: int,
        group: Group,
    ) -> None:
        self._samples: ref[DeviceSamples] | None = None  # weak: their memory is freed before they are replaced
        self._record, self._chunk, self._kernels = record, chunk, chunk.kernels
        self._optimizer, self._state, self._group = optimizer, state, group
        self._indices = self._kernels.empty((batch_size,), np.int64)
        self._scalars = self._kernels.zeros((3,), np.float64)
        self._tried: set[int] = set()
        self._replays: dict[int, Replay] = {}
        # The transport keeps a reference to this mapping: it must free the graphs before it disconnects the ranks.
        finalize(self, self._replays.clear)

    @contextmanager
    def of_samples(self, samples: DeviceSamples) -> Iterator[Self]:
        """Context of steps on `samples`; the update reads learning rate and step number from device memory."""
        if self._samples is None or self._samples() is not samples:
            self.free()
            self._samples = ref(samples)
        self._state.device_scalars = self._scalars
        try:
            yield self
        finally:
            self._state.device_scalars = None

    def step(self, minibatch: Minibatch, run: Callable[[Minibatch], None]) -> None:
        """Train on a minibatch.

        Parameters
        ----------
        minibatch : Minibatch
            Its samples are indices on the device.
        run : callable
            Enqueues the work of a step; captured with a minibatch whose indices have a fixed address.
        """
        indices = self._indices[: minibatch.size]
        self._kernels.copy(minibatch.samples, indices)
        self._kernels.write_scalars(self._scalars, self._optimizer.step_scalars(self._state, minibatch.rate))
        start = perf_counter()
        self._replay(minibatch.size, partial(run, replace(minibatch, samples=indices)))
        self._group.recorder.end_compute("step", start)

    def free(self) -> None:
        """Free all graphs."""
        self._samples = None
        self._tried.clear()
        self._replays.clear()

    def _replay(self, size: int, run: Callable[[], None]) -> None:
        """Run the first step of a size, which allocates and compiles; capture the second; replay later ones.

        Steps are run without capture if the ranks are no longer connected.
        """
        if size not in self._tried or not self._group.transport.register_graphs(self._replays):
            self._tried.add(size)
            run()
            return
        updates = self._state.updates
        if size in self._replays:
            self._replays[size]()
        else:
            self._replays[size] = self._capture(run)
        self._state.updates = updates + 1

    def _capture(self, run: Callable[[], None]) -> Replay:
        """Capture a step, run it once, and return a function that replays it."""
        replays: list[Replay] = []
        calls = capture_calls(self._group.recorder, lambda: replays.append(self._record(run)))
        replays[0]()  # the capture computed nothing, but its calls are already in the recorder
        return partial(replay_calls, self._group.recorder, calls, replays[0])
