"""Steps of a single rank that its device records once for every size of minibatch, and replays from then on.

A replay launches everything at once, where launching one by one takes longer than small networks compute. It repeats
what was recorded with the same arguments, so what changes from step to step lies at fixed places of the device: which
samples the minibatch has, and the numbers of the update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from hybridnn.comm.recorder import Recorder
from hybridnn.kernels.backend import Array
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.stage import Stage
from hybridnn.pipeline.execution.executor import Executor
from hybridnn.training.loading import DeviceLoader
from hybridnn.training.minibatch_losses import MinibatchLosses
from hybridnn.training.part import DeviceSamples
from hybridnn.training.work import TrainingWork

__all__ = ["Record", "RecordedSteps"]

Replay = Callable[[], None]
Record = Callable[[Callable[[], None]], Replay]
"""Keeps what a function would put in line on the device, and returns what puts it there."""


class RecordedSteps:
    """Steps that were recorded; those on other samples are recorded anew.

    Parameters
    ----------
    record : Record
    stage : Stage
    optimizer : Optimizer
    state : OptimizerState
    batch_size : int
        Most samples of a minibatch.
    recorder : Recorder
        Told of every step.
    """

    def __init__(
        self,
        record: Record,
        stage: Stage,
        optimizer: Optimizer,
        state: OptimizerState,
        batch_size: int,
        recorder: Recorder,
    ) -> None:
        self._samples: DeviceSamples | None = None
        self._record, self._stage, self._kernels = record, stage, stage.kernels
        self._optimizer, self._state, self._recorder = optimizer, state, recorder
        self._indices = self._kernels.empty((batch_size,), np.int64)
        self._numbers = self._kernels.zeros((3,), np.float64)
        self._tried: set[int] = set()
        self._replays: dict[int, Replay] = {}

    def train(
        self,
        executor: Executor,
        loader: DeviceLoader,
        sizes: Sequence[int],
        loss_name: str,
        rates: Callable[[int], float],
        losses: MinibatchLosses,
        reduced: Callable[[], None],
        updated: Callable[[int], None],
    ) -> Iterator[int]:
        """One update on each minibatch; yields their numbers.

        Parameters
        ----------
        executor : Executor
            Of one minibatch.
        loader : DeviceLoader
            Knows which samples each of them has, and gathers them.
        sizes : sequence of int
            Samples of every minibatch.
        loss_name, rates, losses, updated
            As for `Engine.train`.
        reduced : callable
            Looks at the gradients, and changes them, before they are applied; recorded with the rest.
        """
        if loader.samples is not self._samples:
            self._samples, self._tried, self._replays = loader.samples, set(), {}
        gather = _FixedLoader(self._indices, loader)
        self._state.numbers = self._numbers
        try:
            for number, size in enumerate(sizes):
                work = TrainingWork(
                    gather,
                    number,
                    [size],
                    loss_name,
                    self._kernels,
                    lambda _, number=number: rates(number),  # type: ignore[misc]
                    lambda _: reduced(),
                    lambda _: None,
                )
                self._kernels.copy(loader.indices(number, 0, size), self._indices[:size])
                self._kernels.write_numbers(self._numbers, self._optimizer.step_numbers(self._state, rates(number)))
                start = perf_counter()
                self._step(size, partial(executor.run, work))
                self._recorder.end_compute("step", start)
                losses.note(number, self._stage.replica.total_loss)
                updated(number)
                yield number
        finally:
            self._state.numbers = None

    def _step(self, size: int, run: Callable[[], None]) -> None:
        """The first step of a size is run plainly, which allocates and compiles what it needs, the second recorded."""
        if size not in self._tried:
            self._tried.add(size)
            run()
            return
        updates = self._state.updates
        if size not in self._replays:
            self._replays[size] = self._record(run)  # nothing is computed
        self._replays[size]()
        self._state.updates = updates + 1


class _FixedLoader:
    """Gathers the samples whose numbers lie at one place."""

    def __init__(self, indices: Array, loader: DeviceLoader) -> None:
        self._indices, self._gather = indices, loader.gather

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        self._gather(self._indices[start:stop], x, y)
