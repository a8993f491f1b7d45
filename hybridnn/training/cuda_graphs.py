"""Steps that a device records once for every size of minibatch, and replays from then on.

A replay launches everything at once, where launching one by one takes longer than small networks compute. It repeats
what was recorded with the same arguments, so what changes from step to step lies at fixed places of the device: which
samples the minibatch has, and the numbers of the update.

Batch ranks record the sums of their gradients with the rest, as far as these are calls of NCCL. Then a recording is
collective, and so is every replay; that all ranks do the same follows from what decides it, the sizes of the global
minibatches, being the same on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from weakref import finalize, ref

import numpy as np

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import capture_calls, replay_calls
from hybridnn.kernels.backend import Array
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.stage import Stage
from hybridnn.pipeline.execution.executor import Executor
from hybridnn.training.data_split import DeviceSamples
from hybridnn.training.loading import DeviceLoader
from hybridnn.training.minibatch_losses import MinibatchLosses
from hybridnn.training.work import TrainingWork

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
        if self._samples is None or self._samples() is not loader.samples:
            self.free()
            self._samples = ref(loader.samples)
        gather = _FixedLoader(self._indices, loader)
        self._state.device_scalars = self._scalars
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
                self._kernels.copy(loader.indices(number), self._indices[:size])
                self._kernels.write_scalars(self._scalars, self._optimizer.step_scalars(self._state, rates(number)))
                start = perf_counter()
                self._step(size, partial(executor.run, work))
                self._group.recorder.end_compute("step", start)
                losses.note(number, self._stage.replica.total_loss)
                updated(number)
                yield number
        finally:
            self._state.device_scalars = None

    def free(self) -> None:
        """Give up all recordings."""
        self._samples = None
        self._tried.clear()
        self._replays.clear()

    def _step(self, size: int, run: Callable[[], None]) -> None:
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


class _FixedLoader:
    """Gathers the samples whose numbers lie at one place."""

    def __init__(self, indices: Array, loader: DeviceLoader) -> None:
        self._indices, self._gather = indices, loader.gather

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        self._gather(self._indices, start, stop, x, y)
