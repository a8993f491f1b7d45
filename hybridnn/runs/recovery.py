"""Training that outlives the loss of a rank, where the MPI library does; see ``hybridnn/diagnostics/lost_ranks.py``.

Every rank of a grid with the batch axis alone holds all weights and the whole state of the optimizer. The ranks that
are left start the run again on a smaller grid, from the newest checkpoint, or from what one of them holds.

What the ranks that are left of a run hold, when nobody has written it yet.

Batch replicas hold everything. After a loss some stand one step later than others; one of the latest writes a
checkpoint, and adds to the history what the lost rank was to write.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.checkpoints.folder import checkpoint_folders, step_of
from hybridnn.checkpoints.manifest import Progress
from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.mpi import import_mpi, running_ranks
from hybridnn.config.settings import Settings
from hybridnn.diagnostics.failsafe import end_job
from hybridnn.diagnostics.lost_ranks import SurvivingRanks, tolerates_losses
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs import run
from hybridnn.runs.auto_layout import resolve_layout
from hybridnn.runs.folder import CHECKPOINTS, Start
from hybridnn.runs.history_file import HISTORY, read_records, run_status, to_line
from hybridnn.runs.recovery_state import RecoveryState, resume_advice
from hybridnn.training.records import History, Record
from hybridnn.utils.files import write_atomically
from hybridnn.utils.text import name_ranks

if TYPE_CHECKING:
    from hybridnn.runs.report import RunView


def rescue(grid: ProcessGrid, run: RecoveryState, folder: Path) -> None:
    """Write a checkpoint of what a rank holds, if that is more than the newest one has; collective.

    Parameters
    ----------
    grid : ProcessGrid
        The ranks that are left.
    run : RecoveryState
        That lost a rank, as this rank knows it.
    folder : Path
        Of the run.

    Raises
    ------
    EnvironmentProblem
        On every rank: it cannot be written.
    """
    written = checkpoint_folders(folder / CHECKPOINTS)
    newest = step_of(written[0]) if written else 0
    progress = run.progress
    # The latest step wins, and among the ranks that stand there the first.
    claim = -1 if progress is None else progress.step * grid.size + grid.size - 1 - grid.rank
    best = np.array([claim], np.int64)
    grid.world.allreduce(best, "max")
    is_best = claim == best[0]

    def write() -> None:
        if is_best and progress is not None and progress.step > newest:
            assert run.trainer is not None
            assert run.new_writer is not None
            complete_history(folder / HISTORY, run.trainer.history, progress)
            run.new_writer(grid=ProcessGrid(import_mpi().COMM_SELF)).write(progress)

    agree(grid.world, write)


def complete_history(path: Path, held: History, progress: Progress) -> None:
    """Add to a history file what a rank holds of it, up to a moment.

    Parameters
    ----------
    path : Path
        The file; its last line may be cut off. What comes after a damaged line is left out.
    held : History
        Every rank has all records, whoever writes them.
    progress : Progress
        The moment.
    """
    written, _ = read_records(path)
    written_keys = set(map(_key, written))
    ends = {record.epoch: record.step for record in held.epochs if record.epoch < progress.epoch}
    records: list[tuple[int, Record]] = [
        *((record.step, record) for record in held.steps if record.step <= progress.step),
        *((ends[record.epoch], record) for record in held.measured if record.epoch in ends),
        *((record.step, record) for record in held.epochs if record.epoch in ends),
    ]
    missing = [record for _, record in sorted(records, key=itemgetter(0)) if _key(record) not in written_keys]
    write_atomically(path, "".join(map(to_line, written + missing)))


def _key(record: Record) -> tuple[Any, ...]:
    """Identity of a step, epoch or measured step among the records of a history."""
    return record.kind, getattr(record, "epoch", None), getattr(record, "step", None)


LOST = 1
"""Set in what the ranks tell one another after a try if one of them noticed a loss; the bits above are exit codes."""

EXIT_CODE = 1
"""How far to the left."""

FAILED = 1
"""Exit code of a run that has to be started again."""

NEEDED = "to go on without takes a grid of the batch axis alone, on one node"

RESTART_FACTOR = 10
"""To start again may take so many times as long as an instruction: data are read."""

ViewOf = Callable[["RankLoss | None"], "AbstractContextManager[RunView]"]


@dataclass(frozen=True)
class RankLoss:
    """What happened.

    Attributes
    ----------
    lost : tuple of int
        Ranks that are gone, as the launcher numbered them.
    remaining : int
        Ranks that go on.
    is_first : bool
        Whether this rank is the first of them.
    """

    lost: tuple[int, ...]
    remaining: int
    is_first: bool


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Attributes
    ----------
    loss : RankLoss or None
        The last one: after it, MPI cannot be ended properly, and every process is to end by `exit_without_mpi`.
    exit_code : int
    error : HybridnnError or None
        What ended the run after the loss, where this rank knows.
    """

    loss: RankLoss | None = None
    exit_code: int = 0
    error: HybridnnError | None = None


