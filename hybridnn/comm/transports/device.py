"""A rank's GPU as its transports see it: streams for copies and for NCCL, events, pinned memory.

Calls of MPI that may begin only when a device has come so far, in the order in which they were asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import sleep
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.transports.transport import Array
from hybridnn.kernels.device_events import is_complete, record_event, wait_for
from hybridnn.kernels.pinned_memory import PinnedMemory


class DeferredCalls:
    """A queue over all groups of a rank.

    MPI wants the collectives of a group, and the messages between two ranks, in the same order on both sides; here
    all calls keep the order in which the rank made them. They wait for this rank's own device, and with NCCL for the
    collectives that it was told before, which all ranks are told in one order: so the queue always empties.

    Parameters
    ----------
    cupy : module
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._waiting: deque[tuple[Any, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ready: Any, start: Callable[[], None]) -> None:
        """Call `start` once the event `ready`, if there is one, is done, and after all calls added before."""
        self._waiting.append((ready, start))
        self.poll()

    def poll(self) -> None:
        """Make the calls that can be made."""
        waiting = self._waiting
        while waiting and (waiting[0][0] is None or is_complete(self._cupy, waiting[0][0])):
            waiting.popleft()[1]()


CHUNK_BYTES = 2**22
"""Bytes of one staged message: the copy of a chunk runs beside the messages of those before it."""


class Device:
    """The current device, shared by the groups of a rank.

    Whoever computes does so in the current stream. A copy comes after what that stream was told before, and what it
    is told later comes after the copy; the host waits for neither.

    Parameters
    ----------
    cupy : module
    chunk_bytes : int
        As `CHUNK_BYTES`; the same on all ranks.

    Attributes
    ----------
    cupy : module
    chunk_bytes : int
    deferred_calls : DeferredCalls
        Calls of MPI that wait for the device.
    pinned : PinnedMemory
    collectives : Stream
        Where NCCL works: one stream for all groups, as its collectives could wait for one another if they ran at once.
    """

    def __init__(self, cupy: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.cupy, self.chunk_bytes = cupy, chunk_bytes
        self.deferred_calls, self._mpi = DeferredCalls(cupy), import_mpi()
        self.pinned = PinnedMemory(cupy)
        # A stream for each direction: a device copies both ways at once.
        self._outward = cupy.cuda.Stream(non_blocking=True)
        self._inward = cupy.cuda.Stream(non_blocking=True)
        self.collectives = cupy.cuda.Stream(non_blocking=True)

    @property
    def recording(self) -> bool:
        """Whether the current stream keeps what it is told for a CUDA graph, and does nothing of it."""
        capturing: bool = self.cupy.cuda.get_current_stream().is_capturing()
        return capturing

    def mark(self, stream: Any = None) -> Any:
        """An event after all that `stream`, by default the current one, was told so far."""
        return record_event(self.cupy, stream)

    def progress(self) -> None:
        """Let messages that wait for the device leave, and MPI go on with others, while this rank waits for it."""
        self.deferred_calls.poll()
        self._mpi.COMM_SELF.Iprobe()  # which finds nothing, and lets MPI make progress

    def wait_for(self, event: Any) -> None:
        """Return when the device has come to `event`, whatever other ranks need of this one until then."""
        wait_for(self.cupy, event, self.progress)

    def flush(self) -> None:
        """Hand to MPI all that waits for the device."""
        while self.deferred_calls:
            self.progress()
            sleep(0)  # ranks may share a core

    def copies_follow(self, event: Any) -> None:
        """Let copies asked for from now on begin after `event`."""
        self._outward.wait_event(event)
        self._inward.wait_event(event)

    def fetch(self, array: Array, host: NDArray[Any]) -> Any:
        """Copy a device's `array` to pinned memory; returns the event after it."""
        if array.size:
            array.get(stream=self._outward, out=host, blocking=False)
        return self.mark(self._outward)

    def deliver(self, host: NDArray[Any], array: Array) -> Any:
        """Copy pinned memory to a device's `array`; returns the event after it."""
        if array.size:
            array.set(host, stream=self._inward)
        return self.mark(self._inward)

    def continue_after(self, event: Any) -> None:
        """Let what the current stream is told from now on begin after `event`."""
        self.cupy.cuda.get_current_stream().wait_event(event)
