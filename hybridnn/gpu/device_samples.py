"""Samples of a training in the memory of a GPU, or on their way to it.

A GPU holds all samples if they fit its memory, and gathers those of a minibatch by their indices, which are copied to
it once per epoch: no step waits for the host. If they do not fit, or are received by MPI, the host reads each
minibatch, at most two ahead of the device that copies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_slice
from hybridnn.data import ArrayRows, Rows
from hybridnn.nn.kernels import Array, Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.data_split import DataSplit
from hybridnn.training.engine import Load
from hybridnn.training.rank_comparison import digest_of

FREE_MEMORY_DIVISOR = 8
"""Samples occupy at most 1/8 of a device's free memory: several ranks may share the device, and there are two data
splits."""

COPY_ROWS = 1 << 14

SampleLayout = tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]
"""Shape and dtype of inputs and of targets; None for those that this rank does not read."""


@dataclass(frozen=True)
class DeviceSamples:
    """All samples of a data split, on this rank's device."""

    x: Array | None  # None unless this rank has the first stage
    y: Array | None  # None unless this rank has the last stage


@dataclass(frozen=True)
class DeviceSplit(DataSplit):
    """A data split whose samples are on the device."""

    on_device: DeviceSamples


class PartOfOrder(NamedTuple):
    """The samples of a minibatch on the device: indices in `order`, from element `first` on."""

    order: Array
    first: int


def read_and_copy(load: Load, kernels: Kernels) -> Load:
    """A loader by which the host reads samples into pinned memory; the device copies them while it computes."""

    def load_and_copy(indices: Any, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        with ExitStack() as copied:
            buffers = (None if array is None else copied.enter_context(kernels.filling(array)) for array in (x, y))
            load(indices, start, stop, *buffers)

    return load_and_copy


def gather_on_device(
    samples: DeviceSamples, batches: Sequence[NDArray[np.int64]], kernels: Kernels, grid: ProcessGrid
) -> tuple[Load, list[PartOfOrder]]:
    """A loader by which the device gathers samples by indices in its memory, and those of each batch."""

    def gather(part: PartOfOrder, start: int, stop: int, x: Array | None, y: Array | None) -> None:
        block, first = block_slice(stop - start, grid.batch, grid.batch_rank), part.first + start
        own = part.order[first + block.start : first + block.stop]
        if x is not None:
            kernels.gather_rows(samples.x, own, x)
        if y is not None:
            kernels.gather_rows(samples.y, own, y)

    order = kernels.to_device(np.concatenate(batches).astype(np.int64, copy=False))
    return gather, [PartOfOrder(order, start) for start in accumulate(map(len, batches[:-1]), initial=0)]


@dataclass(frozen=True)
class _CacheEntry:
    """Samples on the device with their key: a digest of arrays, or the rows object itself."""

    key: bytes | Rows
    samples: DeviceSamples

    def matches(self, key: bytes | Rows) -> bool:
        return self.key is key or (isinstance(key, bytes) and self.key == key)


class DeviceSampleCache:
    """The samples of the last fit in this rank's device memory.

    The first pipeline stage holds the inputs, that of the last layer the targets. Either all batch ranks of a stage
    hold samples or none does, because they may capture steps, which is collective.
    """

    def __init__(self, kernels: Kernels, grid: ProcessGrid, dtype: np.dtype[Any], last_stage: int) -> None:
        self._kernels, self._grid, self._dtype, self._last_stage = kernels, grid, dtype, last_stage
        self._entries: dict[str, _CacheEntry] = {}

    def place(self, split: DataSplit, given: object, keep_as: str | None) -> DataSplit:
        """Copy the samples of a data split to this rank's device if they fit, as `Engine.place`; collective.

        `keep_as` replaces an earlier entry of this name. If the shapes are equal, the memory is reused, and the
        captured steps remain valid for the new samples.
        """
        rows = split.rows
        if rows is None:
            return split
        # The caller may modify an array between two calls, so arrays are identified by a digest of their contents.
        key = rows if rows is given or not isinstance(rows, ArrayRows) else digest_of(*rows.arrays)
        found = next((entry for entry in self._entries.values() if entry.matches(key)), None)
        if not self._on_any(found is None):
            assert found is not None
            if keep_as is not None:
                self._entries[keep_as] = found
            return DeviceSplit(rows, split.samples, split.task, found.samples)
        samples = self._memory_for(keep_as, self._layout(rows))
        if samples is None:
            return split
        for start in range(0, rows.samples, COPY_ROWS):
            stop = min(start + COPY_ROWS, rows.samples)
            blocks = [None if array is None else array[start:stop] for array in (samples.x, samples.y)]
            buffers = [None if block is None else np.empty(block.shape, block.dtype) for block in blocks]
            rows.take(np.arange(start, stop), *buffers)
            for buffer, block in zip(buffers, blocks, strict=True):
                if buffer is not None:
                    self._kernels.put(buffer, block)
        if keep_as is not None:
            self._entries[keep_as] = _CacheEntry(key, samples)
        return DeviceSplit(rows, split.samples, split.task, samples)

    def free(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def _memory_for(self, keep_as: str | None, layout: SampleLayout) -> DeviceSamples | None:
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

    def _layout(self, rows: Rows) -> SampleLayout:
        targets = self._dtype if rows.targets_shape else np.dtype(np.int64)
        is_first, is_last = self._grid.pipeline_rank == 0, self._grid.pipeline_rank == self._last_stage
        return (
            ((rows.samples, rows.features), self._dtype) if is_first else None,
            ((rows.samples, *rows.targets_shape), targets) if is_last else None,
        )

    def _on_any(self, flag: bool) -> bool:
        """Whether `flag` is True on any batch rank; collective over the batch group."""
        flags = np.array([flag], np.int64)
        self._grid.batch_group.allreduce(flags, "max")
        return bool(flags[0])


def _layout_of(samples: DeviceSamples) -> SampleLayout:
    return tuple(None if array is None else (array.shape, array.dtype) for array in (samples.x, samples.y))
