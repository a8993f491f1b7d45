"""A job that loses a rank ends at once, with the reason and how to go on, whatever its launcher does.

Every rank watches the process of the next one on its node. The system wakes it when that process ends, however it does,
so that watching costs nothing; without a system that can (Linux 5.3), nothing is watched.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from types import TracebackType

import numpy as np

from hybridnn.comm.failsafe import end_job
from hybridnn.comm.group import Group
from hybridnn.comm.stalls.processes import start_of

__all__ = ["PeerWatch"]


class PeerWatch:
    """Watches a neighbour while it is entered, and ends the job with exit code 1 when that process is gone.

    Parameters
    ----------
    group : Group
        The ranks of a node; collective over it.
    advice : callable
        What to add to the reason, asked for when it is known.
    """

    def __init__(self, group: Group, advice: Callable[[], str]) -> None:
        processes = np.zeros((group.size, 2), np.int64)
        processes[group.rank] = os.getpid(), start_of(os.getpid())
        group.allgather_rows(processes)
        neighbour = (group.rank + 1) % group.size
        self._process, self._start = (int(number) for number in processes[neighbour])
        self._name, self._advice = f"rank {group.members[neighbour]} (process {self._process})", advice
        self._is_alone = group.size == 1
        self._thread: threading.Thread | None = None
        self._stop = -1

    def __enter__(self) -> PeerWatch:
        """Begin to watch."""
        neighbour = None if self._is_alone else self._open()
        if neighbour is not None:
            stopped, self._stop = os.pipe()
            self._thread = threading.Thread(
                target=self._watch, args=(neighbour, stopped), name="peer watch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Watch no more."""
        if self._thread is not None:
            os.close(self._stop)
            self._thread.join()
            self._thread = None

    def _open(self) -> int | None:
        """A descriptor of the neighbour's process; None where the system gives none."""
        try:
            descriptor = os.pidfd_open(self._process)
        except (AttributeError, OSError):
            return None
        # Ranks in containers of their own have each its own numbering of processes.
        if self._start and start_of(self._process) == self._start:
            return descriptor
        os.close(descriptor)
        return None

    def _watch(self, neighbour: int, stopped: int) -> None:
        either = select.poll()
        either.register(neighbour, select.POLLIN)
        either.register(stopped, select.POLLIN | select.POLLHUP)
        ended = {descriptor for descriptor, _ in either.poll()}
        if stopped not in ended:
            end_job(
                f"\n=== {self._name} is gone: killed, or ended without a word; the job ends ===\n{self._advice()}\n"
            )
        os.close(neighbour)
        os.close(stopped)
