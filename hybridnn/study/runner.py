"""Runs the cells of a study that are missing, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Literal, Protocol

from hybridnn.errors import SettingError
from hybridnn.study.cells import Cell, CellPlan, make_cells
from hybridnn.study.launch import Launcher, last_words, run_process, train_command
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import SETTINGS, StudyFolder

__all__ = ["CellOutcome", "StudyRun", "StudyView", "default_folder", "plan_study", "run_study"]

Command = Callable[[Path, Path], list[str]]
WILDCARDS = "*?["


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell.

    Attributes
    ----------
    cell : Cell
    fate : {"finished", "failed", "held"}
        ``held``: another process is running it.
    seconds : float
        From start to end; 0 if it was not run.
    reason : str
        Why it failed, or who holds it.
    """

    cell: Cell
    fate: Literal["finished", "failed", "held"]
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
    launcher : Launcher
    """

    study: Study
    plan: CellPlan
    chosen: tuple[Cell, ...]
    folder: StudyFolder
    launcher: Launcher

    def command(self, cell: Cell, train: Command = train_command) -> list[str]:
        """Return the command that runs a cell."""
        folder = self.folder.cell(cell.id)
        return self.launcher.command(cell.ranks, train(folder / SETTINGS, folder))


def plan_study(study: Study, folder: Path, launcher: str, only: str | None = None, cell: int | None = None) -> StudyRun:
    """Settle what is to run, and check everything that can be checked without running.

    Parameters
    ----------
    study : Study
    folder : Path
        Of the study; need not exist.
    launcher : str
        A command, with ``{ranks}`` for the number of ranks.
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
    return StudyRun(study, plan, chosen, cells, Launcher.of(launcher, max(cell.ranks for cell in chosen)))


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
        Of the cells that were not finished before.

    Raises
    ------
    EnvironmentProblem
        If the folder cannot be written or the launcher cannot be started.
    """
    run.folder.begin(run.study, run.plan)
    missing = [cell for cell in run.chosen if run.folder.status(cell.id) != "finished"]
    view.on_start(len(missing))
    outcomes = []
    for cell in missing:
        view.on_cell_start(cell)
        outcomes.append(_run_cell(run, cell, limit, train))
        view.on_cell_end(outcomes[-1])
    return outcomes


def _run_cell(run: StudyRun, cell: Cell, limit: float | None, train: Command) -> CellOutcome:
    with run.folder.holding(cell.id) as lock:
        if lock is None:
            return CellOutcome(cell, "held", reason=f"{run.folder.holder(cell.id)} is running it")
        if run.folder.status(cell.id) == "finished":  # by another process, since this one looked
            return CellOutcome(cell, "finished")
        run.folder.prepare(cell)
        start = perf_counter()
        ended = run_process(run.command(cell, train), run.folder.cell(cell.id), limit, lock.fileno())
        seconds = perf_counter() - start
        if ended.code == 0 and not ended.timed_out and run.folder.status(cell.id) == "finished":
            return CellOutcome(cell, "finished", seconds)
        words = last_words(run.folder.cell(cell.id))
        how = f"ended after the limit of {limit:g} s" if ended.timed_out and limit else f"exit code {ended.code}"
        run.folder.fail(cell.id, f"{how}: {words}")
        return CellOutcome(cell, "failed", seconds, f"{how}: {words}")


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
