"""A job that loses a rank ends at once, with the reason and how to go on, whatever its launcher does.

Every rank watches the process of the next one on its node. The system wakes it when that process ends, however it does,
so that watching costs nothing; without a system that can (Linux 5.3), nothing is watched.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from hybridnn.comm.failsafe import end_job
from hybridnn.comm.stalls.processes import Process, start_of

__all__ = ["PeerWatch"]


class PeerWatch:
    """Watches a neighbour from now on, and ends the job with exit code 1 when that process is gone.

    Parameters
    ----------
    rank : int
        Of the neighbour, to name it by.
    process : Process
    has_left : callable
        Whether the neighbour left as it should; then nothing is wrong.
    advice : callable
        What to add to the reason, asked for when it is known.
    """

    def __init__(self, rank: int, process: Process, has_left: Callable[[], bool], advice: Callable[[], str]) -> None:
        self._rank, self._process, self._has_left, self._advice = rank, process, has_left, advice
        self._stop = -1
        neighbour = self._open()
        if neighbour is not None:
            stopped, self._stop = os.pipe()
            threading.Thread(target=self._watch, args=(neighbour, stopped), name="peer watch", daemon=True).start()

    def end(self) -> None:
        """Watch no more."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1

    def _open(self) -> int | None:
        """A descriptor of the neighbour's process; None where the system gives none."""
        try:
            descriptor = os.pidfd_open(self._process.number)
        except (AttributeError, OSError):
            return None
        # Ranks in containers of their own have each its own numbering of processes.
        if self._process.start and start_of(self._process.number) == self._process.start:
            return descriptor
        os.close(descriptor)
        return None

    def _watch(self, neighbour: int, stopped: int) -> None:
        either = select.poll()
        either.register(neighbour, select.POLLIN)
        either.register(stopped, select.POLLIN | select.POLLHUP)
        ended = {descriptor for descriptor, _ in either.poll()}
        if stopped not in ended:
            way = self._process.way_of_ending  # the launcher takes note of it, and ends this process too, in a moment
            if not self._has_left():
                name = f"rank {self._rank} (process {self._process.number})"
                end_job(f"\n=== {name} is gone: {way}; the job ends ===\n{self._advice()}\n")
        os.close(neighbour)
        os.close(stopped)
