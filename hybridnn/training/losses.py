"""Losses of the minibatches of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from hybridnn.checkpoints.progress import Progress
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch


def broadcast_from_last_stage(grid: ProcessGrid, array: Array) -> None:
    """Broadcast an array from the last stage, on whose ranks it is equal, to all ranks; collective over the grid."""
    if grid.pipeline > 1:
        grid.world.broadcast(array, grid.rank_at(grid.pipeline - 1, 0, 0))


class MinibatchLosses:
    """Mean losses of minibatches, in their order.

    `note` is asynchronous on a device; `fetch` synchronizes with it.

    Parameters
    ----------
    kernels : Kernels
        Of the device that computes the losses.
    minibatches : sequence of Minibatch
        Consecutive minibatches.
    stop : callable
        Called with a message if a loss is not finite; raises.

    Attributes
    ----------
    means : list of float
        Mean losses fetched so far.
    """

    def __init__(
        self, kernels: Kernels, grid: ProcessGrid, minibatches: Sequence[Minibatch], stop: Callable[[str], None]
    ) -> None:
        self._kernels, self._grid, self._minibatches, self._stop = kernels, grid, minibatches, stop
        self._first = minibatches[0].number
        self._totals = kernels.zeros((len(minibatches),), np.float64)
        self.means: list[float] = []

    def note(self, minibatch: Minibatch, total: Array) -> None:
        """Store the sum of a minibatch's losses, shape (1,); asynchronous on a device."""
        index = minibatch.number - self._first
        self._kernels.copy(total, self._totals[index : index + 1])

    def add(self, minibatch: Minibatch, total: Array) -> None:
        """Store and fetch the loss of the next minibatch, which has been computed.

        Raises
        ------
        NonFiniteLossError
            On every rank.
        """
        if self._grid.pipeline > 1:
            self.note(minibatch, total)
            self.fetch(len(self.means) + 1)
        else:
            self._append(minibatch, total.item())

    def fetch(self, count: int) -> None:
        """Fetch the means of the first `count` minibatches; collective over a grid with several stages.

        Raises
        ------
        NonFiniteLossError
            On every rank.
        """
        fetched = len(self.means)
        if count <= fetched:
            return
        totals = self._kernels.to_host(self._totals[fetched:count])
        broadcast_from_last_stage(self._grid, totals)
        for minibatch, total in zip(self._minibatches[fetched:count], totals.tolist(), strict=True):
            self._append(minibatch, total)

    def _append(self, minibatch: Minibatch, total: float) -> None:
        mean = total / minibatch.size
        if not isfinite(mean):
            self._stop(f"the loss became {mean} in step {minibatch.number + 1} at learning rate {minibatch.rate:g}")
        self.means.append(mean)

    def progress(self, before: Progress, count: int) -> Progress:
        """Progress `count` minibatches after `before`; calls `fetch`."""
        self.fetch(count)
        sizes = [minibatch.size for minibatch in self._minibatches[:count]]
        loss_sum = before.loss_sum
        for mean, size in zip(self.means[:count], sizes, strict=True):
            loss_sum += mean * size
        return Progress(
            step=before.step + count,
            epoch=before.epoch,
            minibatches=before.minibatches + count,
            loss_sum=loss_sum,
            samples=before.samples + sum(sizes),
        )
