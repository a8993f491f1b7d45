"""Distribution of minibatches from rank 0, which alone reads the samples, by two methods with equal results.

``scatter``: rank 0 sends every rank its block of a minibatch, the same one to the ranks of a model group.
``scatter-broadcast``: rank 0 sends each block once, to the first rank of a model group, which broadcasts it within the
group. With ``local``, the default, every rank reads its own block.

They are the first and second method of Laugier et al. 2018, section 7. In a grid without model ranks both are the
Scatter of Algorithm 1, line 7 (lines counted from ``procedure``). Line 7 of Algorithm 3 is scatter_broadcast: the
second method by its name, the first one by the text of section 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_sizes
from hybridnn.nn.kernels import HostArray
from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from hybridnn.data.rows import Rows


class ScatterDistributor:
    """Rank 0 reads the minibatch and sends it: one message to every rank.

    With `broadcast`: one per batch rank, then a broadcast within the model group.
    """

    def __init__(self, grid: ProcessGrid, broadcast: bool) -> None:
        self._grid = grid
        self._broadcast = broadcast
        self._buffers: dict[tuple[str, tuple[int, ...], np.dtype[Any]], HostArray] = {}

    def fetch(self, rows: Rows | None, indices: NDArray[np.int64], x: HostArray | None, y: HostArray | None) -> None:
        """See `hybridnn.training.data_split.Fetch`; collective over the grid. `rows` are used on rank 0 only."""
        all_x = all_y = None
        if rows is not None and self._grid.rank == 0:
            all_x = None if x is None else self._buffer(x, len(indices), "x")
            all_y = None if y is None else self._buffer(y, len(indices), "y")
            rows.take(indices, all_x, all_y)
        for minibatch, block in ((all_x, x), (all_y, y)):
            if block is not None:
                self._scatter(minibatch, block, len(indices))

    def _scatter(self, minibatch: HostArray | None, block: HostArray, samples: int) -> None:
        grid = self._grid
        sizes = block_sizes(samples, grid.batch)
        if self._broadcast:
            if grid.model_rank == 0:
                grid.batch_group.scatter_rows(minibatch, block, sizes)
            grid.model_group.broadcast(block)
            return
        if minibatch is not None and grid.model > 1:
            minibatch = self._repeat_blocks(minibatch, sizes)
        grid.world.scatter_rows(minibatch, block, [size for size in sizes for _ in range(grid.model)])

    def _repeat_blocks(self, minibatch: HostArray, sizes: list[int]) -> HostArray:
        """Every block once per model rank: MPI may not read the same memory twice in one scatter."""
        repeated = self._buffer(minibatch, len(minibatch) * self._grid.model, "repeated")
        read = write = 0
        for size in sizes:
            for _ in range(self._grid.model):
                repeated[write : write + size] = minibatch[read : read + size]
                write += size
            read += size
        return repeated

    def _buffer(self, like: HostArray, samples: int, name: str) -> HostArray:
        """A reused buffer for `samples` rows of the width and dtype of `like`."""
        width = like.shape[1:]
        key = (name, width, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < samples:
            buffer = self._buffers[key] = np.empty((samples, *width), like.dtype)
        return buffer[:samples]
