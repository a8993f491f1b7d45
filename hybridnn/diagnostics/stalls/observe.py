"""What a rank does at this moment, seen from a thread beside it.

The note of a rank that left: its interpreter ended, or nothing is left of its process grid.

Such a rank never enters another call of that grid. So a rank that waits for it waits for ever, and can end the job at
once. The note is written while the interpreter ends, before MPI does: MPI ends together on all ranks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from time import perf_counter
from types import FrameType

from hybridnn.comm.recorder import Call, CallRecord, CollectiveProgress, Event, Recorder, purpose
from hybridnn.diagnostics.failsafe import RecordedExit, streams_are_open
from hybridnn.diagnostics.stalls.files import StallFiles
from hybridnn.diagnostics.stalls.state import (
    COMMUNICATION_FILES,
    CallState,
    Finished,
    Frame,
    GroupState,
    RankState,
    code_location,
)
from hybridnn.utils.text import format_ranks

LAST_EVENTS = 8
LAST_FRAMES = 12

PACKAGE = Path(__file__).parents[2]  # as frames name it: links stay
NO_CALLS = tuple(str(PACKAGE / name) for name in ("diagnostics/stalls/", "comm/file_io.py"))
"""Code there that waits for no rank, or is that of threads beside the training."""


@dataclass(frozen=True)
class Activity:
    """Where a rank is; two that are equal mean that nothing went on between them.

    Attributes
    ----------
    finished : int
        Instructions and calls that ended, in all process grids of this process.
    call : CallRecord or None
        The call of this grid that the rank waits in.
    mpi_call : str
        The line of a call of MPI that no group records; else empty.
    thread : int
        The thread that this is about.
    """

    finished: int
    call: CallRecord | None
    mpi_call: str
    thread: int

    @property
    def waits(self) -> bool:
        """Whether the rank is in a call that waits for other ranks."""
        return self.call is not None or bool(self.mpi_call)

    @classmethod
    def of(cls, recorder: Recorder, thread: int, lately: float) -> Activity:
        """What the rank of `recorder` is doing.

        Parameters
        ----------
        recorder : Recorder
        thread : int
            Where it trains, unless another thread communicates.
        lately : float
            An operation that was tested within so many seconds is still waited for.
        """
        try:
            others = [other for other in Recorder.instances if other is not recorder]
        except RuntimeError:  # a grid is being made this moment
            others = []
        finished = recorder.finished + sum(other.finished for other in others)
        frames = sys._current_frames()
        threads = sorted(frames, key=lambda number: number != thread)
        inside = next((number for number in threads if _communicates(frames[number])), None)
        call, mpi_call = recorder.current_call, ""
        if inside is None:
            # A call that an exception left never ends for the recorder.
            call = None
        elif call is None and not any(other.current_call for other in others):
            frame = frames[inside]
            if _is_communication(frame.f_code.co_filename):
                mpi_call = code_location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if call is None and recorder.last_poll is not None:
            polled, moment = recorder.last_poll
            if moment > perf_counter() - lately:
                call, mpi_call = polled, ""
        return cls(finished, call, mpi_call, thread if inside is None else inside)


def observe(
    recorder: Recorder,
    activity: Activity,
    *,
    rank: int,
    size: int,
    beat: int,
    idle_seconds: float,
    stalled: bool,
    busy: str,
    lost: str,
) -> RankState:
    """What the rank of `recorder` does now, and has done.

    Parameters
    ----------
    recorder : Recorder
    activity : Activity
        As it was a moment ago.
    rank, size, beat, idle_seconds, stalled, busy, lost
        As for `RankState`.
    """
    now = perf_counter()
    stack = _stack_of(activity.thread)
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
        waits_for=None if activity.call is None else _call_state(activity.call, now),
        site=_innermost(stack, lambda file: not file.startswith(COMMUNICATION_FILES)),
        caller=_innermost(stack, _is_users),
        stack=tuple(stack[-LAST_FRAMES:]),
        groups=groups_of(recorder.channels),
        finished=tuple(_finished(event, now) for event in recorder.last_events(LAST_EVENTS)),
        mpi_call=activity.mpi_call,
        lost=lost,
        can_print=streams_are_open(),
    )


def groups_of(channels: Sequence[CollectiveProgress]) -> tuple[GroupState, ...]:
    """How far the rank of these channels has come in each of its groups."""
    return tuple(_group_state(channel) for channel in tuple(channels))


def _is_communication(file: str) -> bool:
    return file.startswith(COMMUNICATION_FILES) and not file.startswith(NO_CALLS)


def _communicates(frame: FrameType | None) -> bool:
    """Whether a thread is in communication code."""
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


def _group_state(channel: CollectiveProgress) -> GroupState:
    recent = tuple((call.number, call.signature) for call in map(Call._make, channel.recent.copy()))
    return GroupState(channel.axis, format_ranks(channel.members), channel.ordinal, channel.entered, recent)


def _finished(event: Event, now: float) -> Finished:
    about = "" if event.about is None else str(event.about)
    return Finished(event.kind, event.name, event.axis, event.nbytes, about, round(now - event.stop, 3))


def _stack_of(thread: int) -> list[Frame]:
    frame = sys._current_frames().get(thread)
    lines = traceback.extract_stack(frame) if frame is not None else []
    return [Frame(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines]


def _innermost(stack: Sequence[Frame], wanted: Callable[[str], bool]) -> Frame | None:
    return next((frame for frame in reversed(stack) if wanted(frame.file)), None)


@cache
def _is_users(file: str) -> bool:
    """Whether a file is neither hybridnn's, nor Python's own, nor of an installed package or command."""
    kinds = "stdlib", "platstdlib", "purelib", "platlib", "scripts"
    installed = [Path(folder) for folder in map(sysconfig.get_path, kinds) if folder]
    parents = Path(file).absolute().parents
    return not file.startswith("<frozen") and not any(folder in parents for folder in (PACKAGE, *installed))


@dataclass
class DepartureNote:
    """What a rank writes when it leaves. It keeps nothing of the grid alive but the counts of its calls.

    Attributes
    ----------
    files : StallFiles
    rank, size : int
    ranks : tuple of int
        Those that see the files.
    channels : sequence of CollectiveProgress
        The grid's groups.
    process : int
        The process that is to leave; one that was forked from it is not meant.
    """

    files: StallFiles
    rank: int
    size: int
    ranks: tuple[int, ...]
    channels: Sequence[CollectiveProgress]
    process: int = field(default_factory=os.getpid)

    def note(self) -> None:
        """Write that the rank left; the last one that leaves removes what all wrote."""
        if os.getpid() != self.process:
            return
        exited = not threading.main_thread().is_alive()
        state = RankState(
            rank=self.rank,
            size=self.size,
            host=socket.gethostname(),
            process=self.process,
            time=datetime.now().astimezone().isoformat(timespec="milliseconds"),
            beat=0,
            idle_seconds=0.0,
            stalled=False,
            busy="",
            waits_for=None,
            site=None,
            caller=None,
            stack=(),
            groups=groups_of(self.channels),
            finished=(),
            left=_way_of_leaving(exited=exited),
            exited=exited,
        )
        with contextlib.suppress(OSError):
            self.files.write(state)
            if self.files.count_left() == len(self.ranks):
                self.files.clear()


def _way_of_leaving(*, exited: bool) -> str:
    call = sys.exit.call if isinstance(sys.exit, RecordedExit) else ""
    if call:
        return f"its script ended with {call}"
    return "its script ended" if exited else "its trainer and its process grid no longer exist"
