"""Transport by NCCL: collectives from device to device, enqueued on a stream.

NCCL connects the ranks in a call that blocks until all of them have made it, and their devices in the first collective.
A rank that fails does not inform the others. So both run in a thread, while the rank receives failures of other ranks
over MPI.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, TimeoutError
from contextlib import suppress
from functools import partial
from threading import Thread
from time import monotonic, sleep
from typing import Any
from weakref import finalize

import numpy as np

from hybridnn.comm.blocks import row_layout
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.transport import Graphs, is_on_host
from hybridnn.gpu.device import Device, is_complete, record_event
from hybridnn.gpu.staging import Staging
from hybridnn.nn.kernels import Array

START_SECONDS = 120.0  # time limit for connecting the ranks

POLL_SECONDS = 0.001
FAILURE_TAG = 32_766

Check = Callable[[], None]

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


class Nccl(Staging):
    """All-reduce, all-gather and broadcast by NCCL. Asynchronous: the host does not wait for them.

    Messages, scatter and gather are staged, and so are host arrays. Every rank of the group has a GPU of
    its own. A collective is done for `Request` when the current stream waits for it.

    While the current stream is being captured in a CUDA graph, collectives become part of the graph: NCCL's stream
    joins the capture by the event that it waits for, and leaves it when every request has been waited for. All ranks
    must capture the same collectives and replay their graphs equally often. Graphs are freed before the connection is
    closed, which otherwise would wait for them forever (NCCL User Guide, "Using NCCL with CUDA Graphs").

    `disconnect` closes the connection on all ranks together. A connection that is never disconnected, as after an
    error, is aborted when it is garbage-collected or the program ends, without waiting for other ranks. Without a
    connection everything is staged.

    Parameters are those of `Staging`. The constructor is collective over the group.
    """

    def __init__(self, comm: Any, limit: int, device: Device) -> None:
        super().__init__(comm, limit, device)
        self._nccl: Any = device.cupy.cuda.nccl
        self._types = {name: getattr(self._nccl, f"NCCL_{name.upper()}") for name in TYPES}
        self._graphs: list[Graphs] = []
        self._communicator, reason = start_nccl(comm, device.cupy)
        self.problem = reason and f"NCCL cannot connect the ranks ({reason}; NCCL_DEBUG=INFO makes it say more)"
        if self._communicator is not None:
            self._check = partial(_check_connection, self._communicator)
            device.checks.append(self._check)
            self._abort = finalize(
                self, _abort_connection, self._communicator, self._graphs, device.checks, self._check
            )

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum or maximum over the ranks."""
        if not self._accepts(array):
            return super().allreduce(array, operation)
        op = getattr(self._nccl, f"NCCL_{operation.upper()}")
        address, kind = array.data.ptr, self._type(array)
        return self._enqueue(lambda on: self._communicator.allReduce(address, address, array.size, kind, op, on))

    def allgather(self, array: Array) -> list[Any]:
        """Gather the blocks of rows of all ranks in `array`."""
        if not self._accepts(array):
            return super().allgather(array)
        kind, (counts, _) = self._type(array), row_layout(array, self._size)

        def call(on: int) -> None:
            if counts[0] == counts[-1]:
                own = self._block(array, self._rank).data.ptr
                self._communicator.allGather(own, array.data.ptr, counts[0], kind, on)
                return
            for root in range(self._size):
                if counts[root]:
                    address = self._block(array, root).data.ptr
                    self._communicator.broadcast(address, address, counts[root], kind, root, on)

        return self._enqueue(call)

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Copy the root's `array` to all ranks."""
        if not self._accepts(array):
            return super().broadcast(array, root)
        address, kind = array.data.ptr, self._type(array)
        return self._enqueue(lambda on: self._communicator.broadcast(address, address, array.size, kind, root, on))

    def register_graphs(self, graphs: Graphs) -> bool:
        """See `Transport.register_graphs`."""
        if self._communicator is None:
            return False
        if not any(graphs is known for known in self._graphs):
            self._graphs[:] = [*filter(None, self._graphs), graphs]  # an empty one is registered again before its use
        return True

    def disconnect(self) -> None:
        """Wait for this rank's device, free the graphs, and close the connection when all ranks have arrived."""
        if self._communicator is None:
            return
        self._device.flush()
        self._device.stream_waits_for(self._device.record_event(self._device.collectives))
        self._device.wait_for(self._device.record_event())
        _clear_graphs(self._graphs)
        self._comm.Barrier()
        self._abort.detach()
        self._device.checks.remove(self._check)
        self._communicator.destroy()
        self._communicator = None

    def _accepts(self, array: Array) -> bool:
        connected = self._communicator is not None
        return connected and not is_on_host(array) and array.dtype.name in self._types and array.size > 0

    def _type(self, array: Array) -> Any:
        return self._types[array.dtype.name]

    def _enqueue(self, call: Callable[[int], None]) -> list[Any]:
        """Make the NCCL calls of `call`, which is given a stream's address, as one group after the current stream."""
        stream = self._device.collectives
        stream.wait_event(self._device.record_event())
        self._nccl.groupStart()
        try:
            call(stream.ptr)
        finally:
            self._nccl.groupEnd()
        return [_StreamRequest(self._device, self._device.record_event(stream), self._device.is_capturing)]


