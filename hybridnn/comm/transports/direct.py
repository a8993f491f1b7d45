"""Arrays of the host, which MPI reads and writes where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.partition import block_slice, deal_by_messages, offsets_of, pieces, row_layout
from hybridnn.comm.transports.transport import Graphs


class Direct:
    """The transport where no array lies on a device; see `hybridnn.comm.transports.transport.Transport`.

    Parameters
    ----------
    comm : MPI.Intracomm or None
        None for a group of one rank, which has nothing to begin.
    limit : int
        Bytes above which an array travels in pieces.

    Attributes
    ----------
    problem : str
        See `Transport.problem`.
    """

    problem = ""

    def __init__(self, comm: Any, limit: int) -> None:
        self._comm, self._limit = comm, limit
        self._size: int = 1 if comm is None else comm.Get_size()
        self._rank: int = 0 if comm is None else comm.Get_rank()
        self._mpi: Any = import_mpi() if self._size > 1 else None

    def allreduce(self, array: NDArray[Any], operation: str) -> list[Any]:
        """Replace `array` by its sum, or maximum, over the ranks."""
        how = self._mpi.SUM if operation == "sum" else self._mpi.MAX
        return [self._comm.Iallreduce(self._mpi.IN_PLACE, piece, how) for piece in self._pieces(array)]

    def allgather(self, array: NDArray[Any]) -> list[Any]:
        """Fill the rows of `array` from everybody's block."""
        if array.nbytes <= self._limit:
            counts, offsets = row_layout(array, self._size)
            return [self._comm.Iallgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])]
        return [
            self._comm.Ibcast(piece, root)
            for root in range(self._size)
            for piece in self._pieces(array[block_slice(len(array), self._size, root)])
        ]

    def reduce_scatter(self, array: NDArray[Any], out: NDArray[Any]) -> list[Any]:
        """Sum `array`, and leave this rank's block of the rows of the sum in `out`."""
        if array.nbytes <= self._limit:
            counts, _ = row_layout(array, self._size)
            return [self._comm.Ireduce_scatter(array, out, counts, self._mpi.SUM)]
        requests = []
        for root in range(self._size):
            block = array[block_slice(len(array), self._size, root)]
            targets = self._pieces(out) if root == self._rank else iter(())
            requests += [
                self._comm.Ireduce(piece, next(targets, None), self._mpi.SUM, root) for piece in self._pieces(block)
            ]
        return requests

    def alltoall(self, array: NDArray[Any], out: NDArray[Any]) -> list[Any]:
        """Send rank i row i of `array`, and receive row i of `out` from it."""
        if array.nbytes <= self._limit:
            return [self._comm.Ialltoall(array, out)]
        out[self._rank] = array[self._rank]
        others = [rank for rank in range(self._size) if rank != self._rank]
        receives = [self._comm.Irecv(piece, rank) for rank in others for piece in self._pieces(out[rank])]
        return receives + [self._comm.Isend(piece, rank) for rank in others for piece in self._pieces(array[rank])]

    def broadcast(self, array: NDArray[Any], root: int) -> list[Any]:
        """Give every rank the root's `array`."""
        return [self._comm.Ibcast(piece, root) for piece in self._pieces(array)]

    def scatter(self, array: NDArray[Any] | None, out: NDArray[Any], rows: Sequence[int], root: int) -> list[Any]:
        """Send every rank its rows of the root's `array`."""
        width = prod(out.shape[1:])
        if sum(rows) * width * out.itemsize > self._limit:
            return deal_by_messages(self._comm, self._limit, array, out, rows, root, scatters=True)
        counts = [n * width for n in rows]
        send = [array, counts, offsets_of(counts), None] if self._rank == root else None
        return [self._comm.Iscatterv(send, out, root)]

    def gather(self, array: NDArray[Any], out: NDArray[Any] | None, rows: Sequence[int], root: int) -> list[Any]:
        """Collect every rank's rows in the root's `out`."""
        return deal_by_messages(self._comm, self._limit, out, array, rows, root, scatters=False)

    def send(self, array: NDArray[Any], peer: int, tag: int, synchronous: bool) -> list[Any]:
        """Send a message."""
        send = self._comm.Issend if synchronous else self._comm.Isend
        return [send(piece, peer, tag) for piece in self._pieces(array)]

    def receive(self, array: NDArray[Any], peer: int, tag: int) -> list[Any]:
        """Receive a message."""
        return [self._comm.Irecv(piece, peer, tag) for piece in self._pieces(array)]

    def flush(self) -> None:
        """Nothing waits: every call goes to MPI at once."""

    def register_graphs(self, recordings: Graphs) -> bool:
        """Only in a group of one rank, which has no calls to record."""
        return self._size == 1

    def disconnect(self) -> None:
        """Nothing but MPI connects the ranks."""

    def _pieces(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        return pieces(array, self._limit)
