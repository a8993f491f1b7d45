"""Collectives by NCCL, from device to device, in the order of a stream.

Starting NCCL on the ranks of a group, so that all of them learn of it where one cannot.

NCCL's own start blocks until every rank has come, and a rank that fails does not tell the others. So it runs in a
thread, and the rank's own thread meanwhile listens to the others over MPI.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Any
from weakref import finalize

import numpy as np

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.partition import row_layout
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.staging import Staging
from hybridnn.comm.transports.transport import Array, Graphs, is_on_host
from hybridnn.kernels.device_events import is_complete

START_SECONDS = 120.0
"""In which NCCL connects the ranks, however many they are."""

POLL_SECONDS = 0.001
BAD_NEWS_TAG = 32_766


def start_nccl(comm: Any, cupy: Any, seconds: float = START_SECONDS) -> tuple[Any, str]:
    """Connect the ranks by NCCL; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        On which nothing else is under way.
    cupy : module
        With this rank's GPU as the current device.
    seconds : float
        After which a rank that is not connected has failed.

    Returns
    -------
    NcclCommunicator or None
        None on all ranks where one of them failed.
    str
        What failed on this rank; empty if nothing did. NCCL may then still wait for the others in a thread of its own,
        which ends with the program.
    """
    identifier, problem = _identifier(comm, cupy.cuda.nccl)
    if identifier is None:
        return None, problem
    start = _begin(comm.Get_size(), comm.Get_rank(), identifier, cupy)
    problem = _problem_of(start, comm, monotonic() + seconds)
    if _all_are_connected(comm, problem):
        return start.result(), ""
    start.add_done_callback(_abort)
    return None, problem


def _identifier(comm: Any, nccl: Any) -> tuple[Any, str]:
    """What rank 0 names the connection by, on all ranks; or None and, on rank 0, the reason."""
    identifier, problem = None, ""
    if comm.Get_rank() == 0:
        try:
            identifier = nccl.get_unique_id()
        except Exception as error:
            problem = _in_words(error)
    # A pickle, once: CuPy says nothing of what the identifier is.
    return comm.bcast(identifier), problem


def _begin(size: int, rank: int, identifier: Any, cupy: Any) -> Future[Any]:
    """Let a thread connect this rank; no program waits at its end for one that never does."""
    start: Future[Any] = Future()
    gpu = cupy.cuda.runtime.getDevice()

    def connect() -> None:
        try:
            cupy.cuda.runtime.setDevice(gpu)  # every thread has a current device of its own
            start.set_result(cupy.cuda.nccl.NcclCommunicator(size, identifier, rank))
        except Exception as error:  # CuPy has no name for the newer of NCCL's errors, and fails with others there
            start.set_exception(error)

    Thread(target=connect, daemon=True).start()
    return start


def _problem_of(start: Future[Any], comm: Any, deadline: float) -> str:
    """What failed on this rank; empty if nothing did, or if another rank says that it failed."""
    while True:
        with suppress(TimeoutError):
            error = start.exception(POLL_SECONDS)
            return "" if error is None else _in_words(error)
        if comm.Iprobe(tag=BAD_NEWS_TAG):
            return ""
        if monotonic() > deadline:
            return "it does not connect in time"


def _all_are_connected(comm: Any, problem: str) -> bool:
    """Whether every rank is, the same answer on all; those that still wait for a rank that failed are told of it."""
    size, rank = comm.Get_size(), comm.Get_rank()
    failed, nothing = np.zeros(size, np.uint8), np.empty(0, np.uint8)
    failed[rank] = bool(problem)
    news = [comm.Isend(nothing, peer, BAD_NEWS_TAG) for peer in range(size) if problem and peer != rank]
    comm.Allgather(import_mpi().IN_PLACE, failed)
    for peer in np.flatnonzero(failed).tolist():
        if peer != rank:
            comm.Recv(nothing, peer, BAD_NEWS_TAG)
    import_mpi().Request.Waitall(news)
    return not failed.any()


def _abort(start: Future[Any]) -> None:
    """End a connection that came although another rank has none."""
    if start.exception() is None:
        start.result().abort()


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


class Nccl(Staging):
    """All-reduce, all-gather, reduce-scatter and broadcast are put in line on the device, and the host waits for none.

    Messages, scatter and gather are staged, as are arrays of the host. Every rank of the group has a GPU of its own.
    Done means that the current stream goes on after the collective.

    While the current stream is recorded, collectives become a part of the recording: NCCL's stream is drawn into it by
    the event it waits for, and has come back once every request was waited for. All ranks then record the same
    collectives and replay the recording equally often. Graphs go before the connection, which otherwise waits for
    them for ever (NCCL User Guide, "Using NCCL with CUDA Graphs").

    `disconnect` ends the connection on all ranks together. One that nobody ends so, as after an error, is aborted when
    it is no longer needed, at the latest when the program ends: that waits for no other rank.

    Where NCCL cannot connect all ranks, and after `disconnect`, everything is staged.

    Parameters are those of `Staging`; making one is collective over the group.
    """

    def __init__(self, comm: Any, limit: int, device: Device) -> None:
        super().__init__(comm, limit, device)
        self._nccl: Any = device.cupy.cuda.nccl
        self._types = {name: getattr(self._nccl, f"NCCL_{name.upper()}") for name in TYPES}
        self._recordings: list[Graphs] = []
        self._members, why = start_nccl(comm, device.cupy)
        self.problem = why and f"NCCL cannot connect the ranks ({why}; NCCL_DEBUG=INFO makes it say more)"
        if self._members is not None:
            self._abandon = finalize(self, _abandon, self._members, self._recordings)

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum, or maximum, over the ranks."""
        if not self._takes(array):
            return super().allreduce(array, operation)
        how = self._nccl.NCCL_SUM if operation == "sum" else self._nccl.NCCL_MAX
        address, kind = array.data.ptr, self._type(array)
        return self._in_line(lambda on: self._members.allReduce(address, address, array.size, kind, how, on))

    def allgather(self, array: Array) -> list[Any]:
        """Fill the rows of `array` from everybody's block."""
        if not self._takes(array):
            return super().allgather(array)
        kind, (counts, _) = self._type(array), row_layout(array, self._size)

        def call(on: int) -> None:
            if counts[0] == counts[-1]:
                own = self._block(array, self._rank).data.ptr
                self._members.allGather(own, array.data.ptr, counts[0], kind, on)
                return
            for root in range(self._size):
                if counts[root]:
                    address = self._block(array, root).data.ptr
                    self._members.broadcast(address, address, counts[root], kind, root, on)

        return self._in_line(call)

    def reduce_scatter(self, array: Array, out: Array) -> list[Any]:
        """Sum `array`, and leave this rank's block of the rows of the sum in `out`."""
        if not (self._takes(array) and not is_on_host(out)):
            return super().reduce_scatter(array, out)
        kind, how, (counts, _) = self._type(array), self._nccl.NCCL_SUM, row_layout(array, self._size)

        def call(on: int) -> None:
            if counts[0] == counts[-1]:
                self._members.reduceScatter(array.data.ptr, out.data.ptr, counts[0], kind, how, on)
                return
            for root in range(self._size):
                if counts[root]:
                    block = self._block(array, root).data.ptr
                    target = out.data.ptr if root == self._rank else 0
                    self._members.reduce(block, target, counts[root], kind, how, root, on)

        return self._in_line(call)

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Give every rank the root's `array`."""
        if not self._takes(array):
            return super().broadcast(array, root)
        address, kind = array.data.ptr, self._type(array)
        return self._in_line(lambda on: self._members.broadcast(address, address, array.size, kind, root, on))

    def register_graphs(self, recordings: Graphs) -> bool:
        """See `Transport.register_graphs`."""
        if self._members is None:
            return False
        if not any(recordings is known for known in self._recordings):
            self._recordings[:] = [*filter(None, self._recordings), recordings]  # empty ones are told again when needed
        return True

    def disconnect(self) -> None:
        """Wait for this rank's device, give up recordings, and end the connection when all ranks have come so far."""
        if self._members is None:
            return
        self._device.flush()
        self._device.continue_after(self._device.mark(self._device.collectives))
        self._device.wait_for(self._device.mark())
        _drop(self._recordings)
        self._comm.Barrier()
        self._abandon.detach()
        self._members.destroy()
        self._members = None

    def _takes(self, array: Array) -> bool:
        connected = self._members is not None
        return connected and not is_on_host(array) and array.dtype.name in self._types and array.size > 0

    def _type(self, array: Array) -> Any:
        return self._types[array.dtype.name]

    def _in_line(self, call: Callable[[int], None]) -> list[Any]:
        """Make a call, given the stream's address, after what the current stream was told; its parts at once."""
        stream = self._device.collectives
        stream.wait_event(self._device.mark())
        self._nccl.groupStart()
        try:
            call(stream.ptr)
        finally:
            self._nccl.groupEnd()
        return [_InLine(self._device, self._device.mark(stream), self._device.recording)]


def _drop(recordings: list[Graphs]) -> None:
    for some in recordings:
        some.clear()


def _abandon(members: Any, recordings: list[Graphs]) -> None:
    """End a connection, on this rank alone."""
    _drop(recordings)
    members.abort()


class _InLine:
    """Answers as `Transfer` does; what it waits for, it lets the current stream wait for."""

    def __init__(self, device: Device, event: Any, recorded: bool) -> None:
        self._device, self._event, self._recorded = device, event, recorded

    def Testall(self, requests: list[Any]) -> bool:  # noqa: N802 - the name MPI gives it
        if self._recorded:
            return False  # nothing happens while it is recorded, and to ask CUDA would spoil the recording
        self._device.deferred_calls.poll()
        if not is_complete(self._device.cupy, self._event):
            return False
        self.Waitall(requests)
        return True

    def Waitall(self, _requests: list[Any]) -> None:  # noqa: N802 - the name MPI gives it
        self._device.continue_after(self._event)
