"""Events of a device, and pinned host memory, from and to which it copies asynchronously."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """Return when `event` has completed.

    Raises `CUDARuntimeError` if the device has failed.

    Parameters
    ----------
    progress : callable or None
        Called repeatedly meanwhile; None if no other rank needs this one, which then waits inside CUDA.
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
