"""Rank states: what each rank does when a job stalls, as plain data, and how a thread beside the rank observes it.

A state is the content of ``stall/rank-N.json``.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from hybridnn.comm.recorder import Call, CallRecord, CollectiveProgress, Event, Recorder, purpose
from hybridnn.diagnostics.failsafe import COMMUNICATION_FILES, PACKAGE, code_location, frame_location, streams_are_open
from hybridnn.utils.processes import open_connections, paused_collector
from hybridnn.utils.text import format_ranks

GroupKey = tuple[str, str, int]
"""Identifies a group of the job: axis, members, and ordinal among groups with the same axis and members."""

OUTSIDE = "nothing: outside of communication"


@dataclass(frozen=True)
class CallState:
    """A communication call in progress."""

    operation: str
    # of its group, as for `GroupState`
    axis: str
    members: str
    ordinal: int
    number: int  # number of the collective in its group, from 1; 0 for a message
    nbytes: int  # bytes of the full vector, or of the message
    dtype: str  # empty without an array
    peer: int | None  # root of a collective, or the other rank of a message
    detail: str  # reduction of an all-reduce, or tag of a message
    about: str  # purpose, such as an instruction of a schedule; empty if unknown
    seconds: float  # since it began

    @property
    def group(self) -> GroupKey:
        """Key of its group."""
        return self.axis, self.members, self.ordinal

    @property
    def is_message(self) -> bool:
        """Whether it is a message between two ranks."""
        return self.number == 0

    @property
    def label(self) -> str:
        """The call and its group: ``allreduce 57 of group world (ranks 0-3)``."""
        if self.is_message:
            return f"{self.operation} {'to' if self.operation == 'send' else 'from'} rank {self.peer}"
        return f"{self.operation} {self.number} of group {self.axis} (ranks {self.members})"

    def __str__(self) -> str:
        array = f", {self.nbytes:,} bytes {self.dtype}" if self.dtype else ""
        return f"{self.label}{array}{f', {self.about}' * bool(self.about)}"


@dataclass(frozen=True)
class GroupState:
    """Progress of a rank in the collectives of one of its groups."""

    axis: str
    members: str  # ranks of the grid, as `format_ranks` writes them
    ordinal: int  # number of earlier groups with this axis and these members
    entered: int  # collectives begun
    recent: tuple[tuple[int, str], ...]  # numbers and signatures of the last collectives

    @property
    def key(self) -> GroupKey:
        """Key of the group."""
        return self.axis, self.members, self.ordinal


@dataclass(frozen=True)
class StackLine:
    """A stack frame."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return code_location(self.file, self.line, self.function)


@dataclass(frozen=True)
class RankState:
    """State of a rank."""

    # its number in the grid, and the number of ranks
    rank: int
    size: int
    host: str
    process: int
    time: str  # when this was written, by the rank's own clock
    heartbeat: int = 0  # how often it has been written; a rank whose heartbeat stays the same has stopped
    idle_seconds: float = 0.0  # since the rank completed anything
    stalled: bool = False  # whether that is longer than the limit of the job
    busy_with: str = ""  # work that the rank announced by ``trainer.busy``; else empty
    call: CallState | None = None  # the call in which the rank waits; None outside of communication
    call_site: StackLine | None = None  # the innermost line outside of communication code
    # the innermost line of a file that is not of hybridnn, Python or an installed package
    user_line: StackLine | None = None
    stack: tuple[StackLine, ...] = ()  # the innermost lines, the innermost last
    groups: tuple[GroupState, ...] = ()
    finished: tuple[str, ...] = ()  # the last instructions and calls that ended, oldest first
    unrecorded_call: str = ""  # the line of a call of MPI that no group records, such as a new communicator; else empty
    departed: str = ""  # ranks that have left or died and that this rank waits for, as text
    departure: str = ""  # how the rank left the job; empty while it has not
    exited: bool = False  # whether it left because its interpreter ended
    can_print: bool = True  # whether one of its standard streams is open
    addresses: tuple[str, ...] = ()  # its own IP addresses in its TCP connections to other hosts
    silent_addresses: tuple[str, ...] = ()  # addresses that acknowledge nothing of what the rank sends
    waiting_addresses: tuple[str, ...] = ()  # addresses that have not yet acknowledged all that the rank sent

    @property
    def is_waiting(self) -> bool:
        """Whether it is in a call that waits for other ranks."""
        return self.call is not None or bool(self.unrecorded_call)

    @property
    def activity(self) -> str:
        """The call in which it waits, or its announced work."""
        if self.departure:
            return "left the job"
        if self.call is not None:
            return str(self.call)
        return f"MPI, at {self.unrecorded_call}" if self.unrecorded_call else self.busy_with or OUTSIDE

    @property
    def location(self) -> str:
        """The call site, and the user's line from which it was reached."""
        lines = [str(self.call_site)] if self.call_site is not None else []
        if self.user_line is not None and self.user_line != self.call_site:
            lines.append(str(self.user_line))
        return ", from ".join(lines)


@dataclass(frozen=True)
class JobState:
    """Facts about a job from the rank that ended it: the content of ``stall/job.json``. Ranks are given as text."""

    size: int
    limit: float  # seconds after which a job without progress ends
    processes: tuple[str, ...]  # host and process of every rank; may be empty
    unresponsive: str  # ranks that did not answer
    # ranks that had left or died, and that others waited for; if there are any, `limit` was not reached
    departed: str = ""
    dead: str = ""  # ranks whose processes no longer existed
    unreachable: str = ""  # ranks on nodes that share no folder with this one


