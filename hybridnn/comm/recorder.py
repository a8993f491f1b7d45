"""The recorder: every compute instruction and every message of a rank passes here, in bounded memory.

Totals feed the time breakdown of the history; the last events tell what a rank was doing, and the call it is in what it
waits for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import ClassVar, NamedTuple
from weakref import WeakSet

from hybridnn.comm.calls import CallRecord, Channel

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

EventRecord = tuple[str, str, str, float, float, int, object]
"""The fields of an `Event`; a plain tuple takes a fifth of the time to make."""


class Recorder:
    """Keeps the last `capacity` events and the totals of all, and knows what its rank does now.

    Parameters
    ----------
    capacity : int
        Events kept; older ones are dropped, so memory does not grow with the run.

    Attributes
    ----------
    now : CallRecord or None
        The communication call this rank is in; None outside of one. Whoever enters a call sets it.
    polled : (CallRecord, float) or None
        The last operation that was asked whether it is done, and was not, with the ``time.perf_counter`` of then.
    finished : int
        Instructions and calls ended so far. Asking an operation that is not done does not count.
    channels : list of Channel
        The groups that record here.
    kept : list of (CallRecord, int) or None
        Where calls are kept as they begin, with the bytes that this rank sends; see ``comm/repeated_calls.py``.
    living : WeakSet of Recorder
        Those of this process, one for each process grid: its watchdog judges a rank by all of them.
    """

    living: ClassVar[WeakSet[Recorder]] = WeakSet()

    def __init__(self, capacity: int = 4096) -> None:
        self.now: CallRecord | None = None
        self.polled: tuple[CallRecord, float] | None = None
        self.finished = 0
        self.channels: list[Channel] = []
        self.kept: list[tuple[CallRecord, int]] | None = None
        self._events: deque[EventRecord] = deque(maxlen=capacity)
        self._communication_seconds = self._waiting_seconds = 0.0
        self._bytes_sent = 0
        self._messages = 0
        self._computing: defaultdict[str, float] = defaultdict(float)
        self.living.add(self)

    def open_channel(self, axis: str, members: tuple[int, ...]) -> Channel:
        """A place for a new group's progress; groups of one rank have none to show."""
        alike = sum(channel.axis == axis and channel.members == members for channel in self.channels)
        channel = Channel(axis, members, alike)
        if len(members) > 1:
            self.channels.append(channel)
        return channel

    def end_compute(self, name: str, start: float, about: object = None) -> None:
        """Note a compute instruction that began at `start` (``time.perf_counter``) and ends now."""
        stop = perf_counter()
        seconds = stop - start
        for kind, _, _, begin, end, _, _ in reversed(self._events):
            if begin < start:
                break
            if kind == "communication":
                seconds -= end - begin
        self._events.append(("compute", name, "", start, stop, 0, about))
        self._computing[name] += seconds
        self.finished += 1

    def end_phase(self, name: str, start: float, about: object = None) -> None:
        """Note a part of the run that began at `start` and ends now; its instructions and messages lie within."""
        self._events.append(("phase", name, "", start, perf_counter(), 0, about))
        self.finished += 1

    def end_communication(
        self, name: str, axis: str, start: float, nbytes: int, messages: int = 1, about: object = None
    ) -> None:
        """Note a communication call that began at `start`, ends now, and sent `nbytes`."""
        stop = perf_counter()
        self._events.append(("communication", name, axis, start, stop, nbytes, about))
        self._communication_seconds += stop - start
        if name in WAITS:
            self._waiting_seconds += stop - start
        self._bytes_sent += nbytes
        self._messages += messages
        self.now = None
        self.finished += 1

    def end_poll(self, call: CallRecord, start: float) -> None:
        """Note that `call` was asked at `start` whether it is done, and is not."""
        stop = perf_counter()
        self._events.append(("communication", call[0] + ".test", call[1].axis, start, stop, 0, call[-1]))
        self._communication_seconds += stop - start
        self.polled = call, stop

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
        return tuple(map(Event._make, self._events))

    def last_events(self, count: int) -> tuple[Event, ...]:
        """The last `count` events, oldest first, without questions whether an operation is done; for any thread."""
        # The copy is made in one go, while the rank's own thread cannot add to it.
        latest = reversed(self._events.copy())
        told = (Event._make(record) for record in latest if not record[1].endswith(".test"))
        return tuple(islice(told, count))[::-1]
