"""Output of studies: their cells and submissions, progress, outcomes, and the report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hybridnn.cli.output import make_console, new_table
from hybridnn.study.cells import Cell
from hybridnn.study.report_files import THREADS, point_facts, point_rows
from hybridnn.study.results import StudyResults, warnings_of
from hybridnn.study.runner import CellOutcome, StudyRun
from hybridnn.study.study_file import Study
from hybridnn.study.study_folder import FAILURES
from hybridnn.study.submit import Submission
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def print_studies(studies: Mapping[Path, Study]) -> None:
    """Print the name, description and file of each study."""
    console = make_console()
    for path, study in studies.items():
        console.print(f"{study.name}\n  {study.description}\n  {path}", soft_wrap=True)


def print_plan(run: StudyRun) -> None:
    """Print every chosen cell with its number, status and command, and the skipped combinations with their reasons."""
    console = make_console()
    numbers = {cell.id: number for number, cell in enumerate(run.plan.cells)}
    for cell in run.chosen:
        console.print(f"{numbers[cell.id]:>4}  {run.folder.state(cell.id).status:<11}  {cell.id}", soft_wrap=True)
        console.print(f"                {shlex.join(run.command(cell))}", soft_wrap=True)
    for skipped in run.plan.skipped:
        console.print(f"      skipped   {skipped.id}\n                {skipped.reason}", soft_wrap=True)
    console.print(f"{len(run.chosen)} cells, {len(run.plan.skipped)} skipped, in {run.folder.path}", soft_wrap=True)


def print_submission(submission: Submission) -> None:
    """Print the batch script and the commands that would submit it."""
    console = make_console()
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
    """Print the number of queued cells of each earlier submission."""
    console = make_console()
    for job in dict.fromkeys(submission.queued.values()):
        count = sum(queued == job for queued in submission.queued.values())
        console.print(f"job {job}: {counted(count, 'cell')} of an earlier submission", soft_wrap=True)


def print_submitted(submission: Submission, jobs: Sequence[str], report: str) -> None:
    """Print the number and purpose of each job."""
    console = make_console()
    _print_queued(submission)
    for job, array in zip(jobs, submission.arrays, strict=True):
        cells = counted(len(array.cells), "cell")
        console.print(f"job {job}: {cells} on {counted(array.ranks, 'rank')}", soft_wrap=True)
    console.print(f"job {report}: the report, when they have ended", soft_wrap=True)
    console.print(f"script and output in {submission.job_folder}", soft_wrap=True)


def report_facts(results: StudyResults, files: Sequence[Path]) -> dict[str, Any]:
    """The points, warnings and unfinished cells of a study, and the files of its report."""
    return {
        "study": results.manifest.name,
        "reduced": results.manifest.reduced,
        "finished_cells": len(results.cells),
        "unfinished": [{"id": cell.id, **asdict(cell.state)} for cell in results.unfinished],
        "warnings": warnings_of(results),
        "points": point_facts(results),
        "files": [str(path) for path in files],
    }


def print_report(results: StudyResults, files: Sequence[Path]) -> None:
    """Print the table of points, warnings, the unfinished cells with their reasons, and the files of the report."""
    console = make_console()
    rows = point_rows(results)
    threads = {row[THREADS] for row in rows}
    if len(threads) == 1:  # a line in place of a column
        rows = [{title: text for title, text in row.items() if title != THREADS} for row in rows]
    titles = [title.replace(" ", "\n") for title in rows[0]]
    cells = (tuple(row.values()) for row in rows)
    console.print(new_table((), titles, cells, wraps=True, show_edge=False))
    if len(threads) == 1:
        console.print(f"BLAS {THREADS}: {threads.pop()}")
    for warning in warnings_of(results):
        console.print(f"warning: {warning}", soft_wrap=True)
    if results.unfinished:
        counts = results.unfinished_counts
        console.print(f"{len(results.unfinished)} of {len(results.manifest.cells)} cells are not finished: {counts}")
        for cell in results.unfinished:
            console.print(f"  {cell.state.status:<11}  {cell.text}", soft_wrap=True)
    for path in files:
        console.print(str(path), soft_wrap=True)


class StudyProgress:
    """Callbacks of a study: a progress bar on a terminal, else a line for each cell."""

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._console = make_console()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._cells = self._done = 0
        self._start = monotonic()

    def __enter__(self) -> StudyProgress:
        """Return the view itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Remove the progress bar, after errors too."""
        self._stop()

    def on_start(self, cells: int) -> None:
        """Print the number of cells to run, and start the bar."""
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
        """Show the cell in the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=cell.id)

    def on_cell_end(self, outcome: CellOutcome) -> None:
        """Advance, and print the outcome of the cell."""
        self._done += 1
        reason = f": {outcome.reason}" if outcome.reason else ""
        left = (monotonic() - self._start) / self._done * (self._cells - self._done)
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
            if outcome.status != "finished":
                self._print(f"{outcome.status}  {outcome.cell.id}{reason}")
        else:
            time = f"{outcome.seconds:.1f} s, {left:.0f} s left"
            self._print(f"[{self._done}/{self._cells}] {outcome.status} {outcome.cell.id} {time}{reason}")

    def summarize(self, outcomes: Sequence[CellOutcome]) -> None:
        """Print the numbers of finished and held cells, and the failed cells with their folders."""
        self._stop()
        folder = self._run.folder
        finished = sum(folder.is_finished(cell.id) for cell in self._run.chosen)
        self._print(f"{finished} of {len(self._run.chosen)} cells are finished")
        for outcome in outcomes:
            if outcome.status in FAILURES:
                self._print(f"{outcome.status}: {folder.cell(outcome.cell.id)}\n  {outcome.reason}")
        if held := sum(outcome.status == "held" for outcome in outcomes):
            self._print(f"{held} cells are being run by another process")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
