"""Work in the background that all ranks do in phases: a phase begins when every rank has done the one before.

Threads do the work and make no MPI calls, whatever thread level the library gives. What joins the ranks between two
phases is a non-blocking all-reduce that the training's own thread starts and tests when it asks how far things are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.request import Request

__all__ = ["Phases"]

Job = Callable[[], None]


class Phases:
    """Jobs in the background, in phases that all ranks of a group go through together.

    Parameters
    ----------
    group : Group
        Used for nothing else meanwhile. Every rank makes the same number of phases.
    shared : ndarray of uint8
        Replaced by its maximum over the ranks after each phase; jobs may write to it. The first number is set where a
        job failed on any rank, and no further phase begins.
    phases : sequence of sequence of callable
        The jobs of each phase, each in a thread of its own.

    Attributes
    ----------
    error : BaseException or None
        The first that a job of this rank raised.
    """

    def __init__(self, group: Group, shared: NDArray[np.uint8], phases: Sequence[Sequence[Job]]) -> None:
        self._group, self._shared = group, shared
        self._phases = list(phases)
        self._threads: list[Thread] = []
        self._joining: Request | None = None
        self.error: BaseException | None = None
        self._done = False
        self._start()

    @property
    def failed(self) -> bool:
        """Whether a job failed on any rank; known when all is done."""
        return bool(self._shared[0])

    def advance(self) -> bool:
        """Begin what can be begun, without waiting; True once all phases are done on all ranks."""
        while not self._done:
            if self._joining is None:
                if any(thread.is_alive() for thread in self._threads):
                    return False
                self._shared[0] = self.error is not None
                self._joining = self._group.iallreduce(self._shared, "max")
            if not self._joining.test():
                return False
            self._joining = None
            if self.failed or not self._phases:
                self._done = True
            else:
                self._start()
        return True

    def settle(self) -> None:
        """Return when no job of this rank runs any more; none begins without `advance`."""
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        # Daemons: a rank that ends with an error does not wait for a disk.
        self._threads = [Thread(target=self._run, args=(job,), daemon=True) for job in self._phases.pop(0)]
        for thread in self._threads:
            thread.start()

    def _run(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # looked at, and raised again, in the training's own thread
            self.error = self.error or error
