"""Pinned host memory, which a device copies from and to by itself, allocated once and used again."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.kernels.device_events import Progress, is_complete, wait_for

MIN_PINNED_BYTES = 4096
"""Smaller arrays share one size of memory."""


class PinnedMemory:
    """Memory lent for one message, or one copy, at a time.

    Pinning takes far longer than most messages, so memory is kept: in the end as much as was ever lent at once, in
    sizes that are powers of two.

    Parameters
    ----------
    cupy : module
    progress : callable, optional
        As for `wait_for`.
    """

    def __init__(self, cupy: Any, progress: Progress | None = None) -> None:
        self._cupy, self._progress = cupy, progress
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._copied_from: deque[tuple[Any, NDArray[np.uint8]]] = deque()

    def acquire(self, nbytes: int) -> NDArray[np.uint8]:
        """At least so many bytes."""
        while self._copied_from and is_complete(self._cupy, self._copied_from[0][0]):
            self._put_away(self._copied_from.popleft()[1])
        size = max(MIN_PINNED_BYTES, 1 << max(nbytes - 1, 0).bit_length())
        free = self._free[size]
        if free:
            return free.pop()
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(size), np.uint8, size)

    def release(self, memory: NDArray[np.uint8], after: Any = None) -> None:
        """Take `memory` back, to lend it again after the event `after`, if there is one."""
        if after is None:
            self._put_away(memory)
        else:
            self._copied_from.append((after, memory))

    def wait_for_all_but(self, most: int) -> None:
        """Return when the device copies from at most so many of those that were given back."""
        while len(self._copied_from) > most:
            event, memory = self._copied_from.popleft()
            wait_for(self._cupy, event, self._progress)
            self._put_away(memory)

    def _put_away(self, memory: NDArray[np.uint8]) -> None:
        self._free[memory.size].append(memory)
