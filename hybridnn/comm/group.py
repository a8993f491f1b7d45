"""A group: the ranks along one axis of the process grid, and the collectives among them.

The methods are thin: they check the arrays, tell the recorder, and call MPI on the buffers. In a group of one rank
every one of them does nothing, so that code for many ranks is also the code for one. Arrays over the message limit
travel in pieces, because MPI counts are 32-bit integers in most libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.accounting import bytes_sent_by_rank
from hybridnn.comm.large_messages import deal_by_messages, offsets_of, pieces
from hybridnn.comm.mpi import import_mpi, require_buffer
from hybridnn.comm.partition import block_sizes, block_slice
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


class Group:
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
    """

    def __init__(
        self, comm: MPI.Intracomm | None, axis: str, recorder: Recorder, message_limit: int = MESSAGE_LIMIT
    ) -> None:
        self._comm: Any = comm
        self.axis = axis
        self.recorder = recorder
        self.size: int = 1 if comm is None else comm.Get_size()
        self.rank: int = 0 if comm is None else comm.Get_rank()
        self._limit = message_limit
        self._mpi: Any = import_mpi() if self.size > 1 else None
        self._layouts: dict[tuple[int, int], tuple[list[int], list[int]]] = {}

    def split(self, color: int, axis: str) -> Group:
        """Divide the group: the ranks that name the same `color` are a new one, in the same order; collective."""
        comm = None if self.size == 1 else self._comm.Split(color, self.rank)
        return Group(comm, axis, self.recorder, self._limit)

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        if self.size > 1:
            start = perf_counter()
            self._comm.Barrier()
            self.recorder.end_communication("barrier", self.axis, start, 0)

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Replace `array` by its sum (``"max"``: maximum) over the ranks, in place."""
        if self.size == 1:
            return
        require_buffer(array, "allreduce")
        start = perf_counter()
        for piece in pieces(array, min(self._limit, REDUCE_PIECE)):
            self._comm.Allreduce(self._mpi.IN_PLACE, piece, self._operation(operation))
        self._finish("allreduce", start, array.nbytes)

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> Request:
        """As `allreduce`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "allreduce")
        start = perf_counter()
        requests = [
            self._comm.Iallreduce(self._mpi.IN_PLACE, piece, self._operation(operation))
            for piece in self._pieces(array)
        ]
        return self._started("allreduce", start, array.nbytes, requests, array)

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
        counts, offsets = self._layout(array)
        start = perf_counter()
        if counts[0] == counts[-1]:
            self._comm.Allgather(self._mpi.IN_PLACE, array)
        else:
            self._comm.Allgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])
        self._finish("allgather", start, array.nbytes)

    def iallgather_rows(self, array: NDArray[Any]) -> Request:
        """As `allgather_rows`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "allgather")
        counts, offsets = self._layout(array)
        start = perf_counter()
        if array.nbytes > self._limit:
            requests = [
                self._comm.Ibcast(piece, root)
                for root in range(self.size)
                for piece in self._pieces(array[block_slice(len(array), self.size, root)])
            ]
        else:
            requests = [self._comm.Iallgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])]
        return self._started("allgather", start, array.nbytes, requests, array)

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
        self._require_shape("reduce-scatter", out, array[block_slice(len(array), self.size, self.rank)].shape)
        if self.size == 1:
            out[...] = array
            return DONE
        counts, _ = self._layout(array)
        start = perf_counter()
        if array.nbytes > self._limit:
            requests = []
            for root in range(self.size):
                block = array[block_slice(len(array), self.size, root)]
                targets = self._pieces(out) if root == self.rank else iter(())
                requests += [
                    self._comm.Ireduce(piece, next(targets, None), self._mpi.SUM, root) for piece in self._pieces(block)
                ]
        else:
            requests = [self._comm.Ireduce_scatter(array, out, counts, self._mpi.SUM)]
        return self._started("reduce_scatter", start, array.nbytes, requests, array, out)

    def broadcast(self, array: NDArray[Any], root: int = 0) -> None:
        """Give every rank the root's `array`, in place."""
        if self.size == 1:
            return
        require_buffer(array, "broadcast")
        start = perf_counter()
        for piece in self._pieces(array):
            self._comm.Bcast(piece, root)
        self._finish("broadcast", start, array.nbytes, is_root=self.rank == root)

    def ibroadcast(self, array: NDArray[Any], root: int = 0) -> Request:
        """As `broadcast`, but returns at once; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        require_buffer(array, "broadcast")
        start = perf_counter()
        requests = [self._comm.Ibcast(piece, root) for piece in self._pieces(array)]
        return self._started("broadcast", start, array.nbytes, requests, array, is_root=self.rank == root)

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
        self._require_shape("scatter", out, (rows[self.rank], *out.shape[1:]))
        width = int(np.prod(out.shape[1:], dtype=np.int64))
        total = sum(rows) * width * out.itemsize
        if self.rank == root:
            array = self._require_root_array("scatter", array, out, sum(rows))
        if self.size == 1:
            out[...] = array
            return DONE
        start = perf_counter()
        if total > self._limit:
            requests = deal_by_messages(self._comm, self._limit, array, out, rows, root, scatters=True)
        else:
            counts = [n * width for n in rows]
            send = [array, counts, offsets_of(counts), None] if self.rank == root else None
            requests = [self._comm.Iscatterv(send, out, root)]
        owned = (out,) if array is None else (array, out)
        return self._started("scatter", start, total, requests, *owned, is_root=self.rank == root)

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
        self._require_shape("gather", array, (rows[self.rank], *array.shape[1:]))
        if self.rank == root:
            out = self._require_root_array("gather", out, array, sum(rows))
        if self.size == 1:
            assert out is not None
            out[...] = array
            return
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        total = sum(rows) * width * array.itemsize
        start = perf_counter()
        if total > self._limit:
            self._mpi.Request.Waitall(deal_by_messages(self._comm, self._limit, out, array, rows, root, scatters=False))
        else:
            counts = [n * width for n in rows]
            self._comm.Gatherv(array, [out, counts, offsets_of(counts), None] if self.rank == root else None, root)
        self._finish("gather", start, total, is_root=self.rank == root)

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
        start = perf_counter()
        send = self._comm.Issend if synchronous else self._comm.Isend
        requests = [send(piece, peer, tag) for piece in self._pieces(array)]
        return self._started("send", start, array.nbytes, requests, array, about=about)

    def ireceive(self, array: NDArray[Any], peer: int, tag: int, *, about: object = None) -> Request:
        """Begin to receive `array` from rank `peer`; the request owns it until it is done."""
        require_buffer(array, "receive")
        start = perf_counter()
        requests = [self._comm.Irecv(piece, peer, tag) for piece in self._pieces(array)]
        return self._started("receive", start, array.nbytes, requests, array, about=about)

    # -- how the above is done ---------------------------------------------------------------------------------------

    def _operation(self, name: str) -> Any:
        return self._mpi.SUM if name == "sum" else self._mpi.MAX

    def _pieces(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        return pieces(array, self._limit)

    def _layout(self, array: NDArray[Any]) -> tuple[list[int], list[int]]:
        """Elements and first element of every rank's block of rows."""
        width = array.size // max(len(array), 1)
        key = (len(array), width)
        if key not in self._layouts:
            counts = [n * width for n in block_sizes(len(array), self.size)]
            self._layouts[key] = (counts, offsets_of(counts))
        return self._layouts[key]

    def _finish(self, name: str, start: float, nbytes: int, *, is_root: bool = False, about: object = None) -> None:
        sent = bytes_sent_by_rank(name, nbytes, self.size, is_root=is_root)
        self.recorder.end_communication(name, self.axis, start, sent, about=about)

    def _started(
        self,
        name: str,
        start: float,
        nbytes: int,
        requests: list[Any],
        *arrays: NDArray[Any],
        is_root: bool = False,
        about: object = None,
    ) -> Request:
        self._finish(name, start, nbytes, is_root=is_root, about=about)
        return Request(requests, arrays, name, self.axis, self.recorder, about)

    def _require_root_array(self, what: str, array: NDArray[Any] | None, part: NDArray[Any], rows: int) -> NDArray[Any]:
        if array is None:
            raise ValueError(f"{what}: the root needs the whole array")
        require_buffer(array, what, part.dtype)
        self._require_shape(what, array, (rows, *part.shape[1:]))
        return array

    @staticmethod
    def _require_shape(what: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            raise ValueError(f"{what}: expected an array of shape {shape}, got {array.shape}")
