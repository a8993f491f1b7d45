"""A group: the ranks along one axis of the process grid, and the collectives among them.

The methods are thin: they check the arrays, tell the recorder, and hand the arrays to a transport, or where a call
blocks straight to MPI. In a group of one rank every one of them does nothing, so that code for many ranks is also the
code for one. Arrays over the message limit travel in pieces, because MPI counts are 32-bit integers in most libraries.

What a group refuses before anything is sent, beside what `require_buffer` does.

How a group tells the recorder what its rank is about to do, and what it has done.

What carries the arrays of a group: MPI as it is, or a transport for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi, ranks_within, require_buffer
from hybridnn.comm.partition import block_slice, offsets_of, pieces, row_layout
from hybridnn.comm.recorder import CallRecord, Recorder, bytes_sent_by_rank
from hybridnn.comm.request import DONE, Request
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.direct import Direct
from hybridnn.comm.transports.factory import TransportFactory
from hybridnn.comm.transports.transport import Transport, copy_rows

if TYPE_CHECKING:
    from mpi4py import MPI
    from typing_extensions import Self


def require_root_array(what: str, array: NDArray[Any] | None, part: NDArray[Any], rows: int) -> NDArray[Any]:
    """The root's `array`, if it is `rows` rows like those of `part`.

    Raises
    ------
    ValueError
        If there is none, or its shape is another.
    TypeError
        If its dtype is another.
    """
    if array is None:
        raise ValueError(f"{what}: the root needs the whole array")
    require_buffer(array, what, part.dtype)
    require_shape(what, array, (rows, *part.shape[1:]))
    return array


def require_shape(what: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape.

    Raises
    ------
    ValueError
        Naming both shapes.
    """
    if array.shape != shape:
        raise ValueError(f"{what}: expected an array of shape {shape}, got {array.shape}")


class RecordedCalls:
    """The base of a group: every call is noted before it begins and when it has ended.

    Parameters
    ----------
    axis : str
        Name of the axis.
    recorder : Recorder
    members : sequence of int
        Ranks of the grid, in the order of the group.
    rank : int
        This rank's number in the group.
    """

    def __init__(self, axis: str, recorder: Recorder, members: Sequence[int], rank: int) -> None:
        self.axis = axis
        self.recorder = recorder
        self.size = len(members)
        self.rank = rank
        self._channel = recorder.open_channel(axis, tuple(members))

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of the grid, in the order of the group."""
        return self._channel.members

    def _begin(
        self,
        name: str,
        nbytes: int,
        dtype: np.dtype[Any] | None = None,
        root: int = -1,
        reduction: str | None = None,
    ) -> CallRecord:
        """Note that this rank enters a collective."""
        channel = self._channel
        channel.entered = number = channel.entered + 1
        call: CallRecord = (name, channel, number, nbytes, dtype, root, reduction, perf_counter(), None)
        channel.recent.append(call)
        self.recorder.current_call = call
        return call

    def _finish(self, call: CallRecord) -> None:
        """Note that a call has ended: the whole operation, or the start of a non-blocking one."""
        name, _, _, nbytes, _, peer, _, start, about = call
        sent = _bytes_sent(name, nbytes, self.size, peer == self.rank)
        self.recorder.end_communication(name, self.axis, start, sent, 1, about)
        if self.recorder.captured is not None:
            self.recorder.captured.append((call, sent))

    def _start(
        self,
        name: str,
        nbytes: int,
        start: Callable[[], list[Any]],
        arrays: tuple[NDArray[Any], ...],
        root: int = -1,
        reduction: str | None = None,
    ) -> Request:
        """Enter a non-blocking collective of `arrays`, which `start` hands to MPI."""
        call = self._begin(name, nbytes, arrays[-1].dtype, root, reduction)
        return self._started(call, start(), arrays)

    def _begin_message(self, name: str, array: NDArray[Any], peer: int, tag: int, about: object) -> CallRecord:
        """Note that this rank begins a message."""
        call: CallRecord = (name, self._channel, 0, array.nbytes, array.dtype, peer, tag, perf_counter(), about)
        self.recorder.current_call = call
        return call

    def _started(self, call: CallRecord, requests: list[Any], arrays: tuple[NDArray[Any], ...]) -> Request:
        """Note that MPI has been given what `requests` are for."""
        self._finish(call)
        return Request(requests, arrays, call, self.recorder)


@lru_cache(maxsize=4096)
def _bytes_sent(name: str, nbytes: int, ranks: int, is_root: bool) -> int:
    return 0 if name == "barrier" else bytes_sent_by_rank(name, nbytes, ranks, is_root=is_root)


MESSAGE_LIMIT = 2**30
"""Bytes one MPI call may carry; far below the 2 GiB where 32-bit counts and some transports break."""


class CarriedCalls(RecordedCalls):
    """The base of a group: its communicator, and the transport that begins its calls.

    Parameters are those of `Group`.
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
        self._transport: Transport = Direct(comm, message_limit)
        self._transports: TransportFactory | None = None

    def attach_device(self, transports: TransportFactory) -> str:
        """From now on take arrays of this rank's device too; collective, and nothing may be in flight.

        Returns
        -------
        str
            As `Transport.problem`.
        """
        if self.size == 1:
            return ""
        self.disconnect()
        self._transport = transports.transport(self._comm, self.axis, self._limit)
        self._transports = transports
        return self._transport.problem

    def disconnect(self) -> None:
        """End what connects the ranks beside MPI, whose arrays are staged from then on.

        Collective, and nothing may be in flight. What was recorded of the group's calls is given up before.
        """
        self._transport.disconnect()

    @property
    def transport(self) -> Transport:
        """What begins the calls that do not block; `attach_device` replaces it."""
        return self._transport

    @property
    def device(self) -> Device | None:
        """This rank's device, whose arrays are taken; None where there is none, and in a group of one rank."""
        return None if self._transports is None else self._transports.device

    def split(self, color: int, axis: str, *, carries: bool = True) -> Self:
        """Divide the group: the ranks that name the same `color` are a new one, in the same order; collective.

        Parameters
        ----------
        color : int
        axis : str
        carries : bool
            Whether the new group takes arrays of the device where this one does. NCCL does not connect it.
        """
        if self.size == 1:
            return type(self)(None, axis, self.recorder, self._limit, self.members)
        comm = self._comm.Split(color, self.rank)
        members = [self.members[number] for number in ranks_within(comm, self._comm)]
        part = type(self)(comm, axis, self.recorder, self._limit, members)
        if carries and self._transports is not None:
            staged = self._transports.name == "nccl"
            part.attach_device(replace(self._transports, name="staging") if staged else self._transports)
        return part


REDUCE_PIECE = 2**21
"""Bytes of one blocking all-reduce. Pieces stay in the processor's cache between their steps: see
``benchmarks/allreduce_pieces.py``."""


class Group(CarriedCalls):
    """Ranks that communicate with one another.

    Arrays lie in the host's memory; after `attach_device` they may lie on this rank's device just as well.

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
            self._transport.flush()
            self._comm.Barrier()
            self._finish(call)

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Replace `array` by its sum (``"max"``: maximum) over the ranks, in place."""
        if self.size == 1:
            return
        if self._transports is not None:
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
        if self._transports is not None or array.nbytes > self._limit:
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
        if self._transports is not None:
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
        if self._transports is not None or total > self._limit:
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
