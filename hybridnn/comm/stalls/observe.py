"""What a rank does at this moment, seen from a thread beside it."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from time import perf_counter

from hybridnn.comm.calls import Call, CallRecord, Channel
from hybridnn.comm.recorder import Event, Recorder
from hybridnn.comm.stalls.ranks_text import ranks_text
from hybridnn.comm.stalls.state import CallState, Finished, Frame, GroupState, RankState

__all__ = ["observe"]

LAST_EVENTS = 8
LAST_FRAMES = 12

PACKAGE = Path(__file__).resolve().parents[2]
COMMUNICATION = PACKAGE / "comm"


def observe(
    recorder: Recorder,
    thread: int,
    *,
    rank: int,
    size: int,
    beat: int,
    idle_seconds: float,
    stalled: bool,
    busy: str,
) -> RankState:
    """What the rank of `recorder` does now, and has done.

    Parameters
    ----------
    recorder : Recorder
    thread : int
        Identity of the rank's own thread.
    rank, size, beat, idle_seconds, stalled, busy
        As for `RankState`.
    """
    now = perf_counter()
    stack = _stack_of(thread)
    call = _call_waited_for(recorder, now - idle_seconds / 2)
    return RankState(
        rank=rank,
        size=size,
        host=socket.gethostname(),
        process=os.getpid(),
        time=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        beat=beat,
        idle_seconds=round(idle_seconds, 3),
        stalled=stalled,
        busy=busy,
        waits_for=None if call is None else _call_state(call, now),
        site=_innermost(stack, COMMUNICATION),
        caller=_innermost(stack, PACKAGE),
        stack=tuple(stack[-LAST_FRAMES:]),
        groups=tuple(_group_state(channel) for channel in recorder.channels),
        finished=tuple(_finished(event, now) for event in recorder.last_events(LAST_EVENTS)),
    )


def _call_waited_for(recorder: Recorder, lately: float) -> CallRecord | None:
    """The call the rank is in, or whose end it asks for again and again and did so `lately`."""
    if recorder.now is not None or recorder.polled is None:
        return recorder.now
    call, moment = recorder.polled
    return call if moment > lately else None


def _call_state(record: CallRecord, now: float) -> CallState:
    call = Call._make(record)
    return CallState(
        operation=call.name,
        axis=call.channel.axis,
        members=ranks_text(call.channel.members),
        ordinal=call.channel.ordinal,
        number=call.number,
        nbytes=call.nbytes,
        dtype="" if call.dtype is None else str(call.dtype),
        peer=None if call.peer < 0 else call.channel.members[call.peer],
        detail="" if call.detail is None else str(call.detail),
        about="" if call.about is None else str(call.about),
        seconds=round(now - call.start, 3),
    )


def _group_state(channel: Channel) -> GroupState:
    recent = tuple((call.number, call.what) for call in map(Call._make, channel.recent.copy()))
    return GroupState(channel.axis, ranks_text(channel.members), channel.ordinal, channel.entered, recent)


def _finished(event: Event, now: float) -> Finished:
    about = "" if event.about is None else str(event.about)
    return Finished(event.kind, event.name, event.axis, event.nbytes, about, round(now - event.stop, 3))


def _stack_of(thread: int) -> list[Frame]:
    frame = sys._current_frames().get(thread)
    lines = traceback.extract_stack(frame) if frame is not None else []
    return [Frame(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines]


def _innermost(stack: Sequence[Frame], outside_of: Path) -> Frame | None:
    return next((frame for frame in reversed(stack) if outside_of not in Path(frame.file).parents), None)
