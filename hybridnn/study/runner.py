"""Runs the cells of a study that are missing, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Literal, Protocol

from hybridnn.errors import INTERRUPTED, SettingError, StoppedBySignal
from hybridnn.runs.lock import FolderInUse
from hybridnn.study.cells import Cell, CellPlan, make_cells
from hybridnn.study.launch import ProcessOutcome, RunLauncher, last_words, run_process, thread_words, train_command
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import SETTINGS, Failure, StudyFolder

Command = Callable[[Path, Path], list[str]]
WILDCARDS = "*?["


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell.

    Attributes
    ----------
    cell : Cell
    fate : {"finished", "failed", "timed out", "interrupted", "held"}
        As in `CellState`, or ``"held"``: another process is running it.
    seconds : float
        From start to end; 0 if it was not run.
    reason : str
        Why it did not finish, or which process holds it.
    """

    cell: Cell
    fate: Literal["finished", "failed", "timed out", "interrupted", "held"]
    seconds: float = 0.0
    reason: str = ""


class StudyView(Protocol):
    """Told how a study goes."""

    def on_start(self, cells: int) -> None:
        """So many cells are missing."""

    def on_cell_start(self, cell: Cell) -> None:
        """A cell begins."""

    def on_cell_end(self, outcome: CellOutcome) -> None:
        """A cell has ended, or another process has it."""


@dataclass(frozen=True)
class StudyRun:
    """A study with everything settled that `run_study` needs.

    Attributes
    ----------
    study : Study
    plan : CellPlan
    chosen : tuple of Cell
        The cells to run, unless they are finished.
    folder : StudyFolder
    launcher : RunLauncher
    """

    study: Study
    plan: CellPlan
    chosen: tuple[Cell, ...]
    folder: StudyFolder
    launcher: RunLauncher

    def command(self, cell: Cell, train: Command = train_command) -> list[str]:
        """Return the command that runs a cell, or goes on with it where the study resumes cells."""
        folder = self.folder.cell(cell.id)
        resume = ["--resume", "auto"] if self.resumes else []
        program = [*thread_words(self.study.threads), *train(folder / SETTINGS, folder), *resume]
        return self.launcher.command(cell.ranks, program)

    @property
    def resumes(self) -> bool:
        """Whether an interrupted cell goes on from its newest checkpoint."""
        return self.study.interrupted == "resume"


def plan_study(
    study: Study, folder: Path, launcher: str | None = None, only: str | None = None, cell: int | None = None
) -> StudyRun:
    """Settle what is to run, and check everything that can be checked without running.

    Parameters
    ----------
    study : Study
    folder : Path
        Of the study; need not exist.
    launcher : str, optional
        A command, with ``{ranks}`` for the number of ranks; by default the launcher of this environment.
    only : str, optional
        Keep the cells whose id matches this pattern, or contains it if it has no wildcard.
    cell : int, optional
        Keep only the cell of this number, from 0.

    Raises
    ------
    SettingError
        If no cell can run or matches, the folder holds something else, or the launcher does not say the ranks.
    EnvironmentProblem
        If the launcher is not there.
    """
    plan = make_cells(study)
    chosen = plan.cells if cell is None else (_numbered(plan.cells, cell),)
    chosen = chosen if only is None else _matching(chosen, only)
    cells = StudyFolder(folder)
    cells.check(study, plan)
    return StudyRun(study, plan, chosen, cells, RunLauncher.of(launcher, max(cell.ranks for cell in chosen)))


