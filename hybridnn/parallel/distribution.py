"""How a minibatch gets from the data to the ranks: three ways, one training.

``local``: every rank takes its part from data it can read (its own, or one copy per node in shared memory).
``scatter``: rank 0 has the data and sends every rank its part, the ranks of a model group the same one: the first
method of Laugier et al. 2018, section 7. ``scatter-broadcast``: rank 0 sends one copy per batch part to the first
rank of every model group, which broadcasts it within the group: the second method.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.partition import block_sizes, block_slice
from hybridnn.parallel.grid import ProcessGrid

DISTRIBUTIONS = ("local", "scatter", "scatter-broadcast")

Array = NDArray[Any]


class RowSource(Protocol):
    """Samples that can be taken by index."""

    def take(self, indices: NDArray[np.int64], x: Array | None, y: Array | None) -> None:
        """Write the samples `indices` into `x`, shape (n, features), and their targets into `y`, where wanted."""
        ...


class Distributor(Protocol):
    """Brings this rank's part of a global minibatch."""

    def fetch(self, rows: RowSource | None, indices: NDArray[np.int64], x: Array | None, y: Array | None) -> None:
        """Fill `x` and `y`, where wanted, with this rank's block of the samples `indices`.

        Collective, but for ``local``, over the grid, whose ranks all want the same.
        """
        ...


class LocalDistributor:
    """Every rank reads its own part.

    Parameters
    ----------
    grid : ProcessGrid
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._parts, self._part = grid.batch, grid.batch_rank

    def fetch(self, rows: RowSource | None, indices: NDArray[np.int64], x: Array | None, y: Array | None) -> None:
        """Take the block of this rank's batch part."""
        assert rows is not None
        rows.take(indices[block_slice(len(indices), self._parts, self._part)], x, y)


class ScatterDistributor:
    """Rank 0 reads the minibatch and sends it.

    Parameters
    ----------
    grid : ProcessGrid
    broadcast : bool
        False: one message to every rank. True: one per batch part, then a broadcast within the model group.
    """

    def __init__(self, grid: ProcessGrid, broadcast: bool) -> None:
        self._grid = grid
        self._broadcast = broadcast
        self._staging: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Array] = {}

    def fetch(self, rows: RowSource | None, indices: NDArray[np.int64], x: Array | None, y: Array | None) -> None:
        """Receive this rank's block from rank 0."""
        whole_x = whole_y = None
        if rows is not None and self._grid.rank == 0:
            whole_x = None if x is None else self._stage(x, len(indices), "x")
            whole_y = None if y is None else self._stage(y, len(indices), "y")
            rows.take(indices, whole_x, whole_y)
        for whole, part in ((whole_x, x), (whole_y, y)):
            if part is not None:
                self._send(whole, part, len(indices))

    def _send(self, whole: Array | None, part: Array, samples: int) -> None:
        grid = self._grid
        sizes = block_sizes(samples, grid.batch)
        if self._broadcast:
            if grid.model_rank == 0:
                grid.batch_group.scatter_rows(whole, part, sizes)
            grid.model_group.broadcast(part)
            return
        if whole is not None and grid.model > 1:
            whole = self._repeat_parts(whole, sizes)
        grid.world.scatter_rows(whole, part, [size for size in sizes for _ in range(grid.model)])

    def _repeat_parts(self, whole: Array, sizes: list[int]) -> Array:
        """Every batch part once per model rank, one below the other: MPI may not read a place twice in one scatter."""
        repeated = self._stage(whole, len(whole) * self._grid.model, "repeated")
        read = write = 0
        for size in sizes:
            for _ in range(self._grid.model):
                repeated[write : write + size] = whole[read : read + size]
                write += size
            read += size
        return repeated

    def _stage(self, like: Array, samples: int, use: str) -> Array:
        """A reused buffer for `samples` rows of the kind of `like`."""
        width = like.shape[1:]
        key = (use, width, like.dtype)
        kept = self._staging.get(key)
        if kept is None or len(kept) < samples:
            kept = self._staging[key] = np.empty((samples, *width), like.dtype)
        return kept[:samples]


def make_distributor(grid: ProcessGrid, distribution: str) -> Distributor:
    """The distributor for a setting of ``data.distribution``."""
    if distribution == "local":
        return LocalDistributor(grid)
    return ScatterDistributor(grid, broadcast=distribution == "scatter-broadcast")
