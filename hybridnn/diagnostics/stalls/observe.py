"""Observation of a rank from a thread beside it: the call in which it waits, its stack, and its last events."""

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
from hybridnn.diagnostics.failsafe import streams_are_open
from hybridnn.diagnostics.stalls.state import (
    COMMUNICATION_FILES,
    CallState,
    FinishedEvent,
    Frame,
    GroupState,
    RankState,
    code_location,
)
from hybridnn.utils.text import format_ranks

LAST_EVENTS = 8
LAST_FRAMES = 12

PACKAGE = Path(__file__).parents[2]  # as in stack frames: links are not resolved
NOT_WAITING = tuple(str(PACKAGE / name) for name in ("diagnostics/stalls/", "comm/file_io.py"))
"""Communication code that waits for no rank, or runs in threads beside the training."""


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
    frames = sys._current_frames()
    threads = sorted(frames, key=lambda number: number != thread)
    communicating = next((number for number in threads if _communicates(frames[number])), None)
    call, unrecorded_call = recorder.current_call, ""
    if communicating is None:
        # A call that raised an exception is still the current call of the recorder.
        call = None
    elif call is None and not any(other.current_call for other in others):
        frame = frames[communicating]
        if _is_communication(frame.f_code.co_filename):
            unrecorded_call = code_location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
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
    stack = _stack_of(activity.thread)
    return new_state(
        rank,
        size,
        call=None if activity.call is None else _call_state(activity.call, now),
        call_site=_innermost(stack, lambda file: not file.startswith(COMMUNICATION_FILES)),
        user_line=_innermost(stack, _is_users),
        stack=tuple(stack[-LAST_FRAMES:]),
        groups=group_states(recorder.channels),
        finished=tuple(_finished(event, now) for event in recorder.last_events(LAST_EVENTS)),
        unrecorded_call=activity.unrecorded_call,
        can_print=streams_are_open(),
    )


def group_states(channels: Sequence[CollectiveProgress]) -> tuple[GroupState, ...]:
    """Progress of the rank in each of its groups."""
    states = []
    for channel in tuple(channels):
        recent = tuple((call.number, call.signature) for call in map(Call._make, channel.recent.copy()))
        members = format_ranks(channel.members)
        states.append(GroupState(channel.axis, members, channel.ordinal, channel.entered, recent))
    return tuple(states)


def _is_communication(file: str) -> bool:
    return file.startswith(COMMUNICATION_FILES) and not file.startswith(NOT_WAITING)


def _communicates(frame: FrameType | None) -> bool:
    """Whether a stack contains communication code."""
    while frame is not None:
        if _is_communication(frame.f_code.co_filename):
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


def _finished(event: Event, now: float) -> FinishedEvent:
    about = "" if event.about is None else str(event.about)
    return FinishedEvent(event.kind, event.name, event.axis, event.nbytes, about, round(now - event.stop, 3))


def _stack_of(thread: int) -> list[Frame]:
    frame = sys._current_frames().get(thread)
    lines = traceback.extract_stack(frame) if frame is not None else []
    return [Frame(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines]


def _innermost(stack: Sequence[Frame], wanted: Callable[[str], bool]) -> Frame | None:
    return next((frame for frame in reversed(stack) if wanted(frame.file)), None)


@cache
def _is_users(file: str) -> bool:
    """Whether a file belongs to neither hybridnn, nor Python, nor an installed package or command."""
    kinds = "stdlib", "platstdlib", "purelib", "platlib", "scripts"
    installed = [Path(folder) for folder in map(sysconfig.get_path, kinds) if folder]
    parents = Path(file).absolute().parents
    return not file.startswith("<frozen") and not any(folder in parents for folder in (PACKAGE, *installed))
