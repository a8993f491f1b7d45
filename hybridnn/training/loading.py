"""How the samples of minibatches come to where they are computed on.

On the CPU they are read straight into the arrays of the step. A device has all samples, where they fit, and gathers
those of a minibatch by their numbers, which were brought to it once per epoch: no step waits for the host. Where they
do not fit, or come by MPI, the host reads each minibatch, at most two ahead of the device, which copies them over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.partition import block_slice
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.parallel.distribution import Distributor
from hybridnn.training.part import DeviceSamples, Part

__all__ = ["DeviceLoader", "Loader", "make_loader", "place_samples"]

Minibatches = Sequence[NDArray[np.int64]]

LARGEST_SHARE = 8
"""Samples take at most this part of a device's free memory: several ranks may share the device, and there are two
parts of the data."""

COPY_ROWS = 1 << 14


class Loader(Protocol):
    """Brings samples of minibatches."""

    def load(self, minibatch: int, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        """Fill `x` or `y` with this rank's block of the samples `start` to `stop` of a minibatch."""
        ...


def place_samples(part: Part, kernels: Kernels, grid: ProcessGrid, dtype: np.dtype[Any]) -> Part:
    """The same part, with its samples on this rank's device too, where there is one and they fit; collective.

    A stage of a pipeline takes what it reads: the first the inputs, the last the targets. Its batch ranks all do or
    none does, as they may record steps, which must be the same for all.

    Parameters
    ----------
    part : Part
    kernels : Kernels
    grid : ProcessGrid
    dtype : dtype
        Of inputs and targets that are numbers.
    """
    rows = part.rows
    if rows is None or kernels.on_host:
        return part
    shapes = (rows.samples, rows.features), (rows.samples, *rows.targets_shape)
    dtypes = dtype, dtype if rows.targets_shape else np.dtype(np.int64)
    read = grid.pipeline_rank == 0, grid.pipeline_rank == grid.pipeline - 1
    needed = sum(prod(shapes[which]) * dtypes[which].itemsize for which in range(2) if read[which])
    lacking = np.array([needed > kernels.free_bytes() // LARGEST_SHARE], np.int64)
    grid.batch_group.allreduce(lacking, "max")
    if lacking[0]:
        return part
    x, y = (kernels.empty(shapes[which], dtypes[which]) if read[which] else None for which in range(2))
    for start in range(0, rows.samples, COPY_ROWS):
        stop = min(start + COPY_ROWS, rows.samples)
        read_block = partial(rows.take, np.arange(start, stop))
        _bring(kernels, read_block, *(None if array is None else array[start:stop] for array in (x, y)))
    return replace(part, on_device=DeviceSamples(x, y))


def _bring(kernels: Kernels, read: Callable[..., None], *arrays: Array | None) -> None:
    """Let `read` fill memory of the host, and copy it to `arrays` of the device, those that are not None."""
    rooms = [None if array is None else np.empty(array.shape, array.dtype) for array in arrays]
    read(*rooms)
    for room, array in zip(rooms, arrays, strict=True):
        if room is not None:
            kernels.put(room, array)


def make_loader(
    part: Part, minibatches: Minibatches, distributor: Distributor, kernels: Kernels, grid: ProcessGrid
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

    part: Part
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
