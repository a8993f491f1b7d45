"""Calls of MPI that may begin only when a device has come so far, in the order in which they were asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hybridnn.kernels.device_events import has_passed

__all__ = ["Departures"]


class Departures:
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

    def add(self, ready: Any, depart: Callable[[], None]) -> None:
        """Call `depart` once the event `ready`, if there is one, is done, and after all calls added before."""
        self._waiting.append((ready, depart))
        self.poll()

    def poll(self) -> None:
        """Make the calls that can be made."""
        waiting = self._waiting
        while waiting and (waiting[0][0] is None or has_passed(self._cupy, waiting[0][0])):
            waiting.popleft()[1]()
