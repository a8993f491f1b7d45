"""Shared-memory windows: arrays of which a node has one copy for several of its ranks."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.mpi import import_mpi
from hybridnn.errors import EnvironmentProblem

SHARED_MEMORY = "/dev/shm"  # folder in which MPI libraries create windows on Linux


class NodeMemory:
    """Allocates shared-memory windows of ranks of a node, and frees them together; a single rank gets private memory.

    All methods are collective over the ranks that share.

    Parameters
    ----------
    group : Group
        The ranks that share.
    comm : MPI.Intracomm, optional
        Their communicator; not for a single rank.
    alternative : str
        Setting that avoids shared memory, for the error if there is not enough.
    """

    def __init__(self, group: Group, comm: Any = None, alternative: str = "") -> None:
        self.group, self._comm, self._alternative = group, comm, alternative
        self._windows: list[Any] = []

    @property
    def is_leader(self) -> bool:
        """True on one of the ranks that share, which writes what all read."""
        return self.group.rank == 0

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialized shared array.

        Raises `EnvironmentProblem` if the node's shared memory is too small.
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
                f"or set {self._alternative}"
            ) from error
        # MPI allows the Sync of `publish` only between Lock_all and Unlock_all; MPICH checks it.
        window.Lock_all(mpi.MODE_NOCHECK)
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        return np.ndarray(shape, dtype, buffer=memory)

    def publish(self, synchronize: Callable[[], None] | None = None) -> None:
        """Synchronize the ranks that share and make all earlier writes visible to them.

        Parameters
        ----------
        synchronize : callable, optional
            A collective that completes on no rank before all have started it; a barrier by default.
        """
        for window in self._windows:
            window.Sync()
        (synchronize or self.group.barrier)()
        for window in self._windows:
            window.Sync()

    def free(self) -> None:
        """Free the windows; the arrays must not be used afterwards."""
        for window in self._windows:
            window.Unlock_all()
            window.Free()
        self._windows = []


def free_shared_memory() -> float:
    """Bytes that are free for a window of this rank; infinite if the system does not report it.

    Writing to a window beyond them ends the process without a message, and if a single rank cannot create its window,
    the others wait for it forever.
    """
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]  # a window is a file
    most = inf if largest == resource.RLIM_INFINITY else float(largest)
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return most
    return min(most, float(status.f_bavail * status.f_frsize))
