"""Loading of minibatches: copying their samples to the arrays of a step.

On the CPU, samples are read directly into these arrays. A GPU holds all samples if they fit its memory, and gathers
those of a minibatch by their indices, which are copied to it once per epoch: no step waits for the host. If they do not
fit, or are received by MPI, the host reads each minibatch, at most two ahead of the device, which copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_slice
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.parallel.distribution import Distributor
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.training.data_split import DataSplit, DeviceSamples


class Loader:
    """Makes minibatches from the samples of a data split.

    Parameters
    ----------
    distributor : Distributor
        For samples that the host reads.
    kernels : Kernels
        Of the device that trains.
    """

    def __init__(self, distributor: Distributor, kernels: Kernels, grid: ProcessGrid) -> None:
        self._distributor, self._kernels, self._grid = distributor, kernels, grid

    def minibatches(
        self, split: DataSplit, batches: Sequence[NDArray[np.int64]], rates: Sequence[float], first: int = 0
    ) -> list[Minibatch]:
        """Consecutive minibatches.

        Parameters
        ----------
        batches : sequence of ndarray of int64
            Sample indices of each minibatch.
        rates : sequence of float
            Learning rates of the updates.
        first : int
            Number of the first minibatch.
        """
        samples: Sequence[Array] = batches
        if split.on_device is not None:
            load = _GatherOnDevice(split.on_device, self._kernels, self._grid).load
            order = self._kernels.to_device(np.concatenate(batches).astype(np.int64, copy=False))
            ends = list(accumulate(map(len, batches), initial=0))
            samples = [order[start:stop] for start, stop in pairwise(ends)]
        elif self._kernels.on_host:
            load = _ReadOnHost(split, self._distributor).load
        else:
            load = _ReadAndCopy(split, self._distributor, self._kernels).load
        return [
            Minibatch(number, len(batch), rate, indices, load)
            for number, (batch, rate, indices) in enumerate(zip(batches, rates, samples, strict=True), first)
        ]


class _ReadOnHost:
    """The host reads samples into the arrays of the step."""

    def __init__(self, split: DataSplit, distributor: Distributor) -> None:
        self._rows, self._fetch = split.rows, distributor.fetch

    def load(self, indices: Array, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        self._fetch(self._rows, indices[start:stop], x, y)


class _ReadAndCopy(_ReadOnHost):
    """The host reads samples into pinned memory; the device copies them while it computes."""

    def __init__(self, split: DataSplit, distributor: Distributor, kernels: Kernels) -> None:
        super().__init__(split, distributor)
        self._kernels = kernels

    def load(self, indices: Array, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        with ExitStack() as copied:
            buffers = (
                None if array is None else copied.enter_context(self._kernels.filling(array)) for array in (x, y)
            )
            super().load(indices, start, stop, *buffers)


class _GatherOnDevice:
    """The device gathers samples from its memory by indices in its memory."""

    def __init__(self, samples: DeviceSamples, kernels: Kernels, grid: ProcessGrid) -> None:
        self._samples, self._kernels = samples, kernels
        self._blocks, self._block = grid.batch, grid.batch_rank

    def load(self, indices: Array, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        block = block_slice(stop - start, self._blocks, self._block)
        own = indices[start + block.start : start + block.stop]
        if x is not None:
            self._kernels.gather_rows(self._samples.x, own, x)
        if y is not None:
            self._kernels.gather_rows(self._samples.y, own, y)
