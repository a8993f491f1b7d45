"""A group: the ranks along one axis of the process grid, and the collectives among them.

The methods are thin: they check the arrays, tell the recorder, and call MPI on the buffers. In a group of one rank
every one of them does nothing, so that code for many ranks is also the code for one. Arrays over the message limit
travel in pieces, because MPI counts are 32-bit integers in most libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.array_checks import require_root_array, require_shape
from hybridnn.comm.large_messages import deal_by_messages, offsets_of, pieces, row_layout
from hybridnn.comm.mpi import import_mpi, ranks_within, require_buffer
from hybridnn.comm.partition import block_slice
from hybridnn.comm.recorded_calls import RecordedCalls
from hybridnn.comm.recorder import Recorder
from hybridnn.comm.request import DONE, Request

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MESSAGE_LIMIT", "Group"]

MESSAGE_LIMIT = 2**30
"""Bytes one MPI call may carry; far below the 2 GiB where 32-bit counts and some transports break."""


REDUCE_PIECE = 2**21
"""Bytes of one blocking all-reduce. Pieces stay in the processor's cache between their steps: see
``benchmarks/allreduce_pieces.py``."""


class Group(RecordedCalls):
    """Ranks that communicate with one another.

    Parameters
    ----------
    comm : MPI.Intracomm or None
        The communicator; None stands for a group of one rank.
    axis : str
        Name of the axis, for the recorder.
    recorder : Recorder
        Told of every call.
    message_limit : int
        Bytes above which an array travels in pieces.
    members : sequence of int, optional
        Ranks of the grid in the order of the group, to name them by; by default the numbers in the group.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        axis: str,
        recorder: Recorder,
        message_limit: int = MESSAGE_LIMIT,
        members: Sequence[int] | None = None,
    ) -> None:
        size, rank = (1, 0) if comm is None else (comm.Get_size(), comm.Get_rank())
        super().__init__(axis, recorder, range(size) if members is None else members, rank)
        self._comm: Any = comm
        self._limit = message_limit
        self._mpi: Any = import_mpi() if self.size > 1 else None

    def split(self, color: int, axis: str) -> Group:
        """Divide the group: the ranks that name the same `color` are a new one, in the same order; collective."""
        if self.size == 1:
            return type(self)(None, axis, self.recorder, self._limit, self.members)
        comm = self._comm.Split(color, self.rank)
        members = [self.members[number] for number in ranks_within(comm, self._comm)]
        return type(self)(comm, axis, self.recorder, self._limit, members)

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        if self.size > 1:
            call = self._begin("barrier", 0)
            self._comm.Barrier()
            self._finish(call)

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Replace `array` by its sum (``"max"``: maximum) over the ranks, in place."""
        if self.size == 1:
            return
        require_buffer(array, "allreduce")
        call = self._begin("allreduce", array.nbytes, array.dtype, reduction=operation)
        for piece in pieces(array, min(self._limit, REDUCE_PIECE)):
            self._comm.Allreduce(self._mpi.IN_PLACE, piece, self._operation(operation))
        self._finish(call)

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> Request:
        """As `allreduce`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "allreduce")

        def start() -> list[Any]:
            how = self._operation(operation)
            return [self._comm.Iallreduce(self._mpi.IN_PLACE, piece, how) for piece in self._pieces(array)]

        return self._start("allreduce", array.nbytes, start, (array,), reduction=operation)

    def allgather_rows(self, array: NDArray[Any]) -> None:
        """Fill `array` from everybody's block of its rows, in place.

        Parameters
        ----------
        array : ndarray, shape (rows, ...)
            On entry each rank has filled its block of rows (the block partition); on return all rows are filled.
        """
        if self.size == 1:
            return
        if array.nbytes > self._limit:
            self.iallgather_rows(array).wait()
            return
        require_buffer(array, "allgather")
        counts, offsets = row_layout(array, self.size)
        call = self._begin("allgather", array.nbytes, array.dtype)
        if counts[0] == counts[-1]:
            self._comm.Allgather(self._mpi.IN_PLACE, array)
        else:
            self._comm.Allgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])
        self._finish(call)

    def iallgather_rows(self, array: NDArray[Any]) -> Request:
        """As `allgather_rows`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "allgather")
        counts, offsets = row_layout(array, self.size)

        def start() -> list[Any]:
            if array.nbytes <= self._limit:
                return [self._comm.Iallgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])]
            return [
                self._comm.Ibcast(piece, root)
                for root in range(self.size)
                for piece in self._pieces(array[block_slice(len(array), self.size, root)])
            ]

        return self._start("allgather", array.nbytes, start, (array,))

    def reduce_scatter_rows(self, array: NDArray[Any], out: NDArray[Any]) -> None:
        """Sum `array` over the ranks and leave each rank its block of the rows of the sum.

        Parameters
        ----------
        array : ndarray, shape (rows, ...)
            Every rank's contribution; may be overwritten.
        out : ndarray, shape (block of rows, ...)
            This rank's block of the sum.
        """
        self.ireduce_scatter_rows(array, out).wait()

    def ireduce_scatter_rows(self, array: NDArray[Any], out: NDArray[Any]) -> Request:
        """As `reduce_scatter_rows`, but returns at once; the request owns both arrays until it is done."""
        require_buffer(array, "reduce-scatter")
        require_buffer(out, "reduce-scatter", array.dtype)
        require_shape("reduce-scatter", out, array[block_slice(len(array), self.size, self.rank)].shape)
        if self.size == 1:
            out[...] = array
            return DONE
        counts, _ = row_layout(array, self.size)

        def start() -> list[Any]:
            if array.nbytes <= self._limit:
                return [self._comm.Ireduce_scatter(array, out, counts, self._mpi.SUM)]
            requests = []
            for root in range(self.size):
                block = array[block_slice(len(array), self.size, root)]
                targets = self._pieces(out) if root == self.rank else iter(())
                requests += [
                    self._comm.Ireduce(piece, next(targets, None), self._mpi.SUM, root) for piece in self._pieces(block)
                ]
            return requests

        return self._start("reduce_scatter", array.nbytes, start, (array, out))

    def broadcast(self, array: NDArray[Any], root: int = 0) -> None:
        """Give every rank the root's `array`, in place."""
        if self.size == 1:
            return
        require_buffer(array, "broadcast")
        call = self._begin("broadcast", array.nbytes, array.dtype, root)
        for piece in self._pieces(array):
            self._comm.Bcast(piece, root)
        self._finish(call)

    def ibroadcast(self, array: NDArray[Any], root: int = 0) -> Request:
        """As `broadcast`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "broadcast")

        def start() -> list[Any]:
            return [self._comm.Ibcast(piece, root) for piece in self._pieces(array)]

        return self._start("broadcast", array.nbytes, start, (array,), root)

    def scatter_rows(self, array: NDArray[Any] | None, out: NDArray[Any], rows: Sequence[int], root: int = 0) -> None:
        """Send rank i the next ``rows[i]`` rows of the root's `array`.

        Parameters
        ----------
        array : ndarray, shape (sum of rows, ...), or None
            Needed on the root alone.
        out : ndarray, shape (rows[rank], ...)
            This rank's part.
        rows : sequence of int
            Rows for every rank; zeros are allowed.
        """
        self.iscatter_rows(array, out, rows, root).wait()

    def iscatter_rows(
        self, array: NDArray[Any] | None, out: NDArray[Any], rows: Sequence[int], root: int = 0
    ) -> Request:
        """As `scatter_rows`, but returns at once; the request owns both arrays until it is done."""
        require_buffer(out, "scatter")
        require_shape("scatter", out, (rows[self.rank], *out.shape[1:]))
        width = int(np.prod(out.shape[1:], dtype=np.int64))
        total = sum(rows) * width * out.itemsize
        if self.rank == root:
            array = require_root_array("scatter", array, out, sum(rows))
        if self.size == 1:
            out[...] = array
            return DONE

        def start() -> list[Any]:
            if total > self._limit:
                return deal_by_messages(self._comm, self._limit, array, out, rows, root, scatters=True)
            counts = [n * width for n in rows]
            send = [array, counts, offsets_of(counts), None] if self.rank == root else None
            return [self._comm.Iscatterv(send, out, root)]

        return self._start("scatter", total, start, (out,) if array is None else (array, out), root)

    def gather_rows(self, array: NDArray[Any], out: NDArray[Any] | None, rows: Sequence[int], root: int = 0) -> None:
        """Collect every rank's `array` in the root's `out`, one below the other.

        Parameters
        ----------
        array : ndarray, shape (rows[rank], ...)
        out : ndarray, shape (sum of rows, ...), or None
            Needed on the root alone.
        rows : sequence of int
            Rows of every rank; zeros are allowed.
        """
        require_buffer(array, "gather")
        require_shape("gather", array, (rows[self.rank], *array.shape[1:]))
        if self.rank == root:
            out = require_root_array("gather", out, array, sum(rows))
        if self.size == 1:
            assert out is not None
            out[...] = array
            return
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        total = sum(rows) * width * array.itemsize
        call = self._begin("gather", total, array.dtype, root)
        if total > self._limit:
            self._mpi.Request.Waitall(deal_by_messages(self._comm, self._limit, out, array, rows, root, scatters=False))
        else:
            counts = [n * width for n in rows]
            self._comm.Gatherv(array, [out, counts, offsets_of(counts), None] if self.rank == root else None, root)
        self._finish(call)

    def isend(
        self, array: NDArray[Any], peer: int, tag: int, *, synchronous: bool = False, about: object = None
    ) -> Request:
        """Begin to send `array` to rank `peer`; the request owns it until it is done.

        Parameters
        ----------
        synchronous : bool
            Done only when the receiver has begun to receive, whatever the size (``MPI_Issend``).
        about : object
            What the message is for; for the recorder.
        """
        require_buffer(array, "send")
        call = self._begin_message("send", array, peer, tag, about)
        send = self._comm.Issend if synchronous else self._comm.Isend
        return self._started(call, [send(piece, peer, tag) for piece in self._pieces(array)], (array,))

    def ireceive(self, array: NDArray[Any], peer: int, tag: int, *, about: object = None) -> Request:
        """Begin to receive `array` from rank `peer`; the request owns it until it is done."""
        require_buffer(array, "receive")
        call = self._begin_message("receive", array, peer, tag, about)
        return self._started(call, [self._comm.Irecv(piece, peer, tag) for piece in self._pieces(array)], (array,))

    # -- how the above is done ---------------------------------------------------------------------------------------

    def _operation(self, name: str) -> Any:
        return self._mpi.SUM if name == "sum" else self._mpi.MAX

    def _pieces(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        return pieces(array, self._limit)
