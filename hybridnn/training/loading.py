"""How the samples of minibatches come to where they are computed on.

On the CPU they are read straight into the arrays of the step. A device has all samples, where they fit, and gathers
those of a minibatch by their numbers, which were brought to it once per epoch: no step waits for the host. Where they
do not fit, or come by MPI, the host reads each minibatch, at most two ahead of the device, which copies them over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.partition import block_slice
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.parallel.distribution import Distributor
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.data_split import DataSplit, DeviceSamples

Minibatches = Sequence[NDArray[np.int64]]


class Loader(Protocol):
    """Brings samples of minibatches."""

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """Fill `x` or `y` with this rank's block of the samples `start` to `stop` of a minibatch."""
        ...


def make_loader(
    part: DataSplit, minibatches: Minibatches, distributor: Distributor, kernels: Kernels, grid: ProcessGrid
) -> Loader:
    """The loader for the minibatches of a part.

    Parameters
    ----------
    part : Part
    minibatches : sequence of ndarray of int64
        Samples of every minibatch.
    distributor : Distributor
    kernels : Kernels
    grid : ProcessGrid
    """
    if part.on_device is not None:
        return DeviceLoader(part.on_device, minibatches, kernels, grid)
    host = _HostLoader(part, minibatches, distributor)
    return host if kernels.on_host else _StagedLoader(host, kernels)


@dataclass(frozen=True)
class _HostLoader:
    """Samples are read where they are used."""

    part: DataSplit
    minibatches: Minibatches
    distributor: Distributor

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        self.distributor.fetch(self.part.rows, self.minibatches[minibatch][start:stop], x, y)


@dataclass(frozen=True)
class _StagedLoader:
    """The host reads samples into memory that the device copies from, while that computes."""

    host: _HostLoader
    kernels: Kernels

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        with ExitStack() as copied:
            rooms = (None if array is None else copied.enter_context(self.kernels.filling(array)) for array in (x, y))
            self.host.load(minibatch, start, stop, *rooms)


class DeviceLoader:
    """The device gathers samples that it has.

    Parameters
    ----------
    samples : DeviceSamples
    minibatches : sequence of ndarray of int64
        Samples of every minibatch.
    kernels : Kernels
    grid : ProcessGrid

    Attributes
    ----------
    samples : DeviceSamples
    """

    def __init__(self, samples: DeviceSamples, minibatches: Minibatches, kernels: Kernels, grid: ProcessGrid) -> None:
        self.samples, self._kernels = samples, kernels
        self._parts, self._part = grid.batch, grid.batch_rank
        self._order = kernels.to_device(np.concatenate(minibatches).astype(np.int64, copy=False))
        self._firsts = list(accumulate(map(len, minibatches), initial=0))

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """See `Loader.load`."""
        self.gather(self.indices(minibatch), start, stop, x, y)

    def indices(self, minibatch: int) -> Array:
        """Numbers of the samples of a minibatch, of all ranks."""
        return self._order[self._firsts[minibatch] : self._firsts[minibatch + 1]]

    def gather(self, indices: Array, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """As `load`, of a minibatch with the samples that `indices` tells."""
        block = block_slice(stop - start, self._parts, self._part)
        own = indices[start + block.start : start + block.stop]
        if x is not None:
            self._kernels.gather_rows(self.samples.x, own, x)
        if y is not None:
            self._kernels.gather_rows(self.samples.y, own, y)