LAST_EVENTS = 8
LAST_FRAMES = 12


@dataclass(frozen=True)
class Activity:
    """Progress of a rank and the call it is in; two that are equal mean that nothing completed between them."""

    finished: int  # instructions and calls that ended, in all process grids of this process
    call: CallRecord | None  # the call of this grid in which the rank waits
    unrecorded_call: str  # the line of a call of MPI that no group records; else empty
    thread: int  # the thread that communicates, or else trains

    @property
    def is_waiting(self) -> bool:
        """Whether the rank is in a call that waits for other ranks."""
        return self.call is not None or bool(self.unrecorded_call)


def current_activity(recorder: Recorder, thread: int, poll_seconds: float) -> Activity:
    """Activity of the rank of a recorder, which trains in `thread`.

    An operation counts as waited for if it was tested within `poll_seconds`.
    """
    try:
        others = [other for other in Recorder.instances if other is not recorder]
    except RuntimeError:  # a grid is being made at this moment
        others = []
    finished = recorder.finished + sum(other.finished for other in others)
    call, unrecorded_call = recorder.current_call, ""
    with paused_collector():
        frames = sys._current_frames()
        threads = sorted(frames, key=lambda number: number != thread)
        communicating = next((number for number in threads if _communicates(frames[number])), None)
    if communicating is None:
        # A call that raised an exception is still the current call of the recorder.
        call = None
    elif call is None and not any(other.current_call for other in others):
        frame = frames[communicating]
        if frame.f_code.co_filename.startswith(COMMUNICATION_FILES):
            unrecorded_call = frame_location(frame)
    if call is None and recorder.last_poll is not None:
        polled, moment = recorder.last_poll
        if moment > perf_counter() - poll_seconds:
            call, unrecorded_call = polled, ""
    return Activity(finished, call, unrecorded_call, thread if communicating is None else communicating)


def new_state(rank: int, size: int, **fields: Any) -> RankState:
    """State of a rank of this process, as of now; `fields` are those of `RankState`."""
    time = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return RankState(rank, size, socket.gethostname(), os.getpid(), time, **fields)


def observe(recorder: Recorder, activity: Activity, rank: int, size: int) -> RankState:
    """State of the rank of a recorder, whose activity was `activity` a moment ago."""
    now = perf_counter()
    with paused_collector():
        frame = sys._current_frames().get(activity.thread)
        lines = traceback.extract_stack(frame) if frame is not None else []
    stack = [StackLine(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines]
    connections = open_connections()
    return new_state(
        rank,
        size,
        call=None if activity.call is None else _call_state(activity.call, now),
        call_site=_innermost(stack, lambda file: not file.startswith(COMMUNICATION_FILES)),
        user_line=_innermost(stack, _is_users),
        stack=tuple(stack[-LAST_FRAMES:]),
        groups=group_states(recorder.channels),
        finished=tuple(_finished(event) for event in recorder.last_events(LAST_EVENTS)),
        unrecorded_call=activity.unrecorded_call,
        can_print=streams_are_open(),
        addresses=tuple(sorted({connection.local for connection in connections})),
        silent_addresses=tuple(sorted({connection.remote for connection in connections if connection.is_silent})),
        waiting_addresses=tuple(sorted({connection.remote for connection in connections if connection.is_waiting})),
    )


def group_states(channels: Sequence[CollectiveProgress]) -> tuple[GroupState, ...]:
    """Progress of the rank in each of its groups."""
    states = []
    for channel in tuple(channels):
        recent = tuple((call.number, call.signature) for call in map(Call._make, channel.recent.copy()))
        members = format_ranks(channel.members)
        states.append(GroupState(channel.axis, members, channel.ordinal, channel.entered, recent))
    return tuple(states)


def _communicates(frame: FrameType | None) -> bool:
    """Whether a stack contains communication code."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(COMMUNICATION_FILES):
            return True
        frame = frame.f_back
    return False


def _call_state(record: CallRecord, now: float) -> CallState:
    call = Call._make(record)
    return CallState(
        operation=call.name,
        axis=call.channel.axis,
        members=format_ranks(call.channel.members),
        ordinal=call.channel.ordinal,
        number=call.number,
        nbytes=call.nbytes,
        dtype="" if call.dtype is None else str(call.dtype),
        peer=None if call.peer < 0 else call.channel.members[call.peer],
        detail="" if call.detail is None else str(call.detail),
        about="" if call.about is None else str(purpose(call.about)),
        seconds=round(now - call.start, 3),
    )


def _finished(event: Event) -> str:
    """``forward 3``, ``allreduce (batch)``."""
    about = "" if event.about is None else str(event.about)
    if about.startswith(event.name):
        return about
    return f"{event.name}{f' ({event.axis})' * bool(event.axis)}{f', {about}' * bool(about)}"


def _innermost(stack: Sequence[StackLine], wanted: Callable[[str], bool]) -> StackLine | None:
    return next((frame for frame in reversed(stack) if wanted(frame.file)), None)


@cache
def _is_users(file: str) -> bool:
    """Whether a file belongs to neither hybridnn, nor Python, nor an installed package or command."""
    kinds = "stdlib", "platstdlib", "purelib", "platlib", "scripts"
    installed = [Path(folder) for folder in map(sysconfig.get_path, kinds) if folder]
    parents = Path(file).absolute().parents
    return not file.startswith("<frozen") and not any(folder in parents for folder in (Path(PACKAGE), *installed))
