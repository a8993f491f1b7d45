"""Training that outlives the loss of a rank, where the MPI library does; see ``hybridnn/comm/survivors.py``.

Every rank of a grid with the batch axis alone holds all weights and the whole state of the optimizer. The ranks that
are left start the run again on a smaller grid, from the newest checkpoint, or from what one of them holds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.comm.agreement import broadcast_text
from hybridnn.comm.failsafe import end_job
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.mpi import running_ranks
from hybridnn.comm.stalls.ranks_text import name_ranks
from hybridnn.comm.survivors import Survivors, tolerates_losses
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.training import run
from hybridnn.training.auto_layout import settle_layout
from hybridnn.training.checkpoints.folder import checkpoint_folders
from hybridnn.training.history_file import run_status
from hybridnn.training.rescue import rescue
from hybridnn.training.run_folder import CHECKPOINTS, Start
from hybridnn.training.settings import Settings
from hybridnn.training.underway import Underway, how_to_go_on

if TYPE_CHECKING:
    from hybridnn.training.run_report import RunView

__all__ = ["Ended", "Loss", "train_on_survivors"]

LOST = 1
"""Set in what the ranks tell one another after a try if one of them noticed a loss; the bits above are exit codes."""

EXIT_CODE = 1
"""How far to the left."""

FAILED = 1
"""Exit code of a run that has to be started again."""

NEEDED = "to go on without takes a grid of the batch axis alone, on one node"

RESTART_FACTOR = 10
"""To start again may take so many times as long as an instruction: data are read."""

ViewOf = Callable[["Loss | None"], "AbstractContextManager[RunView]"]


@dataclass(frozen=True)
class Loss:
    """What happened.

    Attributes
    ----------
    lost : tuple of int
        Ranks that are gone, as the launcher numbered them.
    left : int
        Ranks that go on.
    speaks : bool
        Whether this rank is the first of them.
    """

    lost: tuple[int, ...]
    left: int
    speaks: bool


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes
    ----------
    loss : Loss or None
        The last one: after it, MPI cannot be ended properly, and every process is to end by `leave_job`.
    exit_code : int
    error : HybridnnError or None
        What ended the run after the loss, where this rank knows.
    """

    loss: Loss | None = None
    exit_code: int = 0
    error: HybridnnError | None = None


def train_on_survivors(settings: Settings, view_of: ViewOf, start: Start = "new", *, forced: bool = False) -> Ended:
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
        return Ended()
    ranks = Survivors.of_job()
    run.require_same_run(settings, start, forced=forced)
    settings = settle_layout(settings)
    tries = _Tries(settings, view_of, ranks, start, forced=forced)
    while (ended := tries.train()) is None:
        pass
    return ended


class _Tries:
    """A run that is tried again after each loss."""

    def __init__(self, settings: Settings, view_of: ViewOf, ranks: Survivors, start: Start, *, forced: bool) -> None:
        self._settings, self._view_of, self._ranks = settings, view_of, ranks
        self._start, self._forced = start, forced
        parallel = settings.parallel
        self._is_replicated = parallel.pipeline == 1 and parallel.model == 1 and not parallel.stages
        self._is_on_one_node = ranks.on_one_node
        self._everyone = ranks.names
        self._loss: Loss | None = None
        self._underway = Underway()
        self._interrupted: list[BaseException] = []

    def train(self) -> Ended | None:
        """Train to the end; None if a rank was lost and the others are to try again."""
        error, word = self._try()
        if not self._is_on_one_node:  # where those that are left may never agree
            told: int | None = word
            self._loss = Loss((), 0, speaks=True) if word == LOST else None
        else:
            with self._at_most(self._settings.output.stall_seconds, "did not find together"):
                told = self._ranks.unite(word)
                if told is None or told & LOST:
                    self._shrink()
        if told == 0:
            return Ended(self._loss)
        code = (told or 0) >> EXIT_CODE
        if code and self._loss is None:
            assert error is not None
            raise error
        if code:
            return Ended(self._loss, code, error)
        if not (self._is_replicated and self._is_on_one_node):
            return Ended(self._loss, FAILED, EnvironmentProblem(self._reason(f"was lost, and {NEEDED}")))
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
            self._underway = Underway(self._ranks.comm, outlives_losses=True, on_begin=stop_clock)
            run.run_training(self._settings, view, start=self._start, forced=self._forced, underway=self._underway)

    def _shrink(self) -> None:
        """Leave the lost ranks behind."""
        if self._underway.writer is not None:
            self._underway.writer.settle()
        self._ranks = self._ranks.shrink()
        left = self._ranks.names
        self._loss = Loss(tuple(sorted(self._everyone - left)), len(left), self._ranks.rank == 0)

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
        return f"{gone} {what}. {how_to_go_on(self._underway.folder)}"

    def _end(self, what: str) -> None:
        end_job(f"\nError: {self._reason(what)}\n")
