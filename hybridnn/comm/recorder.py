"""The recorder: every compute instruction and every message of a rank passes here, in bounded memory.

Totals feed the time breakdown of the history; the last events tell what a rank was doing, and the call it is in what it
waits for.

What a rank notes about a communication call before it begins, at the price of one tuple.

How many bytes a rank sends in a collective, by one stated rule.

What an MPI library really sends depends on the algorithm it picks, and it does not say which. So that figures from
different machines can be compared, each collective counts as its bandwidth-optimal algorithm: ring all-reduce
(reduce-scatter, then all-gather), ring all-gather and reduce-scatter, an all-to-all that sends every byte once, and a
root that does so for every receiver. Sources: Thakur, Rabenseifner and Gropp 2005; Chan, Heimlich, Purkayastha and van
de Geijn 2007.

Communication that a device repeats by itself: calls of a recorded step, noted at every replay as at the first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import numpy as np

REMEMBERED = 16
"""Collectives of a group that are remembered: ranks that went on after a disagreement are rarely further apart."""


class CollectiveProgress:
    """How far this rank has come in the collectives of one group.

    Parameters
    ----------
    axis : str
        Name of the group's axis.
    members : tuple of int
        Ranks of the grid, in the order of the group.
    ordinal : int
        How many groups with this axis and these members there were before; the same on every member.

    Attributes
    ----------
    entered : int
        Collectives begun so far.
    recent : deque of CallRecord
        The last of them.
    """

    __slots__ = ("axis", "entered", "members", "ordinal", "recent")

    def __init__(self, axis: str, members: tuple[int, ...], ordinal: int = 0) -> None:
        self.axis, self.members, self.ordinal = axis, members, ordinal
        self.entered = 0
        self.recent: deque[CallRecord] = deque(maxlen=REMEMBERED)


CallRecord = tuple[str, CollectiveProgress, int, int, "np.dtype[Any] | None", int, "str | int | None", float, object]
"""The fields of a `Call`; a plain tuple, because it is made before every call and hardly ever read."""


class Call(NamedTuple):
    """A communication call: ``Call._make`` of its record.

    Attributes
    ----------
    name : str
        Operation, as for `bytes_sent_by_rank`, or ``"barrier"``.
    channel : CollectiveProgress
        Of the group it is made in.
    number : int
        Which collective of its group it is, from 1; 0 for a message.
    nbytes : int
        Bytes of the full vector, as for `bytes_sent_by_rank`.
    dtype : dtype or None
        None where there is no array.
    peer : int
        Root of a collective, or the other rank of a message, by its number in the group; -1 for none.
    detail : str, int or None
        How an all-reduce combines, or the tag of a message.
    start : float
        Seconds of ``time.perf_counter``.
    about : object
        What it is done for; None where nobody said.
    """

    name: str
    channel: CollectiveProgress
    number: int
    nbytes: int
    dtype: np.dtype[Any] | None
    peer: int
    detail: str | int | None
    start: float
    about: object

    @property
    def signature(self) -> str:
        """What a collective must have in common on all ranks, in words."""
        reduction = "" if self.detail is None else f" ({self.detail})"
        array = "" if self.dtype is None else f" of {self.nbytes:,} bytes {self.dtype}"
        root = "" if self.peer < 0 else f" with root {self.channel.members[self.peer]}"
        return f"{self.name}{reduction}{array}{root}"


def bytes_sent_by_rank(operation: str, nbytes: int, ranks: int, *, is_root: bool = False) -> int:
    """Bytes one rank sends in `operation`, rounded down.

    Parameters
    ----------
    operation : {"allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "scatter", "gather", "send",
        "receive"}
        Name of the operation.
    nbytes : int
        Bytes of the full vector: the array every rank ends up with (``allreduce``, ``allgather``, ``broadcast``), the
        one it starts with (``reduce_scatter``, ``alltoall``), all parts together (``scatter``, ``gather``), or the
        message.
    ranks : int
        Size of the group.
    is_root : bool
        Whether this rank is the root of a rooted collective.

    Raises
    ------
    ValueError
        If the operation is unknown.
    """
    if ranks == 1:
        return 0
    part = nbytes * (ranks - 1) // ranks
    match operation:
        case "allreduce":
            return 2 * part
        case "allgather" | "reduce_scatter" | "alltoall":
            return part
        case "broadcast":
            # A broadcast tree or pipeline sends the vector P - 1 times in all; it is booked on the root.
            return nbytes * (ranks - 1) if is_root else 0
        case "scatter":
            return part if is_root else 0
        case "gather":
            return 0 if is_root else nbytes // ranks
        case "send":
            return nbytes
        case "receive":
            return 0
    raise ValueError(f"unknown operation {operation!r}")


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
        Bytes sent, by the rule of ``comm/recorder.py``; else 0.
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
class RecordedTotals:
    """Sums since the recorder was made.

    Attributes
    ----------
    communication_seconds : float
        Time spent inside communication calls, waiting included.
    waiting_seconds : float
        The part of it that was spent waiting for messages and at barriers.
    bytes_sent : int
        By the rule of ``comm/recorder.py``.
    messages : int
        Communication operations begun.
    """

    communication_seconds: float
    waiting_seconds: float
    bytes_sent: int
    messages: int

    def __sub__(self, earlier: RecordedTotals) -> RecordedTotals:
        return RecordedTotals(
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
    current_call : CallRecord or None
        The communication call this rank is in; None outside of one. Whoever enters a call sets it.
    last_poll : (CallRecord, float) or None
        The last operation that was asked whether it is done, and was not, with the ``time.perf_counter`` of then.
    finished : int
        Instructions and calls ended so far. Asking an operation that is not done does not count.
    channels : list of CollectiveProgress
        The groups that record here.
    captured : list of (CallRecord, int) or None
        Where calls are kept as they begin, with the bytes that this rank sends; see ``comm/recorder.py``.
    instances : WeakSet of Recorder
        Those of this process, one for each process grid: its watchdog judges a rank by all of them.
    """

    instances: ClassVar[WeakSet[Recorder]] = WeakSet()

    def __init__(self, capacity: int = 4096) -> None:
        self.current_call: CallRecord | None = None
        self.last_poll: tuple[CallRecord, float] | None = None
        self.finished = 0
        self.channels: list[CollectiveProgress] = []
        self.captured: list[tuple[CallRecord, int]] | None = None
        self._events: deque[EventRecord] = deque(maxlen=capacity)
        self._communication_seconds = self._waiting_seconds = 0.0
        self._bytes_sent = 0
        self._messages = 0
        self._computing: defaultdict[str, float] = defaultdict(float)
        self.instances.add(self)

    def open_channel(self, axis: str, members: tuple[int, ...]) -> CollectiveProgress:
        """A place for a new group's progress; groups of one rank have none to show."""
        alike = sum(channel.axis == axis and channel.members == members for channel in self.channels)
        channel = CollectiveProgress(axis, members, alike)
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
        self.current_call = None
        self.finished += 1

    def end_poll(self, call: CallRecord, start: float) -> None:
        """Note that `call` was asked at `start` whether it is done, and is not."""
        stop = perf_counter()
        self._events.append(("communication", call[0] + ".test", call[1].axis, start, stop, 0, call[-1]))
        self._communication_seconds += stop - start
        self.last_poll = call, stop

    @property
    def totals(self) -> RecordedTotals:
        """Sums so far."""
        return RecordedTotals(self._communication_seconds, self._waiting_seconds, self._bytes_sent, self._messages)

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


CapturedCalls = Sequence[tuple[CallRecord, int]]
"""Calls in their order, with the bytes that this rank sent."""


def capture_calls(recorder: Recorder, work: Callable[[], None]) -> CapturedCalls:
    """Do `work`, and return the calls that it began, which are noted as always."""
    kept: list[tuple[CallRecord, int]] = []
    recorder.captured = kept
    try:
        work()
    finally:
        recorder.captured = None
    return kept


def replay_calls(recorder: Recorder, calls: CapturedCalls, work: Callable[[], None]) -> None:
    """Do `work`, which makes `calls` once more without this program, and note them.

    They count as any others, in the totals and in how far each group has come; `work` is done in the last of them. The
    time it takes to begin them is that of `work`, so they have none of their own.
    """
    for record, _ in calls:
        call = Call._make(record)._replace(start=perf_counter())
        if call.number:  # messages have none
            call.channel.entered += 1
            call = call._replace(number=call.channel.entered)
            call.channel.recent.append(call)
        recorder.current_call = call
    work()
    for (name, channel, *_, about), sent in calls:
        recorder.end_communication(name, channel.axis, perf_counter(), sent, 1, about)
