"""A group: the ranks along one axis of the process grid, and the collectives among them.

The methods are thin: they check the arrays, tell the recorder, and hand the arrays to a transport, or where a call
blocks straight to MPI. In a group of one rank every one of them does nothing, so that code for many ranks is also the
code for one. Arrays over the message limit travel in pieces, because MPI counts are 32-bit integers in most libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.array_checks import require_root_array, require_shape
from hybridnn.comm.carried_calls import MESSAGE_LIMIT, CarriedCalls
from hybridnn.comm.large_messages import offsets_of, pieces, row_layout
from hybridnn.comm.mpi import require_buffer
from hybridnn.comm.partition import block_slice
from hybridnn.comm.request import DONE, Request
from hybridnn.comm.transports.transport import copy_rows

__all__ = ["MESSAGE_LIMIT", "Group"]

REDUCE_PIECE = 2**21
"""Bytes of one blocking all-reduce. Pieces stay in the processor's cache between their steps: see
``benchmarks/allreduce_pieces.py``."""


class Group(CarriedCalls):
    """Ranks that communicate with one another.

    Arrays lie in the host's memory; after `carry` they may lie on this rank's device just as well.

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

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        if self.size > 1:
            call = self._begin("barrier", 0)
            self._transport.settle()
            self._comm.Barrier()
            self._finish(call)

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Replace `array` by its sum (``"max"``: maximum) over the ranks, in place."""
        if self.size == 1:
            return
        if self._carrier is not None:
            self.iallreduce(array, operation).wait()
            return
        require_buffer(array, "allreduce")
        call = self._begin("allreduce", array.nbytes, array.dtype, reduction=operation)
        for piece in pieces(array, min(self._limit, REDUCE_PIECE)):
            self._comm.Allreduce(self._mpi.IN_PLACE, piece, self._mpi.SUM if operation == "sum" else self._mpi.MAX)
        self._finish(call)

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> Request:
        """As `allreduce`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "allreduce")
        start = partial(self._transport.allreduce, array, operation)
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
        if self._carrier is not None or array.nbytes > self._limit:
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
        return self._start("allgather", array.nbytes, partial(self._transport.allgather, array), (array,))

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
            copy_rows(array, out)
            return DONE
        start = partial(self._transport.reduce_scatter, array, out)
        return self._start("reduce_scatter", array.nbytes, start, (array, out))

    def ialltoall_rows(self, array: NDArray[Any], out: NDArray[Any]) -> Request:
        """Begin to send every rank its row; the request owns both arrays until it is done.

        Parameters
        ----------
        array : ndarray, shape (ranks, ...)
            Row i is for rank i.
        out : ndarray, shape (ranks, ...)
            Row i is that of rank i for this one.
        """
        require_buffer(array, "all-to-all")
        require_buffer(out, "all-to-all", array.dtype)
        require_shape("all-to-all", array, (self.size, *array.shape[1:]))
        require_shape("all-to-all", out, array.shape)
        if self.size == 1:
            copy_rows(array, out)
            return DONE
        return self._start("alltoall", array.nbytes, partial(self._transport.alltoall, array, out), (array, out))

    def broadcast(self, array: NDArray[Any], root: int = 0) -> None:
        """Give every rank the root's `array`, in place."""
        if self.size == 1:
            return
        if self._carrier is not None:
            self.ibroadcast(array, root).wait()
            return
        require_buffer(array, "broadcast")
        call = self._begin("broadcast", array.nbytes, array.dtype, root)
        for piece in pieces(array, self._limit):
            self._comm.Bcast(piece, root)
        self._finish(call)

    def ibroadcast(self, array: NDArray[Any], root: int = 0) -> Request:
        """As `broadcast`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "broadcast")
        start = partial(self._transport.broadcast, array, root)
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
        if self.rank == root:
            array = require_root_array("scatter", array, out, sum(rows))
        if self.size == 1:
            copy_rows(array, out)
            return DONE
        total = sum(rows) * prod(out.shape[1:]) * out.itemsize
        start = partial(self._transport.scatter, array, out, rows, root)
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
            copy_rows(array, out)
            return
        width = prod(array.shape[1:])
        total = sum(rows) * width * array.itemsize
        if self._carrier is not None or total > self._limit:
            start = partial(self._transport.gather, array, out, rows, root)
            self._start("gather", total, start, (array,) if out is None else (out, array), root).wait()
            return
        call = self._begin("gather", total, array.dtype, root)
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
        return self._started(call, self._transport.send(array, peer, tag, synchronous), (array,))

    def ireceive(self, array: NDArray[Any], peer: int, tag: int, *, about: object = None) -> Request:
        """Begin to receive `array` from rank `peer`; the request owns it until it is done."""
        require_buffer(array, "receive")
        call = self._begin_message("receive", array, peer, tag, about)
        return self._started(call, self._transport.receive(array, peer, tag), (array,))
