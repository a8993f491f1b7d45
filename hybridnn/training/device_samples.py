"""Cache of samples in device memory: later calls of `fit` reuse them, and the CUDA graphs captured on them."""

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
from hybridnn.training.equal_ranks import digest_of

FREE_MEMORY_DIVISOR = 8
"""Samples occupy at most 1/8 of a device's free memory: several ranks may share the device, and there are two data
splits."""

COPY_ROWS = 1 << 14

Layout = tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]
"""Shape and dtype of inputs and of targets; None for those that this rank does not read."""


@dataclass(frozen=True)
class _CacheEntry:
    """Samples on the device with their key: a digest of arrays, or the rows object itself."""

    key: bytes | Rows
    samples: DeviceSamples

    def matches(self, key: bytes | Rows) -> bool:
        return self.key is key or (isinstance(key, bytes) and self.key == key)


class DeviceSampleCache:
    """The samples of the last fit in this rank's device memory; empty if the CPU trains.

    The first pipeline stage holds the inputs, the last one the targets. Either all batch ranks of a stage hold samples
    or none does, because they may capture steps, which is collective.
    """

    def __init__(self, kernels: Kernels, grid: ProcessGrid, dtype: np.dtype[Any]) -> None:
        self._kernels, self._grid, self._dtype = kernels, grid, dtype
        self._entries: dict[str, _CacheEntry] = {}

    def place(self, split: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """Copy the samples of a data split to this rank's device if they fit; collective.

        Parameters
        ----------
        given : object
            The samples as the caller passed them: `Rows`, which are immutable, or an array, which may have changed.
        keep_as : str or None
            Name of the cache entry, which replaces an earlier one of this name. If the shapes are equal, the memory is
            reused, and the captured steps remain valid for the new samples.
        """
        rows = split.rows
        if rows is None or self._kernels.on_host:
            return split
        # The caller may modify an array between two calls, so arrays are identified by a digest of their contents.
        key = rows if rows is given or not isinstance(rows, ArrayRows) else digest_of(rows.x, rows.y)
        found = next((entry for entry in self._entries.values() if entry.matches(key)), None)
        if not self._on_any(found is None):
            assert found is not None
            if keep_as is not None:
                self._entries[keep_as] = found
            return replace(split, on_device=found.samples)
        samples = self._memory_for(keep_as, self._layout(rows))
        if samples is None:
            return split
        for start in range(0, rows.samples, COPY_ROWS):
            stop = min(start + COPY_ROWS, rows.samples)
            read_block = partial(rows.take, np.arange(start, stop))
            blocks = (None if array is None else array[start:stop] for array in (samples.x, samples.y))
            _copy_to_device(self._kernels, read_block, *blocks)
        if keep_as is not None:
            self._entries[keep_as] = _CacheEntry(key, samples)
        return replace(split, on_device=samples)

    def free(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def _memory_for(self, keep_as: str | None, layout: Layout) -> DeviceSamples | None:
        """Device memory for samples, reused or new; None if a batch rank has not enough."""
        old = None if keep_as is None else self._entries.pop(keep_as, None)
        is_shared = old is not None and any(entry.samples is old.samples for entry in self._entries.values())
        if old is not None and not is_shared and _layout_of(old.samples) == layout:
            return old.samples
        del old
        needed = sum(prod(array[0]) * array[1].itemsize for array in layout if array is not None)
        if self._on_any(needed > self._kernels.free_bytes() // FREE_MEMORY_DIVISOR):
            return None
        return DeviceSamples(*(None if array is None else self._kernels.empty(*array) for array in layout))

    def _layout(self, rows: Rows) -> Layout:
        targets = self._dtype if rows.targets_shape else np.dtype(np.int64)
        is_first, is_last = self._grid.pipeline_rank == 0, self._grid.pipeline_rank == self._grid.pipeline - 1
        return (
            ((rows.samples, rows.features), self._dtype) if is_first else None,
            ((rows.samples, *rows.targets_shape), targets) if is_last else None,
        )

    def _on_any(self, flag: bool) -> bool:
        """Whether `flag` is True on any batch rank; collective over the batch group."""
        flags = np.array([flag], np.int64)
        self._grid.batch_group.allreduce(flags, "max")
        return bool(flags[0])


def _layout_of(samples: DeviceSamples) -> Layout:
    return tuple(None if array is None else (array.shape, array.dtype) for array in (samples.x, samples.y))


def _copy_to_device(kernels: Kernels, read: Callable[..., None], *arrays: Array | None) -> None:
    """Fill host buffers with `read` and copy them to the device arrays that are not None."""
    buffers = [None if array is None else np.empty(array.shape, array.dtype) for array in arrays]
    read(*buffers)
    for buffer, array in zip(buffers, arrays, strict=True):
        if buffer is not None:
            kernels.put(buffer, array)