class _StreamRequest:
    """``Testall`` and ``Waitall`` of collectives on a stream; waiting makes the current stream wait."""

    def __init__(self, device: Device, event: Any, captured: bool) -> None:
        self._device, self._event, self._captured = device, event, captured

    def Testall(self, requests: list[Any]) -> bool:  # noqa: N802 - name of mpi4py
        if self._captured:
            return False  # a query would invalidate the capture, during which nothing is executed
        self._device.progress()
        if not is_complete(self._device.cupy, self._event):
            return False
        self.Waitall(requests)
        return True

    def Waitall(self, _requests: list[Any]) -> None:  # noqa: N802 - name of mpi4py
        self._device.stream_waits_for(self._event)


def _check_connection(communicator: Any) -> None:
    """Raise if NCCL has noticed that a rank or a link failed, whose collectives would otherwise never end."""
    try:
        communicator.check_async_error()
    except Exception as error:  # as in `connect`
        raise RuntimeError(f"the connection of the ranks by NCCL failed: {_first_line(error)}") from error


def _clear_graphs(graphs: list[Graphs]) -> None:
    for mapping in graphs:
        mapping.clear()


def _abort_connection(communicator: Any, graphs: list[Graphs], checks: list[Check], check: Check) -> None:
    """End a connection on this rank alone."""
    checks.remove(check)
    _clear_graphs(graphs)
    communicator.abort()


def start_nccl(comm: Any, cupy: Any, seconds: float = START_SECONDS) -> tuple[Any, str]:
    """Connect the ranks of `comm`, with nothing else in flight, by NCCL on their current devices; collective.

    The results are the communicator, which has summed one element, None on all ranks if one of them failed or was not
    connected within `seconds`, and the failure of this rank, empty if there was none. NCCL may then still wait for the
    others in a daemon thread.
    """
    identifier, problem = _share_identifier(comm, cupy.cuda.nccl)
    if identifier is None:
        return None, problem
    start = _start_thread(comm.Get_size(), comm.Get_rank(), identifier, cupy)
    problem = _wait_for_start(start, comm, monotonic() + seconds)
    if _all_are_connected(comm, problem):
        return start.result(), ""
    if not start.cancel() and start.exception() is None:  # connected before another rank failed
        start.result().abort()
    return None, problem


def _share_identifier(comm: Any, nccl: Any) -> tuple[Any, str]:
    """The identifier of the connection, on all ranks; or None and, on rank 0, the reason."""
    identifier, problem = None, ""
    if comm.Get_rank() == 0:
        try:
            identifier = nccl.get_unique_id()
        except Exception as error:
            problem = _first_line(error)
    # Pickled, once: the type of the identifier is private to CuPy.
    return comm.bcast(identifier), problem


def _start_thread(size: int, rank: int, identifier: Any, cupy: Any) -> Future[Any]:
    """Connect this rank in a daemon thread, which does not keep the program from ending.

    If the result is cancelled, the thread aborts the connection as soon as NCCL returns.
    """
    start: Future[Any] = Future()
    gpu = cupy.cuda.runtime.getDevice()

    def connect() -> None:
        communicator = None
        try:
            cupy.cuda.runtime.setDevice(gpu)  # the current device is a property of the thread
            communicator = cupy.cuda.nccl.NcclCommunicator(size, identifier, rank)
            _sum_one_element(communicator, cupy, start)
            start.set_result(communicator)
        except Exception as error:  # CuPy raises KeyError for NCCL errors that it has no name for
            if communicator is not None:
                communicator.abort()
            with suppress(InvalidStateError):
                start.set_exception(error)

    Thread(target=connect, daemon=True).start()
    return start


def _sum_one_element(communicator: Any, cupy: Any, start: Future[Any]) -> None:
    """Make the first collective, in which NCCL connects the devices; raises if it fails. It ends if `start` does."""
    nccl, stream = cupy.cuda.nccl, cupy.cuda.Stream(non_blocking=True)
    with stream:
        element = cupy.zeros((1,), np.float32)
    address = element.data.ptr
    communicator.allReduce(address, address, 1, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    event = record_event(cupy, stream)
    while not start.cancelled() and not is_complete(cupy, event):
        communicator.check_async_error()
        sleep(POLL_SECONDS)


def _wait_for_start(start: Future[Any], comm: Any, deadline: float) -> str:
    """The failure of this rank; empty if it is connected, or another rank has reported a failure."""
    while True:
        with suppress(TimeoutError):
            error = start.exception(POLL_SECONDS)
            return "" if error is None else _first_line(error)
        if comm.Iprobe(tag=FAILURE_TAG):
            return ""
        if monotonic() > deadline:
            return "it does not connect in time"


def _all_are_connected(comm: Any, problem: str) -> bool:
    """Whether no rank failed, the same on all ranks; a rank with a problem reports it to those that still wait."""
    size, rank = comm.Get_size(), comm.Get_rank()
    failed, empty = np.zeros(size, np.uint8), np.empty(0, np.uint8)
    failed[rank] = bool(problem)
    reports = [comm.Isend(empty, peer, FAILURE_TAG) for peer in range(size) if problem and peer != rank]
    comm.Allgather(import_mpi().IN_PLACE, failed)
    for peer in np.flatnonzero(failed).tolist():
        if peer != rank:
            comm.Recv(empty, peer, FAILURE_TAG)
    import_mpi().Request.Waitall(reports)
    return not failed.any()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
