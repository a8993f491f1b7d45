"""Arrays in memory that the ranks of a node share: one copy per node, whoever reads it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.mpi import import_mpi, ranks_within
from hybridnn.errors import EnvironmentProblem
from hybridnn.parallel.grid import ProcessGrid

SHARED_MEMORY = "/dev/shm"
"""Where MPI libraries keep windows on Linux."""


class NodeMemory:
    """Allocates arrays that several ranks of a node see, and frees them together.

    Where there is one such rank, plain memory is used.

    Parameters
    ----------
    grid : ProcessGrid
        The ranks; every method is collective over those of a node that share.
    replicas_only : bool
        Only the ranks of this rank's batch group share, which hold the same weights; by default all ranks of the node.

    Attributes
    ----------
    group : Group
        The ranks that share.
    """

    def __init__(self, grid: ProcessGrid, *, replicas_only: bool = False) -> None:
        node = grid.node_group
        self.group, self._comm = node, grid.node_comm
        self._otherwise = "data.distribution = 'scatter'"
        if replicas_only:
            self._comm = grid.node_comm.Split(grid.batch_group.members[0], node.rank)
            members = [node.members[number] for number in ranks_within(self._comm, grid.node_comm)]
            self.group = type(node)(self._comm, "batch", grid.recorder, members=members)
            self._otherwise = "parallel.shared_replicas = false"
        self._windows: list[Any] = []

    @property
    def is_leader(self) -> bool:
        """True on one of the ranks that share, the one that fills what is shared."""
        return self.group.rank == 0

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialized array of the node.

        Raises
        ------
        EnvironmentProblem
            If the node's shared memory is too small.
        """
        if self.group.size == 1:
            return np.empty(shape, dtype)
        mpi = import_mpi()
        item = np.dtype(dtype).itemsize
        nbytes = int(np.prod(shape, dtype=np.int64)) * item
        try:
            # At least one element: a window of zero bytes has no address.
            window = mpi.Win.Allocate_shared(max(nbytes, item) if self.is_leader else 0, item, comm=self._comm)
        except mpi.Exception as error:
            raise EnvironmentProblem(
                f"the node's shared memory has no room for {nbytes:,} bytes ({error}); enlarge {SHARED_MEMORY}, "
                f"or set {self._otherwise}"
            ) from error
        # MPI allows the Sync of `publish` only between these two calls; MPICH insists.
        window.Lock_all(mpi.MODE_NOCHECK)
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        return np.ndarray(shape, dtype, buffer=memory)

    def publish(self, meet: Callable[[], None] | None = None) -> None:
        """Make what was written before visible to every rank that shares; returns when all have come here.

        Parameters
        ----------
        meet : callable, optional
            A collective that ends on no rank before all have begun it; a barrier by default.
        """
        for window in self._windows:
            window.Sync()
        (meet or self.group.barrier)()
        for window in self._windows:
            window.Sync()

    def free(self) -> None:
        """Give the memory back; the arrays must not be touched afterwards."""
        for window in self._windows:
            window.Unlock_all()
            window.Free()
        self._windows = []


class PrivateMemory:
    """The same for a rank that shares with nobody.

    Parameters
    ----------
    group : Group
        Of this rank alone.
    """

    is_leader = True

    def __init__(self, group: Group) -> None:
        self.group = group

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialized array."""
        return np.empty(shape, dtype)

    def publish(self, meet: Callable[[], None] | None = None) -> None:
        """Nobody has to see anything."""


def free_shared_memory() -> float:
    """Bytes that a window of this rank can still take; infinite where the system does not tell.

    Writing to a window beyond them would end the process without a word, and where one rank alone cannot make its
    window, the others wait for it for ever.
    """
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]  # a window is a file
    most = inf if largest == resource.RLIM_INFINITY else float(largest)
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return most
    return min(most, float(status.f_bavail * status.f_frsize))
