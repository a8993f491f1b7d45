"""Study runner: runs the missing cells of a study, one after the other."""

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
from hybridnn.study.launch import ProcessOutcome, RunLauncher, error_line, run_process, thread_settings, train_command
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import SETTINGS, Failure, StudyFolder

Command = Callable[[Path, Path], list[str]]
WILDCARDS = "*?["


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of running a cell.

    Attributes
    ----------
    status : {"finished", "failed", "timed out", "interrupted", "held"}
        As in `CellState`, or ``"held"``: another process is running it.
    seconds : float
        From start to end; 0 if it was not run.
    reason : str
        Why it did not finish, or which process holds it.
    """

    cell: Cell
    status: Literal["finished", "failed", "timed out", "interrupted", "held"]
    seconds: float = 0.0
    reason: str = ""


class StudyView(Protocol):
    """Callbacks of `run_study`."""

    def on_start(self, cells: int) -> None:
        """Called first, with the number of missing cells."""

    def on_cell_start(self, cell: Cell) -> None:
        """Called before a cell."""

    def on_cell_end(self, outcome: CellOutcome) -> None:
        """Called when a cell has ended or is held by another process."""


@dataclass(frozen=True)
class StudyRun:
    """A checked study, ready for `run_study`; `chosen` are the cells to run, unless they are finished."""

    study: Study
    plan: CellPlan
    chosen: tuple[Cell, ...]
    folder: StudyFolder
    launcher: RunLauncher

    def command(self, cell: Cell, train: Command = train_command) -> list[str]:
        """Return the command that runs a cell, or resumes it where the study resumes cells."""
        folder = self.folder.cell(cell.id)
        resume = ["--resume", "auto"] if self.resumes else []
        program = [*thread_settings(self.study.threads), *train(folder / SETTINGS, folder), *resume]
        return self.launcher.command(cell.ranks, program)

    @property
    def resumes(self) -> bool:
        """Whether an interrupted cell resumes from its newest checkpoint."""
        return self.study.interrupted == "resume"


def plan_study(
    study: Study, folder: Path, launcher: str | None = None, only: str | None = None, cell: int | None = None
) -> StudyRun:
    """Choose the cells to run, and check everything that can be checked without running.

    Parameters
    ----------
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
        If no cell can run or matches, the folder has another study, or the launcher lacks ``{ranks}``.
    EnvironmentProblem
        If the launcher is not found.
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
    limit : float, optional
        Seconds after which a cell is ended and counts as failed.
    train : callable
        ``train(settings_file, folder)`` returns the training command.

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
        After that warning, if the next run of the study resumes the cell or continues with the next one.
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
        if warned and outcome.status != "finished" and not run.resumes:
            break
        if warned and (outcome.status != "finished" or cell is not missing[-1]):
            reason = outcome.reason or "finished before the time limit of its job"
            raise StoppedBySignal(f"cell {cell.id}: {reason}; run the study again to go on")
    return outcomes


def _run_cell(run: StudyRun, cell: Cell, limit: float | None, train: Command) -> tuple[CellOutcome, bool]:
    """Run a cell unless another process does; returns its outcome, and whether a warning (SIGUSR1) came."""
    try:
        lock = run.folder.lock(cell.id)
    except FolderInUse as busy:
        return CellOutcome(cell, "held", reason=f"{busy.holder} is running it"), False
    with lock:
        if run.folder.is_finished(cell.id):  # by another process in the meantime
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
        status, cause = _failure(ended, limit)
        reason = f"{cause}: {error_line(folder)}"
        run.folder.fail(cell.id, status, reason)
        return CellOutcome(cell, status, seconds, reason), warned


def _failure(ended: ProcessOutcome, limit: float | None) -> tuple[Failure, str]:
    """Status of a cell that did not finish, and the cause."""
    if ended.ended_by == "limit":
        return "timed out", f"ended after the limit of {limit:g} s"
    if ended.ended_by == "warning":
        return "timed out", "ended by SIGUSR1, before the time limit of its job"
    is_interrupted = ended.code in (StoppedBySignal.exit_code, INTERRUPTED)
    return "interrupted" if is_interrupted else "failed", f"exit code {ended.code}"


def _numbered(cells: Sequence[Cell], number: int) -> Cell:
    if not 0 <= number < len(cells):
        raise SettingError("--cell", number, f"must be 0 to {len(cells) - 1}")
    return cells[number]


def _matching(cells: Sequence[Cell], pattern: str) -> tuple[Cell, ...]:
    glob = pattern if any(wildcard in pattern for wildcard in WILDCARDS) else f"*{pattern}*"
    found = tuple(cell for cell in cells if fnmatchcase(cell.id, glob))
    if not found:
        raise SettingError("--only", pattern, f"matches no cell; the first of {len(cells)} is {cells[0].id}")
    return found


def default_folder(study: Study) -> Path:
    """Default folder of a study; the reduced study has a folder of its own."""
    return Path("runs") / "studies" / (study.name + "-reduced" * study.reduced)
