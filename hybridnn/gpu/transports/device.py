"""Device of a rank for its transports: streams for copies and for NCCL, events, pinned memory, deferred MPI calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import sleep
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.gpu.device_events import PinnedMemory, is_complete, record_event, wait_for
from hybridnn.nn.kernels import Array

CHUNK_BYTES = 2**22  # bytes of one staged message: the copy of a chunk overlaps with the messages of earlier chunks


class DeferredCalls:
    """Queue of MPI calls that start when a CUDA event has completed, over all groups of a rank.

    MPI requires the same order on all ranks for the collectives of a group, and for the messages between two ranks. All
    calls keep the order in which the rank made them. They wait for this rank's own device, and with NCCL for
    collectives that were enqueued before, in the same order on all ranks: so the queue always empties.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._waiting: deque[tuple[Any, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Any, start: Callable[[], None]) -> None:
        """Call `start` after `event` (None: no event) and after all earlier calls."""
        self._waiting.append((event, start))
        self.poll()

    def poll(self) -> None:
        """Start the calls whose events have completed."""
        waiting = self._waiting
        while waiting and (waiting[0][0] is None or is_complete(self._cupy, waiting[0][0])):
            waiting.popleft()[1]()


class Device:
    """The current device, shared by the groups of a rank.

    Computations are enqueued on the current stream. A copy starts after the work that is on this stream already, and
    work that is enqueued later starts after the copy; the host waits for neither.

    Parameters
    ----------
    chunk_bytes : int
        As `CHUNK_BYTES`; the same on all ranks.

    Attributes
    ----------
    collectives : Stream
        Stream of NCCL. One for all groups: collectives of different groups could deadlock if they ran concurrently.
    checks : list of callable
        Called while this rank waits for the device; they raise if what it waits for cannot come.
    """

    def __init__(self, cupy: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.cupy, self.chunk_bytes = cupy, chunk_bytes
        self.deferred_calls, self._mpi = DeferredCalls(cupy), import_mpi()
        self.pinned = PinnedMemory(cupy)
        # A stream per direction: a device copies both ways at once.
        self._to_host = cupy.cuda.Stream(non_blocking=True)
        self._to_device = cupy.cuda.Stream(non_blocking=True)
        self.collectives = cupy.cuda.Stream(non_blocking=True)
        self.checks: list[Callable[[], None]] = []

    @property
    def is_capturing(self) -> bool:
        """Whether the current stream is being captured in a CUDA graph."""
        capturing: bool = self.cupy.cuda.get_current_stream().is_capturing()
        return capturing

    def record_event(self, stream: Any = None) -> Any:
        """An event after all work on `stream`, by default the current one."""
        return record_event(self.cupy, stream)

    def progress(self) -> None:
        """Start deferred calls, and let MPI make progress with others, while this rank waits for the device.

        Raises what `checks` raise.
        """
        for check in self.checks:
            check()
        self.deferred_calls.poll()
        self._mpi.COMM_SELF.Iprobe()  # matches nothing; MPI makes progress inside

    def wait_for(self, event: Any) -> None:
        """Return when `event` has completed; communication goes on meanwhile."""
        wait_for(self.cupy, event, self.progress)

    def flush(self) -> None:
        """Return when all deferred calls have been started."""
        while self.deferred_calls:
            self.progress()
            sleep(0)  # ranks may share a core

    def copies_wait_for(self, event: Any) -> None:
        """Start copies that are enqueued from now on after `event`."""
        self._to_host.wait_event(event)
        self._to_device.wait_event(event)

    def copy_to_host(self, array: Array, host: NDArray[Any]) -> Any:
        """Copy `array` of the device to pinned memory, asynchronously; returns the event after the copy."""
        if array.size:
            array.get(stream=self._to_host, out=host, blocking=False)
        return self.record_event(self._to_host)

    def copy_to_device(self, host: NDArray[Any], array: Array) -> Any:
        """Copy pinned memory to `array` of the device, asynchronously; returns the event after the copy."""
        if array.size:
            array.set(host, stream=self._to_device)
        return self.record_event(self._to_device)

    def stream_waits_for(self, event: Any) -> None:
        """Start work that is enqueued on the current stream from now on after `event`."""
        self.cupy.cuda.get_current_stream().wait_event(event)
