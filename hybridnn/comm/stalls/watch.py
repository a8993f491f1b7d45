"""The stall watch: a thread beside a rank's work that notices when nothing goes on, and ends the job with the reason.

A rank that has finished nothing for a while writes what it does to a file in the run folder. Wherever such a file is,
every rank that still lives answers with a file of its own, so that a rank that only works for long is not taken for a
dead one. The lowest rank that answers reads them all. It ends the job when no rank has finished anything for the
allowed time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType

from hybridnn.comm.failsafe import end_job
from hybridnn.comm.recorder import Recorder
from hybridnn.comm.stalls.files import StallFiles, StallRecord
from hybridnn.comm.stalls.observe import observe
from hybridnn.comm.stalls.ranks_text import ranks_text
from hybridnn.comm.stalls.report import stall_report
from hybridnn.comm.stalls.state import JobState, RankState

__all__ = ["StallWatch"]

LEAST_PATIENCE = 2.0
"""Seconds that a living rank gets to answer: its thread must have its turn and a file system show its file."""

BUSY_FACTOR = 10
"""Announced work outside of training may take so many times as long as an instruction."""


class StallWatch:
    """Watches this rank while it is entered; ends the job with exit code 1 when all of it stands still.

    Parameters
    ----------
    recorder : Recorder
        Of this rank; what passes it is a sign of life.
    folder : Path
        The run folder, which all ranks see under this name.
    rank, size : int
        This rank's number in the grid, and the ranks there are.
    seconds : float
        How long a job may finish nothing, 0 for ever. Time in which the process itself was suspended does not count.
    processes : sequence of str
        Host and process of every rank, from `processes_of`; to name those that are dead.
    advice : callable, optional
        Returns what to do next, which ends the account of a stall.
    """

    def __init__(
        self,
        recorder: Recorder,
        folder: Path,
        rank: int,
        size: int,
        seconds: float,
        processes: Sequence[str] = (),
        advice: Callable[[], str] = lambda: "",
    ) -> None:
        self._recorder, self._files = recorder, StallFiles(folder)
        self._rank, self._size, self._seconds, self._processes = rank, size, seconds, tuple(processes)
        self._advice = advice
        self._tick = min(seconds / 10, 1.0)
        self._patience = max(LEAST_PATIENCE, seconds / 2)
        self._idle = 0.0
        self._seen = recorder.finished
        self._busy: _Busy | None = None
        self._beat = 0
        self._signs: dict[int, _Sign] = {}
        self._unwritten = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StallWatch:
        """Begin to watch the thread that calls this."""
        if self._seconds > 0:
            # What an earlier run left here would be taken for signs of this one.
            self._files.remove(self._rank)
            if self._rank == 0:
                self._files.clear()
            arguments = (threading.get_ident(),)
            self._thread = threading.Thread(target=self._run, args=arguments, name="stall watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Watch no more."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(LEAST_PATIENCE)  # longer only where the file system hangs
            self._take_back()

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

    def _run(self, watched: int) -> None:
        before = monotonic()
        while not self._stop.wait(self._tick):
            now = monotonic()
            # More than was slept means that the process was suspended, or had no turn.
            self._look(watched, min(now - before, 2 * self._tick))
            before = now

    def _look(self, watched: int, elapsed: float) -> None:
        finished, busy = self._recorder.finished, self._busy
        goes_on = finished != self._seen or (busy is not None and monotonic() < busy.until)
        self._idle = 0.0 if goes_on else self._idle + elapsed
        self._seen = finished
        stalled = self._idle >= self._seconds
        if not stalled and not self._files.alarm:
            self._take_back()
            return
        self._beat += 1
        state = observe(
            self._recorder,
            watched,
            rank=self._rank,
            size=self._size,
            beat=self._beat,
            idle_seconds=self._idle,
            stalled=stalled,
            busy="" if busy is None else busy.what,
        )
        try:
            self._files.write(state)
            if stalled:
                self._files.raise_alarm()
        except OSError as error:
            self._unwritten = str(error)
        self._decide(state, elapsed)

    def _take_back(self) -> None:
        """Remove what was written in an alarm that is over."""
        if self._beat:
            self._files.remove(self._rank)
            self._beat, self._unwritten = 0, ""
            self._signs.clear()

    def _decide(self, own: RankState, elapsed: float) -> None:
        """End the job if that is this rank's part, and the time has come."""
        if any(self._sign_of(rank, elapsed) for rank in range(self._rank)):
            return
        others = {rank: self._sign_of(rank, elapsed) for rank in range(self._rank + 1, self._size)}
        states = {self._rank: own} | {rank: state for rank, state in others.items() if state is not None}
        if not any(state.stalled for state in states.values()):
            self._files.end_alarm()
        elif all(state.stalled for state in states.values()):
            # Ranks above 0 also wait for those below them.
            patience = self._patience * (1 if self._rank == 0 else 2)
            if len(states) == self._size or self._idle >= self._seconds + patience:
                self._end(states)

    def _sign_of(self, rank: int, elapsed: float) -> RankState | None:
        """What another rank wrote lately; None where it does not answer, or no more."""
        state = self._files.read(rank)
        if state is None:
            return None
        before = self._signs.get(rank)
        age = before.age + elapsed if before is not None and before.beat == state.beat else 0.0
        self._signs[rank] = _Sign(state.beat, age)
        return state if age < self._patience else None

    def _end(self, states: Mapping[int, RankState]) -> None:
        if self._recorder.finished != self._seen or self._stop.is_set():
            return
        silent = ranks_text(rank for rank in range(self._size) if rank not in states)
        job = JobState(self._size, self._seconds, self._processes, silent)
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
