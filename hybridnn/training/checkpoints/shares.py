"""Which rows of the arrays a rank writes, and which files it digests.

Model ranks each write a block of rows, whatever block they hold. Ranks that hold the same (batch replicas) share it:
the rows of all arrays, one after the other, are cut into as many stretches as there are replicas, so that every rank
writes about the same bytes and nearly all files have one writer. Where replicas hold whole arrays, the one that writes
most of a file also digests it, from memory; where the layers are split over model ranks nobody holds a whole array, and
the files are dealt to the ranks of the stage to be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.partition import block_bounds
from hybridnn.training.checkpoints.blocks import HeldBlock

__all__ = ["Share", "deal_files", "files_to_read_again", "share_rows", "shares_of_rank"]

UNCUT_BYTES = 1 << 20
"""A block of rows up to this size is written by one rank: opening a file costs more than writing so little."""


@dataclass(frozen=True)
class Share:
    """What the ranks do with one array.

    Attributes
    ----------
    rows : tuple of slice
        Rows that each model rank of this rank's replica writes.
    digests : bool
        Whether this rank digests the array, of which it holds the whole.
    """

    rows: tuple[slice, ...]
    digests: bool


def shares_of_rank(blocks: Sequence[HeldBlock], grid: ProcessGrid) -> list[Share]:
    """What this rank and its model group do with the array of each of their blocks."""

    def rows_of(batch_rank: int, model_rank: int) -> NDArray[np.int64]:
        bounds = np.array([block_bounds(block.where.shape[0], grid.model, model_rank) for block in blocks])
        row_bytes = np.array([block.where.shape[1] * block.memory.itemsize for block in blocks])
        return bounds[:, :1] + share_rows(bounds[:, 1] - bounds[:, 0], row_bytes, grid.batch, batch_rank, UNCUT_BYTES)

    mine = [rows_of(grid.batch_rank, model_rank) for model_rank in range(grid.model)]
    digests = [False] * len(blocks)
    if grid.model == 1:
        written = np.stack([np.diff(rows_of(batch_rank, 0))[:, 0] for batch_rank in range(grid.batch)])
        digests = (written.argmax(axis=0) == grid.batch_rank).tolist()
    return [Share(tuple(slice(*rows[place].tolist()) for rows in mine), digests[place]) for place in range(len(blocks))]


def share_rows(
    heights: NDArray[np.int64], row_bytes: NDArray[np.int64], sharers: int, sharer: int, uncut: int
) -> NDArray[np.int64]:
    """First and last row of each array, as a slice has them, that one of several ranks with the same arrays writes.

    Parameters
    ----------
    heights, row_bytes : ndarray of int, shape (arrays,)
        Rows of every array, and bytes of such a row.
    sharers, sharer : int
        Ranks with these arrays, and which of them.
    uncut : int
        Bytes up to which an array is not cut.

    Returns
    -------
    ndarray of int, shape (arrays, 2)
    """
    sizes = heights * row_bytes
    starts = np.cumsum(sizes) - sizes

    def rows_before(part: int) -> NDArray[np.int64]:
        """Rows of each array before the stretch of rank `part`."""
        inside = sizes.sum() * part // sharers - starts
        cut: NDArray[np.int64] = np.clip(inside // row_bytes, 0, heights)
        return np.where(sizes <= uncut, heights * (inside > 0), cut).astype(np.int64)

    return np.stack([rows_before(sharer), rows_before(sharer + 1)], axis=1)


def files_to_read_again(blocks: Sequence[HeldBlock], grid: ProcessGrid, size_of: Callable[[str], int]) -> list[str]:
    """The arrays whose files this rank digests from disk."""
    if grid.model == 1:
        return []
    names = [block.name for block in blocks]
    readers = deal_files([size_of(name) for name in names], grid.batch * grid.model)
    mine = grid.batch_rank * grid.model + grid.model_rank
    return [name for name, reader in zip(names, readers, strict=True) if reader == mine]


def deal_files(sizes: Sequence[int], ranks: int) -> list[int]:
    """For each file of so many bytes the rank that reads it: the largest first, each to whoever has least so far."""
    loads = [0] * ranks
    readers = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        readers[place] = loads.index(min(loads))
        loads[readers[place]] += sizes[place]
    return readers
