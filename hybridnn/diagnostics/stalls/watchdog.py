"""The stall watchdog: a thread beside a rank's work that ends the job, with the reason, when nothing goes on.

A rank that waits for others and has finished nothing for a while writes what it does to a file. Wherever there is one,
every rank that still lives answers with a file of its own, so that a rank that only works for long is not taken for a
dead one. The lowest rank that answers reads them all. It ends the job when no rank has finished anything for the
allowed time, or when a rank waits for one that has left.

The folder in which ranks without a run folder find what the others report: see ``diagnostics/stalls/files.py``.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np

from hybridnn.comm.mpi import import_mpi, is_in_process, ranks_within
from hybridnn.comm.recorder import Recorder
from hybridnn.diagnostics.failsafe import end_job
from hybridnn.diagnostics.lost_ranks import tolerates_losses
from hybridnn.diagnostics.stalls.files import StallFiles, StallRecord
from hybridnn.diagnostics.stalls.observe import Activity, DepartureNote, observe
from hybridnn.diagnostics.stalls.peers import PeerWatch, Process, processes_of, start_of
from hybridnn.diagnostics.stalls.report import stall_report
from hybridnn.diagnostics.stalls.state import JobState, RankState
from hybridnn.utils.text import format_ranks, parse_ranks

if TYPE_CHECKING:
    from mpi4py import MPI


PATH_BYTES = 4096


@dataclass(frozen=True)
class SharedFolder:
    """A folder, and who sees it.

    Attributes
    ----------
    folder : Path
        Made for these ranks alone, and empty.
    ranks : tuple of int
        Ranks of the grid that see it, this one among them.
    """

    folder: Path
    ranks: tuple[int, ...]


def find_place(world: MPI.Intracomm, node: MPI.Intracomm) -> SharedFolder:
    """Make a folder that as many ranks as possible see; collective.

    It is one for all ranks in the temporary directory, or in the current one; else one for each node; else one for this
    rank alone.

    Parameters
    ----------
    world : MPI.Intracomm
        The ranks of the grid.
    node : MPI.Intracomm
        Those on this node.
    """
    tries: list[tuple[MPI.Intracomm, Callable[[], str]]] = [
        (world, tempfile.gettempdir),
        (world, lambda: str(Path.cwd())),
        (node, tempfile.gettempdir),
    ]
    for comm, parent in tries:
        folder = _make_for(comm, parent)
        if folder is not None:
            return SharedFolder(folder, tuple(ranks_within(comm, world)))
    return SharedFolder(_make(tempfile.gettempdir) or Path("hybridnn-stall"), (world.Get_rank(),))


def _make_for(comm: MPI.Intracomm, parent: Callable[[], str]) -> Path | None:
    """A folder of all ranks of `comm`; None on all of them where one does not see it."""
    made = _make(parent) if comm.Get_rank() == 0 else None
    path = np.zeros(PATH_BYTES, np.uint8)
    name = b"" if made is None else bytes(made)
    if len(name) <= PATH_BYTES:
        path[: len(name)] = np.frombuffer(name, np.uint8)
    comm.Bcast(path, 0)
    folder = Path(path.tobytes().rstrip(b"\0").decode(errors="surrogateescape"))
    sees = np.array([bool(path[0]) and folder.is_dir()], np.uint8)
    comm.Allreduce(import_mpi().IN_PLACE, sees, import_mpi().MIN)
    if sees[0]:
        return folder
    if made is not None:
        with contextlib.suppress(OSError):
            made.rmdir()
    return None


def _make(parent: Callable[[], str]) -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix="hybridnn-stall-", dir=parent()))
    except OSError:
        return None


LEAST_PATIENCE = 2.0
"""Seconds that a living rank gets to answer: its thread must have its turn and a file system show its file."""

LEAST_WAIT = 2.0
"""Seconds in a call after which a rank looks whether those it waits for are still there."""

ANSWER_SECONDS = 5.0
"""For which a job that cannot go on waits for the accounts of all ranks that are there."""

LONGEST_TICK = 1.0

BUSY_FACTOR = 10
"""Announced work outside of training may take so many times as long as an instruction."""


class StallWatchdog:
    """Watches this rank of a process grid; ends the job with exit code 1 when it stands still.

    One thread per grid, which runs while something trains on it. It makes no call of MPI before it ends the job.

    Parameters
    ----------
    recorder : Recorder
        Of this rank; what passes it is a sign of life.
    place : Place
        Where the ranks write.
    rank, size : int
        This rank's number in the grid, and the ranks there are.
    processes : sequence of Process
        Of every rank, from `processes_of`; to name those that are dead.
    """

    def __init__(
        self, recorder: Recorder, place: SharedFolder, rank: int, size: int, processes: Sequence[Process] = ()
    ) -> None:
        self._recorder, self._rank, self._size, self._ranks = recorder, rank, size, place.ranks
        self._processes = tuple(processes)
        self._neighbours = {
            other: process
            for other, process in enumerate(self._processes)
            # Ranks in containers of their own have each its own numbering of processes.
            if process.host == self._processes[rank].host and process.start == start_of(process.number) != 0
        }
        if self._processes and tolerates_losses():
            self._neighbours = {}
        ring = sorted(self._neighbours)
        self._next = ring[(ring.index(rank) + 1) % len(ring)] if len(ring) > 1 else None
        self._peer_watch: PeerWatch | None = None
        self._advice: Callable[[], str] = str
        self._limits: dict[int, float] = {}
        self._seconds = 0.0
        self._watched = 0
        self._idle = self._alarmed = 0.0
        self._seen: Activity | None = None
        self._busy: _Busy | None = None
        self._beat = 0
        self._signs: dict[int, _Sign] = {}
        self._unwritten = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        files = StallFiles(place.folder, temporary=True)
        self._departure = DepartureNote(files, rank, size, place.ranks, recorder.channels)
        self._notes_departure = finalize(recorder, self._departure.note)

    @classmethod
    def of(cls, recorder: Recorder, world: MPI.Intracomm, node: MPI.Intracomm) -> StallWatchdog | None:
        """Prepare to watch the ranks of a grid, of which `node` are on this node; collective.

        None for one rank, and for ranks of one process, which end with a verdict as soon as none can go on.
        """
        if world.Get_size() == 1 or is_in_process():
            return None
        return cls(recorder, find_place(world, node), world.Get_rank(), world.Get_size(), processes_of(world))

    def start(self, owner: object, seconds: float) -> Callable[[], None]:
        """Watch the thread that calls this, while `owner` lives.

        Parameters
        ----------
        owner : object
            What trains; referred to weakly. There may be several: the longest time counts.
        seconds : float
            How long no rank may finish anything while one waits; 0 for ever. Time in which the process itself was
            suspended does not count.

        Returns
        -------
        callable
            Ends it for this owner, and with the last one removes all files. Every rank calls it.
        """
        if not self._notes_departure.alive:
            self._notes_departure = finalize(self._recorder, self._departure.note)
        if seconds <= 0:
            return self._forget
        self._watch_peer()
        number = max(self._limits, default=0) + 1
        self._limits[number] = seconds
        self._seconds = max(self._limits.values())
        self._watched = threading.get_ident()
        if self._thread is None:
            self._stop = threading.Event()
            self._idle, self._seen = 0.0, None
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="stall watch", daemon=True)
            self._thread.start()
        end = finalize(owner, self._end_for, number)

        def end_and_forget() -> None:
            end()
            self._forget()

        return end_and_forget

    def _end_for(self, number: int) -> None:
        del self._limits[number]
        self._seconds = max(self._limits.values(), default=0.0)
        if not self._limits:
            self._stop.set()
            self._thread = None
            self._leave_peer()

    def _forget(self) -> None:
        """Leave no note when this rank leaves, unless something else trains on the grid."""
        if not self._limits:
            self._leave_peer()
            self._notes_departure.detach()
            self._departure.files.remove(self._rank)

    def _watch_peer(self) -> None:
        """Watch the process of the next rank of the node: it is seen to be gone before a launcher ends the others."""
        if self._next is not None and self._peer_watch is None:
            number = self._next
            process = self._neighbours[number]
            self._peer_watch = PeerWatch(number, process, lambda: self._files.has_left(number), lambda: self._advice())

    def _leave_peer(self) -> None:
        if self._peer_watch is not None:
            self._peer_watch.end()
            self._peer_watch = None

    def use_folder(self, folder: Path, advice: Callable[[], str]) -> None:
        """From now on write into the folder of a run, and end the job when a process of the node is gone.

        Parameters
        ----------
        folder : Path
            The same for all ranks. What an earlier run left there is removed.
        advice : callable
            Returns what to do next, which ends the account of a stall.
        """
        self._departure.files.clear()
        files = StallFiles(folder)
        files.remove(self._rank)
        if self._rank == 0:
            files.clear()
        self._departure.files, self._departure.ranks, self._advice = files, tuple(range(self._size)), advice
        self._watch_peer()

    @contextlib.contextmanager
    def busy(self, what: str, at_most: float | None = None) -> Iterator[None]:
        """Announce long work that is no instruction, such as ``"writing a checkpoint"``: it is no stall.

        Parameters
        ----------
        what : str
            What the rank is busy with.
        at_most : float, optional
            Seconds after which it counts as one all the same; by default ten times the watch's own.
        """
        before = self._busy
        self._busy = _Busy(what, monotonic() + (self._seconds * BUSY_FACTOR if at_most is None else at_most))
        try:
            yield
        finally:
            self._busy = before
            self._recorder.finished += 1

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self, stop: threading.Event) -> None:
        before = monotonic()
        tick = self._tick
        while not stop.wait(tick):
            now = monotonic()
            # More than was slept means that the process was suspended, or had no turn.
            self._look(min(now - before, 2 * tick), stop)
            before, tick = now, self._tick
        self._take_back()

    @property
    def _tick(self) -> float:
        return min(self._seconds / 10, LONGEST_TICK) or LONGEST_TICK

    @property
    def _files(self) -> StallFiles:
        return self._departure.files

    def _activity(self) -> Activity:
        return Activity.of(self._recorder, self._watched, 2 * self._tick)

    def _look(self, elapsed: float, stop: threading.Event) -> None:
        activity, busy = self._activity(), self._busy
        goes_on = activity != self._seen or (busy is not None and monotonic() < busy.until)
        self._idle = 0.0 if goes_on else self._idle + elapsed
        self._seen = activity
        stalled = self._idle >= self._seconds
        left = self._files.left() if activity.waits and self._idle >= LEAST_WAIT else {}
        lost = self._lost(activity, left)
        if not lost and not (stalled and activity.waits) and not self._files.alarm:
            self._take_back()
            return
        self._beat += 1
        self._alarmed += elapsed
        state = observe(
            self._recorder,
            activity,
            rank=self._rank,
            size=self._size,
            beat=self._beat,
            idle_seconds=self._idle,
            stalled=stalled,
            busy="" if busy is None else busy.what,
            lost=format_ranks(lost),
        )
        try:
            self._files.write(state)
            if lost or (stalled and activity.waits):
                self._files.raise_alarm()
        except OSError as error:
            self._unwritten = str(error)
        self._decide(state, elapsed, stop)

    def _lost(self, activity: Activity, left: Mapping[int, RankState]) -> list[int]:
        """Ranks that this one waits for in vain, as they have left or their processes are gone."""
        if not activity.waits or self._idle < LEAST_WAIT:
            return []
        gone = {rank for rank, process in self._neighbours.items() if process.is_gone}
        if activity.call is None:
            return sorted(gone | {rank for rank, state in left.items() if state.exited})
        _, channel, number, _, _, peer, *_ = activity.call
        key = channel.axis, format_ranks(channel.members), channel.ordinal
        if number == 0:
            return [rank for rank in (channel.members[peer],) if rank in gone or rank in left]

        def arrived(state: RankState) -> bool:
            return any(group.key == key and group.entered >= number for group in state.groups)

        return [
            rank for rank in channel.members if rank in gone - left.keys() or (rank in left and not arrived(left[rank]))
        ]

    def _take_back(self) -> None:
        """Remove what was written in an alarm that is over."""
        if self._beat:
            self._files.remove(self._rank)
            self._beat, self._alarmed, self._unwritten = 0, 0.0, ""
            self._signs.clear()

    def _decide(self, own: RankState, elapsed: float, stop: threading.Event) -> None:
        """End the job if that is this rank's part, and the time has come."""
        left = self._files.left()
        present = [rank for rank in self._ranks if rank not in left]
        others = {rank: self._sign_of(rank, elapsed) for rank in present if rank != self._rank}
        states = {self._rank: own} | {rank: state for rank, state in others.items() if state is not None}
        # The lowest rank that can print the account, or the lowest where all streams are closed.
        if min(states, key=lambda rank: (not states[rank].can_print, rank)) != self._rank:
            return
        lost = sorted({rank for state in states.values() for rank in parse_ranks(state.lost)})
        # Ranks above 0 also wait for those below them.
        factor = 1 if self._rank == 0 else 2
        if lost:
            answers = len(states) + len(set(lost) - left.keys())
            if answers >= len(present) or self._alarmed >= factor * ANSWER_SECONDS:
                self._end(left | states, lost, stop)
        elif not any(state.stalled and state.waits for state in states.values()):
            self._files.end_alarm()
        elif all(state.stalled for state in states.values()):
            patience = factor * max(LEAST_PATIENCE, self._seconds / 2)
            if len(states) == len(present) or self._idle >= self._seconds + patience:
                self._end(left | states, lost, stop)

    def _sign_of(self, rank: int, elapsed: float) -> RankState | None:
        """What another rank wrote lately; None where it does not answer, or no more."""
        state = self._files.read(rank)
        if state is None:
            return None
        before = self._signs.get(rank)
        age = before.age + elapsed if before is not None and before.beat == state.beat else 0.0
        self._signs[rank] = _Sign(state.beat, age)
        return state if age < max(LEAST_PATIENCE, self._seconds / 2) else None

    def _end(self, states: Mapping[int, RankState], lost: Sequence[int], stop: threading.Event) -> None:
        if stop.is_set() or self._activity() != self._seen:
            return
        missing = [rank for rank in range(self._size) if rank not in states]
        gone = [rank for rank in missing if rank in self._neighbours and self._neighbours[rank].is_gone]
        job = JobState(
            self._size,
            self._seconds,
            tuple(map(str, self._processes)),
            format_ranks(rank for rank in missing if rank in self._ranks),
            lost=format_ranks(lost),
            gone=format_ranks(gone),
            unseen=format_ranks(rank for rank in missing if rank not in self._ranks),
        )
        with contextlib.suppress(OSError):
            self._files.write(job)
        account = stall_report(StallRecord(states, job), self._files.path, self._unwritten)
        end_job(f"\n{account}\n{self._advice()}\n")


@dataclass(frozen=True)
class _Busy:
    """Announced work, and when it should have ended by ``time.monotonic``."""

    what: str
    until: float


@dataclass(frozen=True)
class _Sign:
    """The last that was seen of a rank, and seconds since that was new."""

    beat: int
    age: float
