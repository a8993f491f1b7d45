"""Arrays in memory that the ranks of a node share: one copy per node, whoever reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.mpi import import_mpi
from hybridnn.errors import EnvironmentProblem

__all__ = ["NodeMemory"]


class NodeMemory:
    """Allocates arrays that all ranks of the node see, and frees them together.

    Where a node holds one rank of the grid, plain memory is used.

    Parameters
    ----------
    grid : ProcessGrid
        The ranks; every method is collective over the ranks of a node.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._windows: list[Any] = []

    @property
    def is_leader(self) -> bool:
        """True on one rank per node, the one that fills what is shared."""
        return self._grid.node_group.rank == 0

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialized array of the node.

        Raises
        ------
        EnvironmentProblem
            If the node's shared memory is too small.
        """
        if self._grid.node_group.size == 1:
            return np.empty(shape, dtype)
        mpi = import_mpi()
        item = np.dtype(dtype).itemsize
        nbytes = int(np.prod(shape, dtype=np.int64)) * item
        try:
            # At least one element: a window of zero bytes has no address.
            window = mpi.Win.Allocate_shared(
                max(nbytes, item) if self.is_leader else 0, item, comm=self._grid.node_comm
            )
        except mpi.Exception as error:
            raise EnvironmentProblem(
                f"the node's shared memory has no room for {nbytes:,} bytes of data ({error}); enlarge /dev/shm, "
                "or set data.distribution = 'scatter'"
            ) from error
        # MPI allows the Sync of `publish` only between these two calls; MPICH insists.
        window.Lock_all(mpi.MODE_NOCHECK)
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        return np.ndarray(shape, dtype, buffer=memory)

    def publish(self) -> None:
        """Make what was written before visible to every rank of the node; returns when all have come here."""
        for window in self._windows:
            window.Sync()
        self._grid.node_group.barrier()
        for window in self._windows:
            window.Sync()

    def free(self) -> None:
        """Give the memory back; the arrays must not be touched afterwards."""
        for window in self._windows:
            window.Unlock_all()
            window.Free()
        self._windows = []
