"""Stall watchdog: a thread beside a rank's work that ends the job, with a diagnosis, when no rank makes progress.

A rank that waits for others and has completed nothing for a while raises an alarm, a file. During an alarm every rank
writes its state to a file of its own, so that a rank with long work is not taken for a dead one. The lowest of them
reads all states. It ends the job when no rank has completed anything for the allowed time, or when a rank waits for one
that has left.

A rank that leaves writes a note while its interpreter ends, before MPI does, which ends on all ranks together. It never
enters another call, so a rank that waits for it can end the job at once.

Every rank also watches the process of the next rank on its node. The system wakes the watchdog when that process ends,
so watching takes no time; without such a system (Linux 5.3 or newer), no process is watched.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from weakref import finalize

from hybridnn.comm.mpi import is_in_process
from hybridnn.comm.recorder import Call, CollectiveProgress, Recorder
from hybridnn.diagnostics.diagnosis import StallRecord, stall_report
from hybridnn.diagnostics.failsafe import describe_exit, end_job
from hybridnn.diagnostics.rank_state import (
    Activity,
    JobState,
    RankState,
    current_activity,
    group_states,
    new_state,
    observe,
)
from hybridnn.diagnostics.stall_files import SharedFolder, StallFiles, create_shared_folder
from hybridnn.utils.text import format_ranks, parse_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

MIN_ANSWER_SECONDS = 2.0
"""Time for a rank to answer an alarm: its thread must be scheduled, and a file system must show its file."""

MIN_WAIT_SECONDS = 2.0  # time in a call after which a rank checks whether the ranks that it waits for have left
DEPARTURE_ANSWER_SECONDS = 5.0  # time for the states of the other ranks where the job cannot go on
MAX_INTERVAL = 1.0  # seconds between two checks, at most
BUSY_FACTOR = 10  # announced work may take so many times the limit

STATE_FIELD, START_FIELD, EXIT_FIELD = 0, 19, 49  # fields of ``/proc/N/stat`` behind the name of the process

UNKNOWN_END = "killed, or ended without a word"


class StallWatchdog:
    """Watches this rank of a process grid, and ends a stalled job with exit code 1.

    One thread per grid, which runs while something trains on it. It makes no call of MPI before it ends the job.
    `rank` is that in the grid; `processes` are those of all ranks, from `processes_of`.
    """

    def __init__(
        self, recorder: Recorder, shared: SharedFolder, rank: int, size: int, processes: Sequence[Process] = ()
    ) -> None:
        folder, ranks = shared
        self._recorder, self._rank, self._size, self._ranks = recorder, rank, size, ranks
        self._processes = tuple(processes)
        self._neighbours = {
            other: process
            for other, process in enumerate(self._processes)
            # In another container the same number belongs to another process.
            if process.host == self._processes[rank].host and process.start == start_of(process.number) != 0
        }
        ring = sorted(self._neighbours)
        self._next = ring[(ring.index(rank) + 1) % len(ring)] if len(ring) > 1 else None
        self._process_watchdog: ProcessWatchdog | None = None
        self._advice: Callable[[], str] = str
        self._limits: dict[int, float] = {}
        self._limit = 0.0
        self._trained_in = 0
        self._idle_seconds = self._alarm_seconds = 0.0
        self._last_activity: Activity | None = None
        self._announced: tuple[str, float] | None = None  # work, and its deadline by ``time.monotonic``
        self._heartbeat = 0
        self._heartbeats: dict[int, tuple[int, float]] = {}  # the last one of a rank, and its age in seconds
        self._write_error = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        files = StallFiles(folder, temporary=True)
        self._departure = _DepartureNote(files, rank, size, ranks, recorder.channels)
        self._write_departure = finalize(recorder, self._departure.write)

    @classmethod
    def for_grid(cls, recorder: Recorder, world: MPI.Intracomm, node: MPI.Intracomm | None) -> StallWatchdog | None:
        """The watchdog of a grid of several ranks; the ranks of `node`, None for one, are on this node. Collective.

        None for ranks of one process, where a deadlock is reported at once.
        """
        if is_in_process():
            return None
        shared = create_shared_folder(world, node)
        return cls(recorder, shared, world.Get_rank(), world.Get_size(), processes_of(world))

    def start(self, owner: object, seconds: float) -> Callable[[], None]:
        """Watch the calling thread while `owner`, which trains and is referenced weakly, exists.

        The job ends after `seconds` in which a rank waits and no rank completes anything; 0 for no limit. Time in which
        the process is suspended does not count. With several owners the longest limit counts.

        The returned function, which every rank calls, stops the watch for this owner and with the last owner removes
        all files.
        """
        if not self._write_departure.alive:
            self._write_departure = finalize(self._recorder, self._departure.write)
        if seconds <= 0:
            return self._cancel_departure
        self._watch_next_process()
        number = max(self._limits, default=0) + 1
        self._limits[number] = seconds
        self._limit = max(self._limits.values())
        self._trained_in = threading.get_ident()
        if self._thread is None:
            self._stop = threading.Event()
            self._idle_seconds, self._last_activity = 0.0, None
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="stall watchdog", daemon=True)
            self._thread.start()
        remove_owner = finalize(owner, self._remove_owner, number)

        def stop() -> None:
            remove_owner()
            self._cancel_departure()

        return stop

    def _remove_owner(self, number: int) -> None:
        del self._limits[number]
        self._limit = max(self._limits.values(), default=0.0)
        if not self._limits:
            self._stop.set()
            thread, self._thread = self._thread, None
            if thread is not None and thread is not threading.current_thread():
                # Else the thread may be the last one to drop the recorder, and write the departure note; if the
                # interpreter ends at that moment, the note is lost.
                thread.join(MAX_INTERVAL)
            self._stop_process_watchdog()

    def _cancel_departure(self) -> None:
        """Write no note when this rank leaves, unless something else trains on the grid."""
        if not self._limits:
            self._stop_process_watchdog()
            self._write_departure.detach()
            self._departure.files.remove(self._rank)

    def _watch_next_process(self) -> None:
        """Watch the process of the next rank of the node, to report its end before a launcher ends the job."""
        if self._next is not None and self._process_watchdog is None:
            rank = self._next
            self._process_watchdog = ProcessWatchdog(
                rank, self._neighbours[rank], lambda: self._files.has_left(rank), lambda: self._advice()
            )

    def _stop_process_watchdog(self) -> None:
        if self._process_watchdog is not None:
            self._process_watchdog.stop()
            self._process_watchdog = None

    def use_folder(self, folder: Path, advice: Callable[[], str]) -> None:
        """Write to the folder of a run from now on, and watch the processes of the node.

        Stall files of an earlier run are removed. `advice` returns the advice at the end of a report.
        """
        self._departure.files.clear()
        files = StallFiles(folder)
        files.remove(self._rank)
        if self._rank == 0:
            files.clear()
        self._departure.files, self._departure.ranks, self._advice = files, tuple(range(self._size)), advice
        self._watch_next_process()

    @contextlib.contextmanager
    def busy(self, what: str, at_most: float | None = None) -> Iterator[None]:
        """Announce long work that is no instruction, such as ``"writing a checkpoint"``: it is no stall.

        After `at_most` seconds, by default ten times the limit, it counts as one, and while the rank waits for others.
        """
        before = self._announced
        seconds = self._limit * BUSY_FACTOR if at_most is None else at_most
        self._announced = what, monotonic() + seconds
        try:
            yield
        finally:
            self._announced = before
            self._recorder.finished += 1

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self, stop: threading.Event) -> None:
        before = monotonic()
        interval = self._interval
        while not stop.wait(interval):
            now = monotonic()
            # A longer time means that the process was suspended, or not scheduled.
            self._check(min(now - before, 2 * interval), stop)
            before, interval = now, self._interval
        self._reset_alarm()

    @property
    def _interval(self) -> float:
        return min(self._limit / 10, MAX_INTERVAL) or MAX_INTERVAL

    @property
    def _files(self) -> StallFiles:
        return self._departure.files

    def _current_activity(self) -> Activity:
        return current_activity(self._recorder, self._trained_in, 2 * self._interval)

    def _check(self, elapsed: float, stop: threading.Event) -> None:
        activity, announced = self._current_activity(), self._announced
        works = announced is not None and monotonic() < announced[1] and not activity.is_waiting
        self._idle_seconds = 0.0 if works or activity != self._last_activity else self._idle_seconds + elapsed
        self._last_activity = activity
        stalled = self._idle_seconds >= self._limit
        departed = self._departed_ranks(activity)
        raises_alarm = bool(departed) or (stalled and activity.is_waiting)
        if not raises_alarm and not self._files.alarm:
            self._reset_alarm()
            return
        self._heartbeat += 1
        self._alarm_seconds += elapsed
        state = replace(
            observe(self._recorder, activity, self._rank, self._size),
            heartbeat=self._heartbeat,
            idle_seconds=round(self._idle_seconds, 3),
            stalled=stalled,
            busy_with="" if announced is None else announced[0],
            departed=format_ranks(departed),
        )
        try:
            self._files.write(state)
            if raises_alarm:
                self._files.raise_alarm()
        except OSError as error:
            self._write_error = str(error)
        self._end_if_stalled(state, elapsed, stop)

    def _departed_ranks(self, activity: Activity) -> list[int]:
        """Ranks that this one waits for, and that have left or died."""
        if not activity.is_waiting or self._idle_seconds < MIN_WAIT_SECONDS:
            return []
        left = self._files.left()
        dead = {rank for rank, process in self._neighbours.items() if process.is_dead}
        if activity.call is None:
            return sorted(dead | {rank for rank, state in left.items() if state.exited})
        call = Call._make(activity.call)
        members = call.channel.members
        if call.number == 0:
            return [rank for rank in (members[call.peer],) if rank in dead or rank in left]
        key = call.channel.axis, format_ranks(members), call.channel.ordinal

        def has_arrived(state: RankState) -> bool:
            return any(group.key == key and group.entered >= call.number for group in state.groups)

        return [
            rank for rank in members if rank in dead - left.keys() or (rank in left and not has_arrived(left[rank]))
        ]

    def _reset_alarm(self) -> None:
        """Remove the state that was written in an alarm, which is over."""
        if self._heartbeat:
            self._files.remove(self._rank)
            self._heartbeat, self._alarm_seconds, self._write_error = 0, 0.0, ""
            self._heartbeats.clear()

    def _end_if_stalled(self, own: RankState, elapsed: float, stop: threading.Event) -> None:
        """End the job if it has stalled and this rank is the one to end it."""
        left = self._files.left()
        present = [rank for rank in self._ranks if rank not in left]
        others = {rank: self._fresh_state(rank, elapsed) for rank in present if rank != self._rank}
        states = {self._rank: own} | {rank: state for rank, state in others.items() if state is not None}
        # The lowest rank that can print ends the job, or the lowest where all streams are closed.
        if min(states, key=lambda rank: (not states[rank].can_print, rank)) != self._rank:
            return
        departed = sorted({rank for state in states.values() for rank in parse_ranks(state.departed)})
        # Ranks above 0 also wait for those below them.
        factor = 1 if self._rank == 0 else 2
        if departed:
            answers = len(states) + len(set(departed) - left.keys())
            if answers >= len(present) or self._alarm_seconds >= factor * DEPARTURE_ANSWER_SECONDS:
                self._end_job(left | states, departed, stop)
        elif not any(state.stalled and state.is_waiting for state in states.values()):
            self._files.end_alarm()
        elif all(state.stalled for state in states.values()):
            answer_seconds = factor * self._answer_seconds
            if len(states) == len(present) or self._idle_seconds >= self._limit + answer_seconds:
                self._end_job(left | states, departed, stop)

    @property
    def _answer_seconds(self) -> float:
        return max(MIN_ANSWER_SECONDS, self._limit / 2)

    def _fresh_state(self, rank: int, elapsed: float) -> RankState | None:
        """The state of another rank; None where it does not answer, or does no more."""
        state = self._files.read(rank)
        if state is None:
            return None
        last, age = self._heartbeats.get(rank, (-1, 0.0))
        age = age + elapsed if last == state.heartbeat else 0.0
        self._heartbeats[rank] = state.heartbeat, age
        return state if age < self._answer_seconds else None

    def _end_job(self, states: Mapping[int, RankState], departed: Sequence[int], stop: threading.Event) -> None:
        if stop.is_set() or self._current_activity() != self._last_activity:
            return
        missing = [rank for rank in range(self._size) if rank not in states]
        job = JobState(
            self._size,
            self._limit,
            tuple(map(str, self._processes)),
            format_ranks(rank for rank in missing if rank in self._ranks),
            departed=format_ranks(departed),
            dead=format_ranks(rank for rank in missing if rank in self._neighbours and self._neighbours[rank].is_dead),
            unreachable=format_ranks(rank for rank in missing if rank not in self._ranks),
        )
        with contextlib.suppress(OSError):
            self._files.write(job)
        report = stall_report(StallRecord(states, job), self._files.path, self._write_error)
        end_job(f"\n{report}\n{self._advice()}\n")


@dataclass
class _DepartureNote:
    """State that a rank writes when it leaves. It references nothing of the grid but the progress of its groups."""

    files: StallFiles
    rank: int
    size: int
    ranks: tuple[int, ...]  # ranks that share the files
    channels: Sequence[CollectiveProgress]  # of the grid's groups
    process: int = field(default_factory=os.getpid)  # the process of the rank; processes forked from it write no note

    def write(self) -> None:
        """Write the note; the last rank that leaves removes all files."""
        if os.getpid() != self.process:
            return
        exited = not threading.main_thread().is_alive()
        departure = describe_exit("its script ended" if exited else "its trainer and its process grid no longer exist")
        groups = group_states(self.channels)
        state = new_state(self.rank, self.size, groups=groups, departure=departure, exited=exited)
        with contextlib.suppress(OSError):
            self.files.write(state)
            if self.files.count_left() == len(self.ranks):
                self.files.clear()


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """The process of a rank."""

    host: str
    number: int
    start: int  # its start time, from `start_of`

    @property
    def is_dead(self) -> bool:
        """Whether it no longer exists on this host; False where that is unknown."""
        # A process that ended keeps its number until its parent has taken its exit code.
        fields = _status_of(self.number)
        return self.start != 0 and (not self._has(fields) or _has_ended(fields))

    @property
    def exit_description(self) -> str:
        """How it ended; the system keeps its exit code until the launcher has taken it."""
        fields = _status_of(self.number)
        if self.start == 0 or len(fields) <= EXIT_FIELD or not self._has(fields) or not _has_ended(fields):
            return UNKNOWN_END
        code, signal = divmod(int(fields[EXIT_FIELD]), 256)
        return f"killed by signal {signal & 127}" if signal & 127 else f"ended with exit code {code} and without a word"

    def _has(self, fields: list[str]) -> bool:
        return bool(fields) and int(fields[START_FIELD]) == self.start

    def __str__(self) -> str:
        return f"host {self.host}, process {self.number}"


def processes_of(comm: MPI.Intracomm) -> tuple[Process, ...]:
    """The process of every rank of `comm`, in its order; collective."""
    own = Process(socket.gethostname(), os.getpid(), start_of(os.getpid()))
    return tuple(comm.allgather(own))


def start_of(process: int) -> int:
    """Start time of a process of this host in clock ticks of the system; 0 if unknown."""
    fields = _status_of(process)
    return int(fields[START_FIELD]) if fields else 0


def _has_ended(fields: list[str]) -> bool:
    return fields[STATE_FIELD] in "ZX"


def _status_of(process: int) -> list[str]:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return status.rpartition(")")[2].split()  # the name in parentheses may contain anything


class ProcessWatchdog:
    """A thread that ends the job with exit code 1 when the process of another rank dies.

    The end of the process is no error if that rank has left the job as it should (`has_left`). `advice` follows the
    error message.
    """

    def __init__(self, rank: int, process: Process, has_left: Callable[[], bool], advice: Callable[[], str]) -> None:
        self._rank, self._process, self._has_left, self._advice = rank, process, has_left, advice
        self._stop_descriptor = -1
        watched = self._open()
        if watched is not None:
            stopped, self._stop_descriptor = os.pipe()
            threading.Thread(target=self._watch, args=(watched, stopped), name="process watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        if self._stop_descriptor >= 0:
            os.close(self._stop_descriptor)
            self._stop_descriptor = -1

    def _open(self) -> int | None:
        """A descriptor of the process; None where the system has none."""
        try:
            descriptor = os.pidfd_open(self._process.number)
        except (AttributeError, OSError):
            return None
        # In another container the same number belongs to another process.
        if self._process.start and start_of(self._process.number) == self._process.start:
            return descriptor
        os.close(descriptor)
        return None

    def _watch(self, watched: int, stopped: int) -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.register(stopped, select.POLLIN | select.POLLHUP)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if stopped not in ready:
            # Read at once: the launcher takes the exit code, and ends this process too, in a moment.
            description = self._process.exit_description
            if not self._has_left():
                name = f"rank {self._rank} (process {self._process.number})"
                end_job(f"\n=== {name} is gone: {description}; the job ends ===\n{self._advice()}\n")
        os.close(watched)
        os.close(stopped)
