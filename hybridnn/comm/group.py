"""Group: the ranks along one axis of the process grid, with collectives and messages.

Every call checks its arrays, is noted by the recorder before it begins and when it has ended, and is carried out by the
transport of the group. Without a device, blocking calls go straight to MPI. In a group of one rank all calls return at
once, so that code for many ranks is also the code for one. Arrays above the message limit travel in pieces, because
most MPI libraries count elements in 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count
from math import prod
from os import getpid
from time import perf_counter
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hybridnn.comm.blocks import pieces, row_layout
from hybridnn.comm.mpi import CHILD, import_mpi, ranks_within, require_buffer
from hybridnn.comm.recorder import Call, CallRecord, CollectiveProgress, Recorder, bytes_sent_by_rank
from hybridnn.comm.transport import REDUCTIONS, Transport, copy_rows
from hybridnn.errors import GridError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridnn.gpu.setup import TransportFactory

MESSAGE_LIMIT = 2**30  # bytes of one MPI call at most; far below the 2 GiB where 32-bit counts and some networks fail

REDUCE_PIECE = 2**21
"""Bytes of one blocking all-reduce. Pieces stay in the processor's cache between their steps: 144 MB over 2 ranks took
63.0 ms at once, and 16.8 ms in pieces."""


class Request:
    """A collective or a message in flight; owns its arrays until `wait` returns or `test` returns True.

    Parameters
    ----------
    requests : list
        MPI requests, or one object with their ``Testall`` and ``Waitall`` (`hybridnn.comm.transport`); empty for an
        operation without communication.
    arrays : tuple of ndarray
        Kept alive until the operation is done.
    """

    __slots__ = ("_arrays", "_call", "_recorder", "_requests")

    def __init__(
        self, requests: list[Any], arrays: tuple[NDArray[Any], ...], call: CallRecord, recorder: Recorder
    ) -> None:
        self._requests = requests
        self._arrays = arrays
        self._call = call
        self._recorder = recorder

    def test(self) -> bool:
        """Make progress; True once the operation is done."""
        if not self._requests:
            return True
        start = perf_counter()
        # A class method, called on an instance: importing MPI would take longer than the call.
        done: bool = self._requests[0].Testall(self._requests)
        if done:
            self._end(".test", start)
        else:
            self._recorder.end_poll(self._call, start)
        return done

    def wait(self) -> None:
        """Return when the operation is done."""
        if not self._requests:
            return
        self._recorder.current_call = self._call
        start = perf_counter()
        self._requests[0].Waitall(self._requests)
        self._end(".wait", start)

    def _end(self, suffix: str, start: float) -> None:
        name, channel, *_, about = self._call
        self._recorder.end_communication(name + suffix, channel.axis, start, 0, 0, about)
        self._requests = []
        self._arrays = ()


DONE = Request([], (), Call("", CollectiveProgress("", ())), Recorder(0))
"""The request of an operation without communication."""


class Group:
    """Ranks that communicate with one another.

    Arrays lie in host memory; after `attach_device` also on the device of this rank.

    Parameters
    ----------
    comm : MPI.Intracomm or None
        None stands for a group of one rank.
    message_limit : int
        Bytes above which an array travels in pieces.
    members : sequence of int, optional
        Ranks in the grid, in the order of the group; by default those in the group.

    Attributes
    ----------
    comm : MPI.Intracomm or None
    members : tuple of int
    transport : Transport
        What carries out the calls that do not block; `attach_device` replaces it.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        axis: str,
        recorder: Recorder,
        message_limit: int = MESSAGE_LIMIT,
        members: Sequence[int] | None = None,
    ) -> None:
        if members is None:
            members = range(1 if comm is None else comm.Get_size())
        self.axis = axis
        self.recorder = recorder
        self.size = len(members)
        self.rank: int = 0 if comm is None else comm.Get_rank()
        self.members = tuple(members)
        self._channel = recorder.open_channel(axis, self.members)
        self.comm: Any = comm
        self._process = getpid()
        self._parts: dict[tuple[str, Hashable], Group] = {}
        self._limit = message_limit
        self._mpi: Any = None if comm is None else import_mpi()
        self.transport = Transport(comm, message_limit)
        self._transports: TransportFactory | None = None

    def attach_device(self, transports: TransportFactory) -> str:
        """Accept arrays of this rank's device from now on; returns `Transport.problem`.

        Collective; nothing may be in flight.
        """
        if self.size == 1:
            return ""
        self.disconnect()
        self.transport = transports.transport(self.comm, self.axis, self._limit)
        self._transports = transports
        return self.transport.problem

    def disconnect(self) -> None:
        """Close the connections of the transport beside MPI; arrays of the device are staged from then on.

        Collective; nothing may be in flight. CUDA graphs with calls of the group are dropped first.
        """
        self.transport.disconnect()

    def split(self, color: int, axis: str, key: Hashable = None) -> Group:
        """The group of the ranks with the same `color`, in the same order. Collective.

        An equal `axis` and `key`, which are the same on all ranks, stand for the same colors and return the same group:
        its communicator is kept. It accepts arrays of the device if this group does, but has no NCCL connection.
        """
        part = self._parts.get((axis, key))
        if part is None:
            comm, members = None, [self.members[self.rank]]
            if self.size > 1:
                from hybridnn.comm.kept import kept_split  # one rank splits nothing

                comm = kept_split(self.comm, (axis, key), color, self.rank)
            if comm is not None:
                members = [self.members[rank] for rank in ranks_within(comm, self.comm)]
            part = self._parts[axis, key] = Group(comm, axis, self.recorder, self._limit, members)
        transports = None if self._transports is None else self._transports.of_parts()
        if transports is not None and part._transports != transports:
            part.attach_device(transports)
        return part

    def reserve(self, axis: str) -> tuple[Group, Callable[[], None]]:
        """A group of the same ranks for one use at a time, and the function that releases it. Both are collective.

        For calls that every rank begins at its own time, which must not meet those of another use.
        """
        reserved: set[int] = set()
        if self.size > 1:
            from hybridnn.comm.kept import kept

            reserved = kept(self.comm, axis, set)
        number = next(number for number in count() if number not in reserved)
        reserved.add(number)
        return self.split(0, axis, number), partial(reserved.discard, number)

    # -- notes for the recorder --------------------------------------------------------------------------------------

    def _begin(
        self,
        name: str,
        array: NDArray[Any] | None = None,
        root: int = -1,
        reduction: str | None = None,
        nbytes: int = 0,
    ) -> CallRecord:
        """Check the array of a collective, and note that this rank enters it; `nbytes` where it is not all of it."""
        dtype = None
        self._require_own_process()
        if array is not None:
            require_buffer(array, name)
            nbytes, dtype = nbytes or array.nbytes, array.dtype
        channel = self._channel
        channel.entered = number = channel.entered + 1
        call: CallRecord = (name, channel, number, nbytes, dtype, root, reduction, perf_counter(), None)
        channel.recent.append(call)
        self.recorder.current_call = call
        return call

    def _begin_message(self, name: str, array: NDArray[Any], peer: int, tag: int, about: object) -> CallRecord:
        """Check the array of a message, and note that this rank begins it."""
        self._require_own_process()
        require_buffer(array, name)
        call: CallRecord = (name, self._channel, 0, array.nbytes, array.dtype, peer, tag, perf_counter(), about)
        self.recorder.current_call = call
        return call

    def _require_own_process(self) -> None:
        if getpid() != self._process:
            raise GridError(f"the {self.axis} group {CHILD}")

    def _finish(self, call: CallRecord) -> None:
        """Note that a blocking call has ended, or that a non-blocking one has been started."""
        name, _, _, nbytes, _, peer, _, start, about = call
        sent = bytes_sent_by_rank(name, nbytes, self.size, peer == self.rank)
        self.recorder.end_communication(name, self.axis, start, sent, 1, about)
        if self.recorder.captured is not None:
            self.recorder.captured.append((call, sent))

    def _started(self, call: CallRecord, requests: list[Any], *arrays: NDArray[Any]) -> Request:
        """Note that a non-blocking call has been started, and return its request."""
        self._finish(call)
        return Request(requests, arrays, call, self.recorder)

    # -- collectives -------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        if self.size > 1:
            call = self._begin("barrier")
            self.transport.flush()
            self.comm.Barrier()
            self._finish(call)

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Replace `array` by its sum (``"max"``: maximum) over the ranks, in place."""
        _require_reduction(operation)
        if self.size == 1:
            return
        if self._transports is not None:
            self.iallreduce(array, operation).wait()
            return
        call = self._begin("allreduce", array, reduction=operation)
        for piece in pieces(array, min(self._limit, REDUCE_PIECE)):
            self.comm.Allreduce(self._mpi.IN_PLACE, piece, getattr(self._mpi, operation.upper()))
        self._finish(call)

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> Request:
        """As `allreduce`, but non-blocking; the request owns `array` until it is done."""
        _require_reduction(operation)
        if self.size == 1:
            return DONE
        call = self._begin("allreduce", array, reduction=operation)
        return self._started(call, self.transport.allreduce(array, operation), array)

    def allgather_rows(self, array: NDArray[Any]) -> None:
        """Gather the blocks of rows of all ranks (`hybridnn.comm.blocks`) in `array`, shape (rows, ...), in place.

        On entry each rank has filled its block of rows; on return all rows are filled.
        """
        if self.size == 1:
            return
        if self._transports is not None or array.nbytes > self._limit:
            self.iallgather_rows(array).wait()
            return
        call = self._begin("allgather", array)
        counts, offsets = row_layout(array, self.size)
        if counts[0] == counts[-1]:
            self.comm.Allgather(self._mpi.IN_PLACE, array)
        else:
            self.comm.Allgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])
        self._finish(call)

    def iallgather_rows(self, array: NDArray[Any]) -> Request:
        """As `allgather_rows`, but non-blocking; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        call = self._begin("allgather", array)
        return self._started(call, self.transport.allgather(array), array)

    def broadcast(self, array: NDArray[Any], root: int = 0) -> None:
        """Copy the root's `array` to all ranks, in place."""
        if self.size == 1:
            return
        if self._transports is not None:
            self.ibroadcast(array, root).wait()
            return
        call = self._begin("broadcast", array, root)
        for piece in pieces(array, self._limit):
            self.comm.Bcast(piece, root)
        self._finish(call)

    def ibroadcast(self, array: NDArray[Any], root: int = 0) -> Request:
        """As `broadcast`, but non-blocking; the request owns `array` until it is done."""
        if self.size == 1:
            return DONE
        call = self._begin("broadcast", array, root)
        return self._started(call, self.transport.broadcast(array, root), array)

    def scatter_rows(self, array: NDArray[Any] | None, out: NDArray[Any], rows: Sequence[int], root: int = 0) -> None:
        """Send rank i the next ``rows[i]`` rows of the root's `array`.

        Parameters
        ----------
        array : ndarray, shape (sum of rows, ...), or None
            Used on the root only.
        out : ndarray, shape (rows[rank], ...)
            Rows of this rank.
        rows : sequence of int
            Number of rows of every rank; zeros are allowed.
        """
        self._exchange_rows("scatter", array, out, rows, root)

    def gather_rows(self, array: NDArray[Any], out: NDArray[Any] | None, rows: Sequence[int], root: int = 0) -> None:
        """Concatenate the `array` of all ranks in the root's `out`.

        Parameters
        ----------
        array : ndarray, shape (rows[rank], ...)
            Rows of this rank.
        out : ndarray, shape (sum of rows, ...), or None
            Used on the root only.
        rows : sequence of int
            Number of rows of every rank; zeros are allowed.
        """
        self._exchange_rows("gather", out, array, rows, root)

    def _exchange_rows(
        self, name: str, full: NDArray[Any] | None, part: NDArray[Any], rows: Sequence[int], root: int
    ) -> None:
        """Scatter or gather, by `name`, between the root's `full` array and the `part` of every rank."""
        require_buffer(part, name)
        _require_shape(name, part, (rows[self.rank], *part.shape[1:]))
        if self.rank == root:
            if full is None:
                raise ValueError(f"{name}: the root needs the whole array")
            require_buffer(full, name, part.dtype)
            _require_shape(name, full, (sum(rows), *part.shape[1:]))
        scatters = name == "scatter"
        if self.size == 1:
            copy_rows(*((full, part) if scatters else (part, full)))
            return
        call = self._begin(name, part, root, nbytes=sum(rows) * prod(part.shape[1:]) * part.itemsize)
        requests = self.transport.exchange_rows(full, part, rows, root, scatters=scatters)
        self._started(call, requests, part, *([] if full is None else [full])).wait()

    # -- messages ----------------------------------------------------------------------------------------------------

    def isend(self, array: NDArray[Any], peer: int, tag: int, *, about: object = None) -> Request:
        """Send `array` to rank `peer`, non-blocking; the request owns `array` until it is done.

        `about` is the purpose of the message, for the recorder.
        """
        call = self._begin_message("send", array, peer, tag, about)
        return self._started(call, self.transport.send(array, peer, tag), array)

    def ireceive(self, array: NDArray[Any], peer: int, tag: int, *, about: object = None) -> Request:
        """Receive `array` from rank `peer`, non-blocking; the request owns `array` until it is done."""
        call = self._begin_message("receive", array, peer, tag, about)
        return self._started(call, self.transport.receive(array, peer, tag), array)


def _require_reduction(operation: str) -> None:
    if operation not in REDUCTIONS:
        raise ValueError(f"an all-reduce computes {' or '.join(map(repr, REDUCTIONS))}, not {operation!r}")


def _require_shape(what: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{what}: expected an array of shape {shape}, got {array.shape}")
