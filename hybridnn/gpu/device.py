"""Device of a rank: events, pinned host memory, copies from and to it, and MPI calls that wait for the device."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.nn.kernels import Array

CHUNK_BYTES = 2**22  # bytes of one staged message: the copy of a chunk overlaps with the messages of earlier chunks
SUCCESS, NOT_READY = 0, 600  # ``cudaSuccess`` and ``cudaErrorNotReady``
Progress = Callable[[], None]  # makes progress on communication with other ranks while this rank waits for its device


def record_event(cupy: Any, stream: Any = None) -> Any:
    """Event after all work enqueued so far on `stream`, by default the current one."""
    event = cupy.cuda.Event(disable_timing=True)
    event.record(cupy.cuda.get_current_stream() if stream is None else stream)
    return event


def is_complete(cupy: Any, event: Any) -> bool:
    """Whether `event` has completed; unlike CuPy's ``Event.done``, which is False for ever after an error.

    Raises `CUDARuntimeError` if the device has failed.
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status not in (SUCCESS, NOT_READY):
        event.synchronize()  # raises with the device's message
    return bool(status == SUCCESS)


def wait_for(cupy: Any, event: Any, progress: Progress | None) -> None:
    """Return when `event` has completed; `CUDARuntimeError` if the device has failed.

    `progress` is called repeatedly meanwhile; None if no other rank needs this one, which then waits inside CUDA.
    """
    if progress is None:
        event.synchronize()
        return
    while not is_complete(cupy, event):
        progress()
        sleep(0)  # ranks may share a core


MIN_PINNED_BYTES = 4096  # smallest size of a buffer


class PinnedMemory:
    """Pool of buffers, each for one message or copy at a time.

    Pinning takes far longer than most messages, so the pool keeps its buffers: as many bytes as were ever in use at
    once, in sizes that are powers of two.
    """

    def __init__(self, cupy: Any, progress: Progress | None = None) -> None:
        self._cupy, self._progress = cupy, progress
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._copied_from: deque[tuple[Any, NDArray[np.uint8]]] = deque()

    def acquire(self, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `nbytes`."""
        while self._copied_from and is_complete(self._cupy, self._copied_from[0][0]):
            self._add_free(self._copied_from.popleft()[1])
        size = max(MIN_PINNED_BYTES, 1 << max(nbytes - 1, 0).bit_length())
        free = self._free[size]
        if free:
            return free.pop()
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(size), np.uint8, size)

    def release(self, memory: NDArray[np.uint8], after: Any = None) -> None:
        """Return a buffer to the pool, for use after the event `after`, if given."""
        if after is None:
            self._add_free(memory)
        else:
            self._copied_from.append((after, memory))

    def wait_for_all_but(self, most: int) -> None:
        """Return when the device still copies from at most `most` of the released buffers."""
        while len(self._copied_from) > most:
            event, memory = self._copied_from.popleft()
            wait_for(self._cupy, event, self._progress)
            self._add_free(memory)

    def _add_free(self, memory: NDArray[np.uint8]) -> None:
        self._free[memory.size].append(memory)


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
    work that is enqueued later starts after the copy; the host waits for neither. `chunk_bytes`, as `CHUNK_BYTES`, are
    the same on all ranks.

    All groups have one stream of NCCL, `collectives`: collectives of different groups could deadlock if they ran
    concurrently. `checks` are called while this rank waits for the device; they raise if what it waits for cannot come.
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
