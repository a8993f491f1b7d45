"""Steps that a device records once for every size of minibatch, and replays from then on.

A replay launches everything at once, where launching one by one takes longer than small networks compute. It repeats
what was recorded with the same arguments, so what changes from step to step lies at fixed places of the device: which
samples the minibatch has, and the numbers of the update.

Batch ranks record the sums of their gradients with the rest, as far as these are calls of NCCL. Then a recording is
collective, and so is every replay; that all ranks do the same follows from what decides it, the sizes of the global
minibatches, being the same on all.
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
from hybridnn.parallel.stage import Stage
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.training.data_split import DeviceSamples

if TYPE_CHECKING:
    from typing_extensions import Self

Replay = Callable[[], None]
Record = Callable[[Callable[[], None]], Replay]
"""Keeps what a function would put in line on the device, and returns what puts it there."""


class CudaGraphSteps:
    """Steps that were recorded; those on samples that lie elsewhere are recorded anew.

    Parameters
    ----------
    record : Record
    stage : Stage
    optimizer : Optimizer
    state : OptimizerState
    batch_size : int
        Most samples of a minibatch, over all ranks.
    group : Group
        The batch group; its recorder is told of every step.
    """

    def __init__(
        self,
        record: Record,
        stage: Stage,
        optimizer: Optimizer,
        state: OptimizerState,
        batch_size: int,
        group: Group,
    ) -> None:
        self._samples: ref[DeviceSamples] | None = None  # whose memory is to be had again before they are replaced
        self._record, self._stage, self._kernels = record, stage, stage.kernels
        self._optimizer, self._state, self._group = optimizer, state, group
        self._indices = self._kernels.empty((batch_size,), np.int64)
        self._scalars = self._kernels.zeros((3,), np.float64)
        self._tried: set[int] = set()
        self._replays: dict[int, Replay] = {}
        # The transport, which must end recordings before what connects the ranks, keeps the mapping alive.
        finalize(self, self._replays.clear)

    @contextmanager
    def of_samples(self, samples: DeviceSamples) -> Iterator[Self]:
        """Steps on these samples, whose learning rates and step numbers the device reads from its memory."""
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
            Launches the work of a step; captured with a minibatch whose indices lie in a fixed place.
        """
        indices = self._indices[: minibatch.size]
        self._kernels.copy(minibatch.samples, indices)
        self._kernels.write_scalars(self._scalars, self._optimizer.step_scalars(self._state, minibatch.rate))
        start = perf_counter()
        self._replay(minibatch.size, partial(run, replace(minibatch, samples=indices)))
        self._group.recorder.end_compute("step", start)

    def free(self) -> None:
        """Give up all recordings."""
        self._samples = None
        self._tried.clear()
        self._replays.clear()

    def _replay(self, size: int, run: Callable[[], None]) -> None:
        """The first step of a size is run plainly, which allocates and compiles what it needs, the second recorded.

        Where the ranks are no longer connected, all are run plainly.
        """
        if size not in self._tried or not self._group.transport.register_graphs(self._replays):
            self._tried.add(size)
            run()
            return
        updates = self._state.updates
        if size in self._replays:
            self._replays[size]()
        else:
            self._replays[size] = self._recorded(run)
        self._state.updates = updates + 1

    def _recorded(self, run: Callable[[], None]) -> Replay:
        """Record a step, launch it, and return what launches it again."""
        replays: list[Replay] = []
        calls = capture_calls(self._group.recorder, lambda: replays.append(self._record(run)))
        replays[0]()  # its calls are noted: while it was recorded nothing was computed
        return partial(replay_calls, self._group.recorder, calls, replays[0])
