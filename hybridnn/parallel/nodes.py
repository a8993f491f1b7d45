"""Nodes of a job: their ranks' positions in the grid, and shared memory, of which a node has one copy."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Sequence
from math import inf
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.kept import kept
from hybridnn.comm.mpi import import_mpi
from hybridnn.errors import EnvironmentProblem

SHARED_MEMORY = "/dev/shm"  # folder in which MPI libraries create windows on Linux

UNCOLLECTED_WINDOWS = 64  # with more, objects that hold windows and one another are collected first


class SharedWindows:
    """The windows of a communicator's ranks in the order of their creation, the same on every rank.

    A window is freed by the memory that allocated it, or when its array no longer exists on any rank: freeing is
    collective, and ranks drop their arrays at different times.
    """

    def __init__(self) -> None:
        self._windows: list[tuple[Any, ref[NDArray[Any]]]] = []
        self._most = UNCOLLECTED_WINDOWS

    def add(self, window: Any, array: NDArray[Any]) -> None:
        """Add a window; all views of its memory reference `array`."""
        self._windows.append((window, ref(array)))

    def free(self, windows: Sequence[Any]) -> None:
        """Free some windows; collective."""
        self._windows = [(window, array) for window, array in self._windows if window not in windows]
        for window in windows:
            window.Unlock_all()
            window.Free()

    def free_unused(self, comm: Any) -> None:
        """Free the windows whose arrays no longer exist; collective over `comm`."""
        if not self._windows:
            return
        if len(self._windows) > self._most:
            gc.collect()
        mpi = import_mpi()
        unused = np.array([array() is None for _, array in self._windows], np.uint8)
        comm.Allreduce(mpi.IN_PLACE, unused, mpi.MIN)
        self.free([window for (window, _), is_unused in zip(self._windows, unused, strict=True) if is_unused])
        self._most = max(UNCOLLECTED_WINDOWS, 2 * len(self._windows))


class NodeMemory:
    """Allocates shared-memory windows of ranks of a node, and frees them together; a single rank gets private memory.

    The constructor and all methods are collective over the ranks that share, those of `group`. The constructor frees
    windows of these ranks that were dropped. `alternative` is the setting that avoids shared memory, for the error if
    there is not enough.
    """

    def __init__(self, group: Group, alternative: str = "") -> None:
        self.group, self._alternative = group, alternative
        self._windows: list[tuple[Any, NDArray[Any]]] = []
        if group.comm is not None:
            self._all = kept(group.comm, "windows", SharedWindows)
            self._all.free_unused(group.comm)

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
            window = mpi.Win.Allocate_shared(max(nbytes, item) if self.is_leader else 0, item, comm=self.group.comm)
        except mpi.Exception as error:
            raise EnvironmentProblem(
                f"the node's shared memory has no room for {nbytes:,} bytes ({error}); enlarge {SHARED_MEMORY}, "
                f"or set {self._alternative}"
            ) from error
        # MPI allows the Sync of `publish` only between Lock_all and Unlock_all; MPICH checks it.
        window.Lock_all(mpi.MODE_NOCHECK)
        memory, _ = window.Shared_query(0)
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=memory)
        self._windows.append((window, array))
        self._all.add(window, array)
        return array

    def publish(self, synchronize: Callable[[], None] | None = None) -> None:
        """Synchronize the ranks that share and make all earlier writes visible to them.

        `synchronize` is a collective that completes on no rank before all have started it; a barrier by default.
        """
        for window, _ in self._windows:
            window.Sync()
        (synchronize or self.group.barrier)()
        for window, _ in self._windows:
            window.Sync()

    def free(self) -> None:
        """Free the windows; the arrays must not be used afterwards."""
        if self._windows:
            self._all.free([window for window, _ in self._windows])
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


# -- positions of ranks ------------------------------------------------------------------------------------------------


def nodes_of_ranks(comm: Any) -> list[int]:
    """Node of every rank of `comm`, identified by its lowest rank; collective."""

    def find() -> list[int]:
        mpi: Any = import_mpi()
        lowest = np.array([comm.Get_rank()], np.int64)
        node_comm = comm.Split_type(mpi.COMM_TYPE_SHARED)
        node_comm.Allreduce(mpi.IN_PLACE, lowest, mpi.MIN)
        node_comm.Free()
        nodes = np.empty(comm.Get_size(), np.int64)
        comm.Allgather(lowest, nodes)
        return list(map(int, nodes))

    return kept(comm, "nodes", find)


def place_ranks(nodes: Sequence[int], model: int) -> list[int]:
    """The rank at each position of the grid, from the node of every rank, any integers.

    If ranks are numbered by node and every node has a multiple of `model` ranks, those of the largest model group, the
    order is 0, 1, 2, …
    """
    ranks_of: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks_of.setdefault(node, []).append(rank)
    grouped: list[int] = []
    rest: list[int] = []
    for ranks in ranks_of.values():
        whole = len(ranks) // model * model
        grouped += ranks[:whole]
        rest += ranks[whole:]
    return grouped + rest
