"""Pool of pinned host memory, from and to which a device copies asynchronously."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.kernels.device_events import Progress, is_complete, wait_for

MIN_PINNED_BYTES = 4096
"""Smallest size of a buffer."""


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