def train_on_survivors(
    settings: Settings, view_of: ViewOf, start: Start = "new", *, forced: bool = False
) -> RunOutcome:
    """Train as `run_training` does, and go on with the ranks that are left when some are lost.

    So it is where the MPI library offers it and the job was started for it, on one node and with the batch axis alone.
    Elsewhere the loss of a rank ends the job, with the reason. Collective over all ranks of the job.

    Parameters
    ----------
    settings, start, forced
        As for `run_training`.
    view_of : callable
        Makes the view of a try, from the loss before it.

    Raises
    ------
    HybridnnError
        As `run_training`, if no rank was lost.
    """
    if not tolerates_losses() or running_ranks() == 1:
        with view_of(None) as view:
            run.run_training(settings, view, start=start, forced=forced)
        return RunOutcome()
    ranks = SurvivingRanks.of_job()
    run.require_same_run(settings, start, forced=forced)
    settings = resolve_layout(settings)
    tries = _Tries(settings, view_of, ranks, start, forced=forced)
    while (ended := tries.train()) is None:
        pass
    return ended


class _Tries:
    """A run that is tried again after each loss."""

    def __init__(
        self, settings: Settings, view_of: ViewOf, ranks: SurvivingRanks, start: Start, *, forced: bool
    ) -> None:
        self._settings, self._view_of, self._ranks = settings, view_of, ranks
        self._start, self._forced = start, forced
        parallel = settings.parallel
        self._is_replicated = parallel.pipeline == 1 and parallel.model == 1 and not parallel.stages
        self._is_on_one_node = ranks.on_one_node
        self._everyone = ranks.world_ranks
        self._loss: RankLoss | None = None
        self._underway = RecoveryState()
        self._interrupted: list[BaseException] = []

    def train(self) -> RunOutcome | None:
        """Train to the end; None if a rank was lost and the others are to try again."""
        error, word = self._try()
        if not self._is_on_one_node:  # where those that are left may never agree
            told: int | None = word
            self._loss = RankLoss((), 0, is_first=True) if word == LOST else None
        else:
            with self._at_most(self._settings.output.stall_seconds, "did not find together"):
                told = self._ranks.combine_flags(word)
                if told is None or told & LOST:
                    self._shrink()
        if told == 0:
            return RunOutcome(self._loss)
        code = (told or 0) >> EXIT_CODE
        if code and self._loss is None:
            assert error is not None
            raise error
        if code:
            return RunOutcome(self._loss, code, error)
        if not (self._is_replicated and self._is_on_one_node):
            return RunOutcome(self._loss, FAILED, EnvironmentProblem(self._reason(f"was lost, and {NEEDED}")))
        return None

    def _try(self) -> tuple[HybridnnError | None, int]:
        """Train; returns what is wrong, and the word that tells the others of it."""
        try:
            if self._loss is None or self._take_over(ProcessGrid(self._ranks.comm)):
                self._run()
        except Exception as error:
            if self._ranks.is_loss(error):
                self._ranks.revoke()
                # MPI may yet reach for arrays of the try, so they are kept.
                self._interrupted.append(error)
                return None, LOST
            if isinstance(error, HybridnnError):
                return error, error.exit_code << EXIT_CODE
            raise
        return None, 0

    def _run(self) -> None:
        limit = self._settings.output.stall_seconds * RESTART_FACTOR if self._loss else 0
        with self._at_most(limit, "did not start again") as stop_clock, self._view_of(self._loss) as view:
            self._underway = RecoveryState(self._ranks.comm, outlives_losses=True, on_begin=stop_clock)
            run.run_training(self._settings, view, start=self._start, forced=self._forced, underway=self._underway)

    def _shrink(self) -> None:
        """Leave the lost ranks behind."""
        if self._underway.writer is not None:
            self._underway.writer.settle()
        self._ranks = self._ranks.shrink()
        left = self._ranks.world_ranks
        self._loss = RankLoss(tuple(sorted(self._everyone - left)), len(left), self._ranks.rank == 0)

    def _take_over(self, grid: ProcessGrid) -> bool:
        """Settle from where to go on, after a loss; False if nothing is left to do. Collective."""
        before = self._underway
        ended = before.trainer is not None and before.folder is not None and run_status(before.folder) == "finished"
        # A rank may have been lost just before it told the others; who knows most tells them now.
        known = np.array([ended, 0 if before.folder is None else grid.size - grid.rank], np.int64)
        grid.world.allreduce(known, "max")
        if known[1]:
            folder = Path(broadcast_text(grid.world, str(before.folder), grid.size - int(known[1])))
            rescue(grid, before, folder)
            output = self._settings.output.model_copy(update={"folder": str(folder)})
            self._start = "resume" if checkpoint_folders(folder / CHECKPOINTS) else "again"
            self._settings = self._settings.model_copy(update={"output": output})
        parallel = self._settings.parallel.model_copy(update={"batch": None})
        self._settings = self._settings.model_copy(update={"parallel": parallel})
        return not known[0]

    @contextlib.contextmanager
    def _at_most(self, seconds: float, what: str) -> Iterator[Callable[[], None]]:
        """End the job if the body, or what comes before the given function is called, takes longer; 0: for ever."""
        clock = threading.Timer(
            seconds, self._end, (f"was lost or stands still, and the others {what} in {seconds:g} s",)
        )
        clock.daemon = True
        if seconds:
            clock.start()
        try:
            yield clock.cancel
        finally:
            clock.cancel()

    def _reason(self, what: str) -> str:
        gone = name_ranks(self._loss.lost) if self._loss is not None and self._loss.lost else "a rank"
        return f"{gone} {what}. {resume_advice(self._underway.folder)}"

    def _end(self, what: str) -> None:
        end_job(f"\nError: {self._reason(what)}\n")
