"""Which of its blocks a rank writes and digests.

Ranks that hold the same blocks (batch replicas) share them: the rows of all blocks, one after the other, are cut into
as many stretches as there are replicas, so that every rank writes about the same bytes and nearly all files have one
writer. Where replicas hold whole arrays, the one that writes most of a file also digests it, from memory; where the
layers are split over model ranks nobody holds a whole array, and the files are dealt to the ranks of the stage to be
read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from hybridnn.comm.grid import ProcessGrid
from hybridnn.training.checkpoints.blocks import HeldBlock

__all__ = ["Share", "deal_files", "files_to_read_again", "share_rows", "shares_of_rank"]

UNCUT_BYTES = 1 << 20
"""A block up to this size is written by one rank: opening a file costs more than writing so little."""


@dataclass(frozen=True)
class Share:
    """What a rank does with one of its blocks.

    Attributes
    ----------
    block : int
        Its place in the list of this rank's blocks.
    rows : slice
        Rows of the block that this rank writes.
    digests : bool
        Whether it digests the block, which is then a whole array.
    """

    block: int
    rows: slice
    digests: bool

    @property
    def held(self) -> slice:
        """Rows that are needed for both."""
        return slice(0, None) if self.digests else self.rows


def shares_of_rank(blocks: Sequence[HeldBlock], grid: ProcessGrid) -> list[Share]:
    """What this rank writes and digests of its blocks, in the order in which it does.

    Model ranks, which write to the same files, begin at different ones: a file system lets only one write to a file at
    a time.
    """
    bytes_of_blocks = [block.memory.nbytes for block in blocks]
    heights = [block.where.height for block in blocks]
    every = np.array(
        [share_rows(bytes_of_blocks, heights, grid.batch, sharer, UNCUT_BYTES) for sharer in range(grid.batch)]
    )
    most = (every[..., 1] - every[..., 0]).argmax(axis=0)
    digests = most == grid.batch_rank if grid.model == 1 else np.zeros(len(blocks), bool)
    shares = [
        Share(place, slice(*rows), bool(digests[place]))
        for place, rows in enumerate(every[grid.batch_rank].tolist())
        if rows[0] < rows[1] and blocks[place].where.size
    ]
    first = len(shares) * grid.model_rank // grid.model
    return shares[first:] + shares[:first]


def share_rows(
    nbytes: Sequence[int], heights: Sequence[int], sharers: int, sharer: int, uncut: int
) -> list[tuple[int, int]]:
    """First and last row of each block, as a slice has them, that one of several ranks with the same blocks writes.

    Parameters
    ----------
    nbytes, heights : sequence of int
        Bytes and rows of every block.
    sharers, sharer : int
        Ranks with these blocks, and which of them.
    uncut : int
        Bytes up to which a block is not cut.
    """
    ends = list(accumulate(nbytes))
    total = ends[-1] if ends else 0

    def row_at(part: int, size: int, height: int, end: int) -> int:
        """Rows of a block before the stretch of rank `part`."""
        inside = total * part // sharers - (end - size)
        if size <= uncut:
            return height if inside > 0 else 0
        return min(max(inside * height // size, 0), height)

    return [(row_at(sharer, *block), row_at(sharer + 1, *block)) for block in zip(nbytes, heights, ends, strict=True)]


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
