"""The recorder: every compute instruction and every message of a rank passes here, in bounded memory.

Totals feed the time breakdown of the history; the last events tell what a rank was doing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

__all__ = ["Event", "Recorder", "Totals"]


class Event(NamedTuple):
    """One finished instruction or message.

    Attributes
    ----------
    kind : {"compute", "communication", "phase"}
    name : str
        Instruction, collective or message, or phase.
    axis : str
        Group the message travelled in; else empty.
    start, stop : float
        Seconds of ``time.perf_counter``.
    nbytes : int
        Bytes sent, by the rule of ``comm/accounting.py``; else 0.
    about : object
        What it was done for, such as an instruction of a schedule; None where nobody said.
    """

    kind: str
    name: str
    axis: str
    start: float
    stop: float
    nbytes: int
    about: object = None


@dataclass(frozen=True)
class Totals:
    """Sums since the recorder was made.

    Attributes
    ----------
    communication_seconds : float
        Time spent inside communication calls, waiting included.
    waiting_seconds : float
        The part of it that was spent waiting for messages and at barriers.
    bytes_sent : int
        By the rule of ``comm/accounting.py``.
    messages : int
        Communication operations begun.
    """

    communication_seconds: float
    waiting_seconds: float
    bytes_sent: int
    messages: int

    def __sub__(self, earlier: Totals) -> Totals:
        return Totals(
            self.communication_seconds - earlier.communication_seconds,
            self.waiting_seconds - earlier.waiting_seconds,
            self.bytes_sent - earlier.bytes_sent,
            self.messages - earlier.messages,
        )


WAITS = frozenset({"receive.wait", "barrier"})
"""Calls in which a rank does nothing but wait for another."""

NESTED = 256
"""Communication calls remembered until the compute instruction around them ends."""


class Recorder:
    """Keeps the last `capacity` events and the totals of all.

    Parameters
    ----------
    capacity : int
        Events kept; older ones are dropped, so memory does not grow with the run.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._communication_seconds = self._waiting_seconds = 0.0
        self._bytes_sent = 0
        self._messages = 0
        self._computing: defaultdict[str, float] = defaultdict(float)
        self._since_compute: deque[tuple[float, float]] = deque(maxlen=NESTED)

    def end_compute(self, name: str, start: float, about: object = None) -> None:
        """Note a compute instruction that began at `start` (``time.perf_counter``) and ends now."""
        stop = perf_counter()
        self._events.append(Event("compute", name, "", start, stop, 0, about))
        self._computing[name] += stop - start - sum(end - begin for begin, end in self._since_compute if begin >= start)
        self._since_compute.clear()

    def end_phase(self, name: str, start: float, about: object = None) -> None:
        """Note a part of the run that began at `start` and ends now; its instructions and messages lie within."""
        self._events.append(Event("phase", name, "", start, perf_counter(), 0, about))

    def end_communication(
        self, name: str, axis: str, start: float, nbytes: int, messages: int = 1, about: object = None
    ) -> None:
        """Note a communication call that began at `start`, ends now, and sent `nbytes`."""
        stop = perf_counter()
        self._events.append(Event("communication", name, axis, start, stop, nbytes, about))
        self._since_compute.append((start, stop))
        self._communication_seconds += stop - start
        if name in WAITS:
            self._waiting_seconds += stop - start
        self._bytes_sent += nbytes
        self._messages += messages

    @property
    def totals(self) -> Totals:
        """Sums so far."""
        return Totals(self._communication_seconds, self._waiting_seconds, self._bytes_sent, self._messages)

    @property
    def computing_seconds(self) -> Mapping[str, float]:
        """Seconds so far by name of compute instruction, without the communication inside them."""
        return dict(self._computing)

    @property
    def events(self) -> tuple[Event, ...]:
        """The last events, oldest first."""
        return tuple(self._events)
