"""Output of a study that runs: a progress bar or a line for each cell, and what became of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from hybridnn.cli.output import make_console
from hybridnn.diagnostics.hosts import MOST_DISTURBANCE, busy_text
from hybridnn.runs.records import crowding_text
from hybridnn.study.cells import Cell
from hybridnn.study.runner import MOST_REPEATS, CellOutcome, StudyRun, StudyView
from hybridnn.study.study_folder import FAILURES
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from rich.progress import Progress


class StudyProgress(StudyView):
    """Shows how far a study is: a progress bar on a terminal, else a line for each cell."""

    def __init__(self, run: StudyRun, *, on_this_node: bool) -> None:
        self._run, self._on_this_node = run, on_this_node
        self._console = make_console()
        self._progress: Progress | None = None
        self._cells = self._done = 0
        self._start = monotonic()

    def on_start(self, cells: int) -> None:
        """Print the number of cells to run, and start the bar."""
        self._cells = cells
        self._print(f"{cells} of {len(self._run.chosen)} cells to run, in {self._run.folder.path}")
        for line in self._run.plan.left_out:
            self._print(line)
        if cells and self._on_this_node:
            here = [cell for cell in self._run.chosen if cell.placement.nodes in (None, 1)]
            most = max(here, key=lambda cell: cell.ranks * cell.placement.threads, default=None)
            cores = os.cpu_count() or 1
            if most is not None:
                threads = most.ranks * most.placement.threads
                if threads > cores:
                    self._print(f"warning: {crowding_text(most.ranks, most.placement.threads, cores)}")
                free = max(0, cores - threads)
                words = f"the {counted(free, 'core')} that {counted(threads, 'thread')} of a run leave free"
                if busy := busy_text(os.getloadavg()[0], free + MOST_DISTURBANCE * threads, words):
                    self._print(f"warning: {busy}: times will be disturbed")
        if cells and self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            # The rate of all cells so far: they differ too much for a window of the last seconds.
            remaining = TimeRemainingColumn(elapsed_when_finished=True)
            columns = TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), remaining
            self._progress = Progress(*columns, console=self._console, refresh_per_second=2, speed_estimate_period=1e9)
            self._progress.add_task("", total=cells)
            self._progress.start()

    def on_cell_start(self, cell: Cell) -> None:
        """Show the cell in the bar."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=cell.id)

    def on_repeat(self, outcome: CellOutcome, number: int) -> None:
        """Print that the cell is repeated, and why."""
        took = f"disturbed (others took {outcome.disturbance:.0%})"
        self._print(f"{outcome.cell.id}: {took}, repeat {number} of {MOST_REPEATS}")

    def on_cell_end(self, outcome: CellOutcome) -> None:
        """Advance, and print the outcome of the cell."""
        self._done += 1
        reason = f": {outcome.reason}" if outcome.reason else ""
        left = (monotonic() - self._start) / self._done * (self._cells - self._done)
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])
            if outcome.status != "finished" or outcome.disturbance:
                self._print(f"{outcome.status}  {outcome.cell.id}{reason}")
        else:
            time = f"{outcome.seconds:.1f} s, {left:.0f} s left"
            self._print(f"[{self._done}/{self._cells}] {outcome.status} {outcome.cell.id} {time}{reason}")

    def summarize(self, outcomes: Sequence[CellOutcome]) -> None:
        """Print the numbers of finished and held cells, and the failed cells with their folders."""
        self.close()
        folder = self._run.folder
        states = [folder.state(cell.id).status for cell in self._run.chosen]
        finished, diverged = states.count("finished"), states.count("diverged")
        text = f"{finished + diverged} of {len(states)} cells are finished"
        text += f", {diverged} of them diverged" if diverged else ""
        if finished + diverged == len(self._run.plan.cells):
            text += f"; {shlex.join(['hybridnn', 'study', 'report', str(folder.path)])} writes the report"
        self._print(text)
        for outcome in outcomes:
            if outcome.status in FAILURES:
                self._print(f"{outcome.status}: {folder.cell(outcome.cell.id)}\n  {outcome.reason}")
        if held := sum(found.status == "held" and not folder.has_ended(found.cell.id) for found in outcomes):
            self._print(f"another process runs {counted(held, 'cell')}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Remove the progress bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
