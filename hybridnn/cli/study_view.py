"""What a user sees of a study: its cells before, progress while they run, and what became of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from hybridnn.cli.output import make_console, print_json
from hybridnn.study.cells import Cell
from hybridnn.study.report.results import StudyResults
from hybridnn.study.report.scaling import warnings_of
from hybridnn.study.report.tables import THREADS, point_facts, point_rows
from hybridnn.study.runner import CellOutcome, StudyRun
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import FAILURES
from hybridnn.study.submit import Submission
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def print_studies(studies: Mapping[Path, Study]) -> None:
    """Print the name, description and file of each study."""
    console = make_console(sys.stdout)
    for path, study in studies.items():
        console.print(f"{study.name}\n  {study.description}\n  {path}", soft_wrap=True)


def print_plan(run: StudyRun) -> None:
    """Print every chosen cell with its number, status and command, and what is skipped and why."""
    console = make_console(sys.stdout)
    numbers = {cell.id: number for number, cell in enumerate(run.plan.cells)}
    for cell in run.chosen:
        console.print(f"{numbers[cell.id]:>4}  {run.folder.status(cell.id):<11}  {cell.id}", soft_wrap=True)
        console.print(f"                {shlex.join(run.command(cell))}", soft_wrap=True)
    for skipped in run.plan.skipped:
        console.print(f"      skipped   {skipped.id}\n                {skipped.reason}", soft_wrap=True)
    console.print(f"{len(run.chosen)} cells, {len(run.plan.skipped)} skipped, in {run.folder.path}", soft_wrap=True)


def print_submission(submission: Submission) -> None:
    """Print the batch script and the commands that would submit it."""
    console = make_console(sys.stdout)
    if not submission.arrays:
        state = "finished or queued" if submission.queued else "finished"
        console.print(f"all {len(submission.plan.cells)} cells are {state}: nothing to submit")
        _print_queued(submission)
        return
    console.print(submission.script, soft_wrap=True)
    commands = [submission.array_command(array) for array in submission.arrays]
    for command in [*commands, submission.report_command(["JOB"] * len(commands))]:
        console.print(f"$ {shlex.join(command)}", soft_wrap=True)


def _print_queued(submission: Submission) -> None:
    """Print which cells earlier submissions have in the queue."""
    console = make_console(sys.stdout)
    for job in dict.fromkeys(submission.queued.values()):
        count = sum(other == job for other in submission.queued.values())
        console.print(f"job {job}: {counted(count, 'cell')} of an earlier submission", soft_wrap=True)


def print_submitted(submission: Submission, jobs: Sequence[str], report: str) -> None:
    """Print the number of each job and what it does."""
    console = make_console(sys.stdout)
    _print_queued(submission)
    for job, array in zip(jobs, submission.arrays, strict=True):
        cells = counted(len(array.cells), "cell")
        console.print(f"job {job}: {cells} on {counted(array.ranks, 'rank')}", soft_wrap=True)
    console.print(f"job {report}: the report, when they have ended", soft_wrap=True)
    console.print(f"script and output in {submission.place}", soft_wrap=True)


def print_report(results: StudyResults, files: Sequence[Path], *, as_json: bool) -> None:
    """Print the table of points, warnings, the cells that are not finished with the reasons, and the report's files."""
    manifest = results.manifest
    if as_json:
        about = {"study": manifest.name, "reduced": manifest.reduced, "finished_cells": len(results.cells)}
        unfinished = [{"id": cell.id, **asdict(cell.state)} for cell in results.unfinished]
        facts = {"unfinished": unfinished, "warnings": warnings_of(results), "points": point_facts(results)}
        print_json({**about, **facts, "files": [str(path) for path in files]})
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = make_console(sys.stdout)
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    titles, rows = point_rows(results)
    threads = {row[titles.index(THREADS)] for row in rows}
    if len(threads) == 1:  # a line in place of a column
        place = titles.index(THREADS)
        titles, rows = [*titles[:place], *titles[place + 1 :]], [[*row[:place], *row[place + 1 :]] for row in rows]
    for title in titles:
        table.add_column(title.replace(" ", "\n"), justify="right", vertical="bottom", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if len(threads) == 1:
        console.print(f"BLAS {THREADS}: {threads.pop()}")
    for warning in warnings_of(results):
        console.print(f"warning: {warning}", soft_wrap=True)
    if results.unfinished:
        counts = results.unfinished_counts
        console.print(f"{len(results.unfinished)} of {len(manifest.cells)} cells are not finished: {counts}")
        for cell in results.unfinished:
            console.print(f"  {cell.state.status:<11}  {cell.text}", soft_wrap=True)
    for path in files:
        console.print(str(path), soft_wrap=True)


class StudyProgress:
    """Callbacks of a study: a progress bar on a terminal, else a line for each cell.

    Parameters
    ----------
    run : StudyRun
        What is about to run.
    """

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._console = make_console(sys.stdout)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._cells = self._done = 0
        self._start = monotonic()

    def __enter__(self) -> StudyProgress:
        """Return the view itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the terminal back, whatever happened."""
        self._stop()

    def on_start(self, cells: int) -> None:
        """Say how much there is to do, and start the bar."""
        self._cells = cells
        chosen, skipped = len(self._run.chosen), len(self._run.plan.skipped)
        self._print(f"{cells} of {chosen} cells to run, {skipped} skipped as impossible, in {self._run.folder.path}")
        if cells and self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            # The rate of all cells so far: they differ too much for a window of the last seconds.
            remaining = TimeRemainingColumn(elapsed_when_finished=True)
            columns = TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), remaining
            self._progress = Progress(*columns, console=self._console, refresh_per_second=2, speed_estimate_period=1e9)
            self._task = self._progress.add_task("", total=cells)
            self._progress.start()

    def on_cell_start(self, cell: Cell) -> None:
        """Name the cell in the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=cell.id)

    def on_cell_end(self, outcome: CellOutcome) -> None:
        """Advance, and say what became of the cell."""
        self._done += 1
        reason = f": {outcome.reason}" if outcome.reason else ""
        left = (monotonic() - self._start) / self._done * (self._cells - self._done)
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
            if outcome.fate != "finished":
                self._print(f"{outcome.fate}  {outcome.cell.id}{reason}")
        else:
            place = f"[{self._done}/{self._cells}]"
            self._print(f"{place} {outcome.fate} {outcome.cell.id} {outcome.seconds:.1f} s, {left:.0f} s left{reason}")

    def summarize(self, outcomes: Sequence[CellOutcome]) -> None:
        """Print how many cells are finished or held by others, and those that did not end well, with their folders."""
        self._stop()
        folder = self._run.folder
        finished = sum(folder.is_finished(cell.id) for cell in self._run.chosen)
        self._print(f"{finished} of {len(self._run.chosen)} cells are finished")
        for outcome in outcomes:
            if outcome.fate in FAILURES:
                self._print(f"{outcome.fate}: {folder.cell(outcome.cell.id)}\n  {outcome.reason}")
        if held := sum(outcome.fate == "held" for outcome in outcomes):
            self._print(f"{held} cells are being run by another process")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
