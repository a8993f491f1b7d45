"""Samples on the device that trains, kept from fit to fit: neither they nor steps recorded on them come anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hybridnn.datasets import ArrayRows, Rows
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.data_split import DataSplit, DeviceSamples
from hybridnn.training.sample_digests import digest_of

LARGEST_SHARE = 8
"""Samples take at most this part of a device's free memory: several ranks may share the device, and there are two
parts of the data."""

COPY_ROWS = 1 << 14

Layout = tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]
"""Shape and dtype of inputs and of targets; None for what a rank does not read."""


@dataclass(frozen=True)
class _Kept:
    """Samples on the device, and what tells whether they are those that are wanted."""

    key: bytes | Rows
    samples: DeviceSamples

    def is_of(self, key: bytes | Rows) -> bool:
        return self.key is key or (isinstance(key, bytes) and self.key == key)


class DeviceSampleCache:
    """The samples of the last fit on this rank's device; nothing where that is the host.

    A stage of a pipeline takes what it reads: the first the inputs, the last the targets. Its batch ranks all do or
    none does, as they may record steps, which must be the same for all.

    Parameters
    ----------
    kernels : Kernels
    grid : ProcessGrid
    dtype : dtype
        Of inputs and targets that are numbers.
    """

    def __init__(self, kernels: Kernels, grid: ProcessGrid, dtype: np.dtype[Any]) -> None:
        self._kernels, self._grid, self._dtype = kernels, grid, dtype
        self._kept: dict[str, _Kept] = {}

    def place(self, part: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """The same part, with its samples on this rank's device too, where they fit; collective.

        Parameters
        ----------
        part : Part
        given : object
            What the user called the samples: rows of a data set, which never change, or an array that may have changed.
        keep_as : str or None
            Keep the samples under this name, instead of those that have it. Their memory is used again where it fits,
            and recorded steps go on with the new samples.
        """
        rows = part.rows
        if rows is None or self._kernels.on_host:
            return part
        # An array of the user's may be written to and handed over again, so it is known by what it holds now.
        key = rows if rows is given or not isinstance(rows, ArrayRows) else digest_of(rows.x, rows.y)
        found = next((kept for kept in self._kept.values() if kept.is_of(key)), None)
        if not self._on_any(found is None):
            assert found is not None
            if keep_as is not None:
                self._kept[keep_as] = found
            return replace(part, on_device=found.samples)
        samples = self._room(keep_as, self._layout(rows))
        if samples is None:
            return part
        for start in range(0, rows.samples, COPY_ROWS):
            stop = min(start + COPY_ROWS, rows.samples)
            read_block = partial(rows.take, np.arange(start, stop))
            blocks = (None if array is None else array[start:stop] for array in (samples.x, samples.y))
            _bring(self._kernels, read_block, *blocks)
        if keep_as is not None:
            self._kept[keep_as] = _Kept(key, samples)
        return replace(part, on_device=samples)

    def free(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()

    def _room(self, keep_as: str | None, layout: Layout) -> DeviceSamples | None:
        """Memory of the device for samples: that of those they replace, or new; None where a rank has too little."""
        old = None if keep_as is None else self._kept.pop(keep_as, None)
        is_shared = old is not None and any(kept.samples is old.samples for kept in self._kept.values())
        if old is not None and not is_shared and _layout_of(old.samples) == layout:
            return old.samples
        del old
        needed = sum(prod(one[0]) * one[1].itemsize for one in layout if one is not None)
        if self._on_any(needed > self._kernels.free_bytes() // LARGEST_SHARE):
            return None
        return DeviceSamples(*(None if one is None else self._kernels.empty(*one) for one in layout))

    def _layout(self, rows: Rows) -> Layout:
        targets = self._dtype if rows.targets_shape else np.dtype(np.int64)
        inputs_here, targets_here = self._grid.pipeline_rank == 0, self._grid.pipeline_rank == self._grid.pipeline - 1
        return (
            ((rows.samples, rows.features), self._dtype) if inputs_here else None,
            ((rows.samples, *rows.targets_shape), targets) if targets_here else None,
        )

    def _on_any(self, mine: bool) -> bool:
        """Whether so it is on any batch rank."""
        flags = np.array([mine], np.int64)
        self._grid.batch_group.allreduce(flags, "max")
        return bool(flags[0])


def _layout_of(samples: DeviceSamples) -> Layout:
    return tuple(None if array is None else (array.shape, array.dtype) for array in (samples.x, samples.y))


def _bring(kernels: Kernels, read: Callable[..., None], *arrays: Array | None) -> None:
    """Let `read` fill memory of the host, and copy it to `arrays` of the device, those that are not None."""
    rooms = [None if array is None else np.empty(array.shape, array.dtype) for array in arrays]
    read(*rooms)
    for room, array in zip(rooms, arrays, strict=True):
        if room is not None:
            kernels.put(room, array)