def run_study(
    run: StudyRun, view: StudyView, *, limit: float | None = None, train: Command = train_command
) -> list[CellOutcome]:
    """Run the chosen cells that are not finished; a failed one does not stop the others.

    Parameters
    ----------
    run : StudyRun
    view : StudyView
        Told of the progress.
    limit : float, optional
        Seconds after which a cell is ended and counts as failed.
    train : callable
        ``train(settings_file, folder)`` returns the words of the training command.

    Returns
    -------
    list of CellOutcome
        Of the cells that were not finished before. After the warning before the time limit of a batch job (SIGUSR1)
        the last of them is the cell that was ended.

    Raises
    ------
    EnvironmentProblem
        If the folder cannot be written or the launcher cannot be started.
    StoppedBySignal
        After that warning, where the cell, or the next one, goes on when the study is run again.
    KeyboardInterrupt
        After SIGINT or SIGTERM, when the running cell has been ended.
    """
    run.folder.begin(run.study, run.plan)
    missing = [cell for cell in run.chosen if not run.folder.is_finished(cell.id)]
    view.on_start(len(missing))
    outcomes = []
    for cell in missing:
        view.on_cell_start(cell)
        outcome, warned = _run_cell(run, cell, limit, train)
        outcomes.append(outcome)
        view.on_cell_end(outcome)
        if warned and outcome.fate != "finished" and not run.resumes:
            break
        if warned and (outcome.fate != "finished" or cell is not missing[-1]):
            words = outcome.reason or "finished before the time limit of its job"
            raise StoppedBySignal(f"cell {cell.id}: {words}; run the study again to go on")
    return outcomes


def _run_cell(run: StudyRun, cell: Cell, limit: float | None, train: Command) -> tuple[CellOutcome, bool]:
    """Run a cell unless another process does; what became of it, and whether it was ended by a warning."""
    try:
        lock = run.folder.holding(cell.id)
    except FolderInUse as busy:
        return CellOutcome(cell, "held", reason=f"{busy.holder} is running it"), False
    with lock:
        if run.folder.is_finished(cell.id):  # by another process, since this one looked
            return CellOutcome(cell, "finished"), False
        folder = run.folder.cell(cell.id)
        run.folder.prepare(cell, resume=run.resumes)
        start = perf_counter()
        try:
            ended = run_process(run.command(cell, train), folder, limit, lock.descriptor, checkpoint=run.resumes)
        except KeyboardInterrupt as stop:
            run.folder.fail(cell.id, "interrupted", f"ended by {stop.args[0] if stop.args else 'SIGINT'}")
            raise
        seconds = perf_counter() - start
        warned = ended.ended_by == "warning"
        if ended.code == 0 and run.folder.is_finished(cell.id):
            return CellOutcome(cell, "finished", seconds), warned
        fate, how = _fate(ended, limit)
        reason = f"{how}: {last_words(folder)}"
        run.folder.fail(cell.id, fate, reason)
        return CellOutcome(cell, fate, seconds, reason), warned


def _fate(ended: ProcessOutcome, limit: float | None) -> tuple[Failure, str]:
    """What became of a cell that did not finish, and how it ended."""
    if ended.ended_by == "limit":
        return "timed out", f"ended after the limit of {limit:g} s"
    if ended.ended_by == "warning":
        return "timed out", "ended by SIGUSR1, before the time limit of its job"
    interrupted = ended.code in (StoppedBySignal.exit_code, INTERRUPTED)
    kind: Failure = "interrupted" if interrupted else "failed"
    return kind, f"exit code {ended.code}"


def _numbered(cells: Sequence[Cell], number: int) -> Cell:
    if not 0 <= number < len(cells):
        raise SettingError("--cell", number, f"must be 0 to {len(cells) - 1}")
    return cells[number]


def _matching(cells: Sequence[Cell], pattern: str) -> tuple[Cell, ...]:
    wild = pattern if any(mark in pattern for mark in WILDCARDS) else f"*{pattern}*"
    found = tuple(cell for cell in cells if fnmatchcase(cell.id, wild))
    if not found:
        raise SettingError("--only", pattern, f"matches no cell; the first of {len(cells)} is {cells[0].id}")
    return found


def default_folder(study: Study) -> Path:
    """Where a study runs unless told otherwise; the reduced study has a folder of its own."""
    return Path("runs") / "studies" / (study.name + "-reduced" * study.reduced)
