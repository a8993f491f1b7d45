"""Recorder: notes of all instructions and communication calls of a rank, in bounded memory.

The totals are the time breakdown of the run's records. The last events and the current call are what the stall watchdog
reports. Notes are plain tuples, because one is made before every call and hardly any is ever read: a tuple takes a
third of the time of an object. `CallRecord` and `EventRecord` are the fields of the named tuples `Call` and `Event`.

Bytes sent are counted by a rule, because an MPI library does not report the algorithm that it chooses. Each collective
counts as its bandwidth-optimal algorithm: ring all-reduce (reduce-scatter, then all-gather), ring all-gather, and a
root that sends every byte once for every receiver. Sources: Thakur, Rabenseifner and Gropp 2005; Chan, Heimlich,
Purkayastha and van de Geijn 2007.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import numpy as np

REMEMBERED = 16  # last collectives of a group that are kept: ranks that disagree are rarely further apart
WAITS = frozenset({"receive.wait", "barrier"})  # calls in which a rank only waits for another one


class CollectiveProgress:
    """Collectives of one group that this rank has entered, of which `recent` has the last.

    `members` are ranks in the grid, in the order of the group. `ordinal` is the number of earlier groups with this axis
    and these members, the same on every member.
    """

    __slots__ = ("axis", "entered", "members", "ordinal", "recent")

    def __init__(self, axis: str, members: tuple[int, ...], ordinal: int = 0) -> None:
        self.axis, self.members, self.ordinal = axis, members, ordinal
        self.entered = 0
        self.recent: deque[CallRecord] = deque(maxlen=REMEMBERED)


CallRecord = tuple[str, CollectiveProgress, int, int, "np.dtype[Any] | None", int, "str | int | None", float, object]
"""The fields of a `Call`."""


class Call(NamedTuple):
    """A communication call: ``Call._make`` of its `CallRecord`."""

    name: str  # operation, as for `bytes_sent_by_rank`
    channel: CollectiveProgress
    number: int = 0  # number of the collective in its group, from 1; 0 for a message
    nbytes: int = 0  # bytes of the full vector, as for `bytes_sent_by_rank`
    dtype: np.dtype[Any] | None = None  # None where there is no array
    peer: int = -1  # root of a collective, or the other rank of a message, as a rank in the group; -1 for none
    detail: str | int | None = None  # reduction of an all-reduce, or tag of a message
    start: float = 0.0  # seconds of ``time.perf_counter``
    about: object = None  # purpose, such as an instruction of a schedule; None where none was given

    @property
    def signature(self) -> str:
        """Everything that must agree between the ranks of a collective, as text."""
        reduction = "" if self.detail is None else f" ({self.detail})"
        array = "" if self.dtype is None else f" of {self.nbytes:,} bytes {self.dtype}"
        root = "" if self.peer < 0 else f" with root {self.channel.members[self.peer]}"
        return f"{self.name}{reduction}{array}{root}"


EventRecord = tuple[str, str, str, float, float, int, object]  # the fields of an `Event`


class Event(NamedTuple):
    """A finished instruction, communication call or phase: ``Event._make`` of its `EventRecord`."""

    kind: str  # one of "compute", "communication", "phase"
    name: str  # instruction, collective or message, or phase
    axis: str  # axis of the group of a communication call; else empty
    # seconds of ``time.perf_counter``
    start: float
    stop: float
    nbytes: int  # bytes sent, as `bytes_sent_by_rank` counts them
    about: object = None  # as for `Call`


def purpose(about: object) -> object:
    """What a record is about: the instruction itself where the record has it with the number of its minibatch."""
    return about[0].of_minibatch(about[1]) if isinstance(about, tuple) else about


def _event(record: EventRecord) -> Event:
    event = Event._make(record)
    return event if event.about is None else event._replace(about=purpose(event.about))


class Recorder:
    """Keeps the last events, the totals of all events, and the call that the rank is in.

    Attributes
    ----------
    current_call : CallRecord or None
        The communication call that the rank is in; the caller sets it on entry, `end_communication` resets it.
    last_poll : (CallRecord, float) or None
        The call that was last tested and not done, and the ``time.perf_counter`` of the test.
    finished : int
        Number of instructions and calls that have ended; unsuccessful tests do not count.
    channels : list of CollectiveProgress
        Groups of more than one rank that record here.
    communication_seconds, waiting_seconds : float
        Time so far inside communication calls, and the part of it in waiting for messages and at barriers.
    bytes_sent, messages : int
        Sent so far.
    captured : list of (CallRecord, int) or None
        Where `capture_calls` collects calls and the bytes that this rank sends in them.
    instances : WeakSet of Recorder
        All recorders of this process, one per process grid: the stall watchdog considers all of them.
    """

    instances: ClassVar[WeakSet[Recorder]] = WeakSet()

    def __init__(self, capacity: int = 4096) -> None:
        self.current_call: CallRecord | None = None
        self.last_poll: tuple[CallRecord, float] | None = None
        self.finished = 0
        self.channels: list[CollectiveProgress] = []
        self.captured: list[tuple[CallRecord, int]] | None = None
        self._events: deque[EventRecord] = deque(maxlen=capacity)
        self.communication_seconds = self.waiting_seconds = 0.0
        self.bytes_sent = self.messages = 0
        self._computing: defaultdict[str, float] = defaultdict(float)
        self.instances.add(self)

    def open_channel(self, axis: str, members: tuple[int, ...]) -> CollectiveProgress:
        """The progress of a new group; it is listed in `channels` if the group has more than one rank."""
        ordinal = sum(channel.axis == axis and channel.members == members for channel in self.channels)
        channel = CollectiveProgress(axis, members, ordinal)
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
        """Note a part of the run that began at `start` and ends now, with instructions and calls inside."""
        self._events.append(("phase", name, "", start, perf_counter(), 0, about))
        self.finished += 1

    def end_communication(
        self, name: str, axis: str, start: float, nbytes: int, messages: int = 1, about: object = None
    ) -> None:
        """Note a communication call that began at `start`, ends now, and sent `nbytes`."""
        stop = perf_counter()
        self._events.append(("communication", name, axis, start, stop, nbytes, about))
        self.communication_seconds += stop - start
        if name in WAITS:
            self.waiting_seconds += stop - start
        self.bytes_sent += nbytes
        self.messages += messages
        self.current_call = None
        self.finished += 1

    def end_poll(self, call: CallRecord, start: float) -> None:
        """Note a test of `call` that began at `start` and found it not done."""
        stop = perf_counter()
        self._events.append(("communication", call[0] + ".test", call[1].axis, start, stop, 0, call[-1]))
        self.communication_seconds += stop - start
        self.last_poll = call, stop

    @property
    def computing_seconds(self) -> Mapping[str, float]:
        """Seconds so far by name of compute instruction, without the communication inside."""
        return dict(self._computing)

    @property
    def events(self) -> tuple[Event, ...]:
        """The last events, oldest first."""
        return tuple(map(_event, self._events))

    def last_events(self, count: int) -> tuple[Event, ...]:
        """The last `count` events without unsuccessful tests, oldest first. Safe to call from any thread."""
        # deque.copy is atomic: the rank's own thread cannot append meanwhile.
        latest = reversed(self._events.copy())
        events = (_event(record) for record in latest if not record[1].endswith(".test"))
        return tuple(islice(events, count))[::-1]


CapturedCalls = Sequence[tuple[CallRecord, int]]  # calls in their order, with the bytes that this rank sends in each


def capture_calls(recorder: Recorder, work: Callable[[], None]) -> CapturedCalls:
    """Run `work` and return the calls that it begins; they are noted as usual."""
    captured: list[tuple[CallRecord, int]] = []
    recorder.captured = captured
    try:
        work()
    finally:
        recorder.captured = None
    return captured


@lru_cache(maxsize=4096)
def bytes_sent_by_rank(operation: str, nbytes: int, ranks: int, is_root: bool = False) -> int:
    """Bytes that one rank sends in `operation`, rounded down.

    `nbytes` is the full vector: the array that every rank ends up with (``allreduce``, ``allgather``, ``broadcast``),
    all parts together (``scatter``, ``gather``), or the message (``send``; ``receive`` and ``barrier`` send nothing).
    Raises `ValueError` for another operation.
    """
    if ranks == 1:
        return 0
    part = nbytes * (ranks - 1) // ranks
    match operation:
        case "allreduce":
            return 2 * part
        case "allgather":
            return part
        case "broadcast":
            # The vector is sent ranks - 1 times in all, by a tree or a pipeline; all of it is attributed to the root.
            return nbytes * (ranks - 1) if is_root else 0
        case "scatter":
            return part if is_root else 0
        case "gather":
            return 0 if is_root else nbytes // ranks
        case "send":
            return nbytes
        case "receive" | "barrier":
            return 0
    raise ValueError(f"unknown operation {operation!r}")
