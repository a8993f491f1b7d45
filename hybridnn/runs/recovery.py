"""Recovery: a run continues without its lost ranks, where the MPI library can (`hybridnn.diagnostics.lost_ranks`).

On a grid with the batch axis alone every rank holds all weights and the whole state of the optimizer. The surviving
ranks attempt the run again on a smaller grid, from the newest checkpoint. First one of the ranks with the latest step
writes its state as a checkpoint, and adds the records to the history that a lost rank 0 did not write.
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
from hybridnn.checkpoints.progress import Progress
from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.mpi import import_mpi, running_ranks
from hybridnn.config.settings import Settings
from hybridnn.diagnostics.failsafe import end_job
from hybridnn.diagnostics.lost_ranks import SurvivingRanks, tolerates_losses
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs import run
from hybridnn.runs.folder import Start, resume_advice
from hybridnn.runs.run_files import CHECKPOINTS, HISTORY, read_records, run_status, to_line
from hybridnn.runs.workload import choose_parallel_settings
from hybridnn.training.records import History, Record
from hybridnn.utils.files import write_atomically
from hybridnn.utils.text import name_ranks

if TYPE_CHECKING:
    from hybridnn.runs.hooks import CheckpointHook
    from hybridnn.runs.report import RunView


RANK_LOST = 1  # status flag that the ranks combine after an attempt: a rank was lost. The bits above are an exit code.
EXIT_CODE_SHIFT = 1  # bit offset of the exit code
RESTART_EXIT_CODE = 1  # exit code of a run that the user has to resume

REQUIREMENT = "to go on without takes a grid of the batch axis alone, on one node"

RESTART_FACTOR = 10  # time limit of a restart in multiples of `output.stall_seconds`, since data are read again

ViewOf = Callable[["RankLoss | None"], "AbstractContextManager[RunView]"]


@dataclass(frozen=True)
class RankLoss:
    """Loss of one or several ranks."""

    lost: tuple[int, ...]  # ranks of the job that were lost, as the launcher numbered them
    remaining: int  # number of surviving ranks
    is_first: bool  # whether this rank is the first surviving one, which prints


@dataclass(frozen=True)
class RunOutcome:
    """End of a run."""

    # the last one. After a loss MPI cannot be finalized, and every process has to end by `exit_without_mpi`.
    loss: RankLoss | None = None
    exit_code: int = 0
    error: HybridnnError | None = None  # error that ended the run after the loss, if this rank raised it


def train_on_survivors(
    settings: Settings, view_of: ViewOf, start: Start = "new", *, forced: bool = False
) -> RunOutcome:
    """Train as `run_training` does, and continue on the surviving ranks if some are lost; collective over the job.

    Ranks are survived if the MPI library supports it and the job was started for it, on one node and with the batch
    axis alone. Otherwise the loss of a rank ends the job, with the reason.

    Raises `HybridnnError` as `run_training`, if no rank was lost.

    Parameters
    ----------
    settings, start, forced
        As for `run_training`.
    view_of : callable
        Makes the view of an attempt, given the loss before it.
    """
    if not tolerates_losses() or running_ranks() == 1:
        with view_of(None) as view:
            run.run_training(settings, view, start=start, forced=forced)
        return RunOutcome()
    ranks = SurvivingRanks.of_job()
    run.require_same_run(settings, start, forced=forced)
    attempts = _Attempts(choose_parallel_settings(settings), view_of, ranks, start, forced=forced)
    while (outcome := attempts.train()) is None:
        pass
    return outcome


class _Attempts:
    """A run that is attempted again after each loss."""

    def __init__(
        self, settings: Settings, view_of: ViewOf, ranks: SurvivingRanks, start: Start, *, forced: bool
    ) -> None:
        self._settings, self._view_of, self._ranks = settings, view_of, ranks
        self._start, self._forced = start, forced
        self._is_on_one_node = ranks.on_one_node
        self._job_ranks = ranks.world_ranks
        self._loss: RankLoss | None = None
        self._attempt: run.Attempt | None = None
        self._interrupted: list[BaseException] = []

    def train(self) -> RunOutcome | None:
        """Make an attempt; None if a rank was lost and another attempt is to be made."""
        error, own_status = self._try()
        if self._is_on_one_node:
            with self._time_limit(self._settings.output.stall_seconds, "did not find together"):
                status = self._ranks.combine_flags(own_status)
                if status is None or status & RANK_LOST:
                    self._shrink()
        else:  # the surviving ranks may never agree
            status = own_status
            self._loss = RankLoss((), 0, is_first=True) if status == RANK_LOST else None
        if status == 0:
            return RunOutcome(self._loss)
        code = (status or 0) >> EXIT_CODE_SHIFT
        if code and self._loss is None:
            assert error is not None
            raise error
        if code:
            return RunOutcome(self._loss, code, error)
        parallel = self._settings.parallel
        only_batch_axis = parallel.pipeline == 1 and parallel.model == 1 and not parallel.stages
        if not (only_batch_axis and self._is_on_one_node):
            reason = self._reason(f"was lost, and {REQUIREMENT}")
            return RunOutcome(self._loss, RESTART_EXIT_CODE, EnvironmentProblem(reason))
        return None

    def _try(self) -> tuple[HybridnnError | None, int]:
        """Train; the error of this rank, and its status flags."""
        try:
            if self._loss is None or self._restore(ProcessGrid(self._ranks.comm)):
                self._run()
        except Exception as error:
            if self._ranks.is_loss(error):
                self._ranks.revoke()
                # MPI may still access arrays of the attempt, so the traceback keeps them alive.
                self._interrupted.append(error)
                return None, RANK_LOST
            if isinstance(error, HybridnnError):
                return error, error.exit_code << EXIT_CODE_SHIFT
            raise
        return None, 0

    def _run(self) -> None:
        limit = self._settings.output.stall_seconds * RESTART_FACTOR if self._loss else 0
        with self._time_limit(limit, "did not start again") as lift_limit, self._view_of(self._loss) as view:
            self._attempt = run.Attempt(
                self._settings, view, self._start, self._forced, self._ranks.comm, recovers=True
            )
            self._attempt.train(on_training=lift_limit)

    def _shrink(self) -> None:
        """Exclude the lost ranks."""
        if self._attempt is not None and self._attempt.hook is not None:
            self._attempt.hook.writer.join()
        self._ranks = self._ranks.shrink()
        survivors = self._ranks.world_ranks
        lost = tuple(sorted(self._job_ranks - survivors))
        self._loss = RankLoss(lost, len(survivors), self._ranks.rank == 0)

    def _restore(self, grid: ProcessGrid) -> bool:
        """Prepare the next attempt: its settings and its checkpoint; False if the run had ended. Collective."""
        folder, hook = (None, None) if self._attempt is None else (self._attempt.path, self._attempt.hook)
        ended = hook is not None and folder is not None and run_status(folder) == "finished"
        # Some ranks may not know the folder yet; the first one that does broadcasts it.
        facts = np.array([ended, 0 if folder is None else grid.size - grid.rank], np.int64)
        grid.world.allreduce(facts, "max")
        if facts[1]:
            folder = Path(broadcast_text(grid.world, str(folder), grid.size - int(facts[1])))
            save_latest_state(grid, hook, folder)
            output = self._settings.output.model_copy(update={"folder": str(folder)})
            self._start = "resume" if checkpoint_folders(folder / CHECKPOINTS) else "again"
            self._settings = self._settings.model_copy(update={"output": output})
        parallel = self._settings.parallel.model_copy(update={"batch": None})
        self._settings = self._settings.model_copy(update={"parallel": parallel})
        return not facts[0]

    @contextlib.contextmanager
    def _time_limit(self, seconds: float, what: str) -> Iterator[Callable[[], None]]:
        """End the job after `seconds`, unless the body ends or calls the function that it is given; 0: no limit."""
        reason = f"was lost or stands still, and the others {what} in {seconds:g} s"
        timer = threading.Timer(seconds, lambda: end_job(f"\nError: {self._reason(reason)}\n"))
        timer.daemon = True
        if seconds:
            timer.start()
        try:
            yield timer.cancel
        finally:
            timer.cancel()

    def _reason(self, what: str) -> str:
        lost = name_ranks(self._loss.lost) if self._loss is not None and self._loss.lost else "a rank"
        return f"{lost} {what}. {resume_advice(None if self._attempt is None else self._attempt.path)}"


def save_latest_state(grid: ProcessGrid, hook: CheckpointHook | None, folder: Path) -> None:
    """Write the latest state of a surviving rank as a checkpoint, unless the newest is as recent; collective.

    Raises `EnvironmentProblem` on every rank: the checkpoint cannot be written.

    Parameters
    ----------
    grid : ProcessGrid
        The surviving ranks.
    hook : CheckpointHook or None
        Of the attempt that lost a rank, if it had begun to train.
    folder : Path
        Run folder.
    """
    checkpoints = checkpoint_folders(folder / CHECKPOINTS)
    newest = step_of(checkpoints[0]) if checkpoints else 0
    progress = _progress(hook)
    # The maximum is that of the first rank with the latest step.
    priority = -1 if progress is None else progress.step * grid.size + grid.size - 1 - grid.rank
    highest = np.array([priority], np.int64)
    grid.world.allreduce(highest, "max")

    def write() -> None:
        if hook is not None and progress is not None and priority == highest[0] and progress.step > newest:
            complete_history(folder, hook.trainer.history, progress)
            hook.new_writer(grid=ProcessGrid(import_mpi().COMM_SELF)).write(progress)

    agree(grid.world, write)


def _progress(hook: CheckpointHook | None) -> Progress | None:
    """Progress of this rank if its weights are those between two steps, else None."""
    if hook is None or hook.reached is None or hook.reached.step != hook.trainer.step:
        return None
    return hook.reached.progress()


def complete_history(folder: Path, in_memory: History, progress: Progress) -> None:
    """Add the records up to `progress` that are missing in the history; its damaged or incomplete end is removed.

    `in_memory` are all records, which every rank holds.
    """
    written, _ = read_records(folder)
    written_keys = set(map(_key, written))
    ends = {record.epoch: record.step for record in in_memory.epochs if record.epoch < progress.epoch}
    records: list[tuple[int, Record]] = [
        *((record.step, record) for record in in_memory.steps if record.step <= progress.step),
        *((record.step, record) for record in in_memory.evaluations if record.step <= progress.step),
        *((ends[record.epoch], record) for record in in_memory.measured if record.epoch in ends),
        *((record.step, record) for record in in_memory.epochs if record.epoch in ends),
    ]
    missing = [record for _, record in sorted(records, key=itemgetter(0)) if _key(record) not in written_keys]
    write_atomically(folder / HISTORY, "".join(map(to_line, written + missing)))


def _key(record: Record) -> tuple[Any, ...]:
    """Identity of a step, evaluation, epoch or measured step among the records of a history."""
    return record.kind, getattr(record, "epoch", None), getattr(record, "step", None)
