"""What a user sees of a run: header, progress, final table, or one JSON object."""

from __future__ import annotations

import sys
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from hybridnn.cli.output import make_console, print_json
from hybridnn.cli.train_tables import RunTotals, epoch_line, epoch_table, header_table, summary_table
from hybridnn.training.records import EpochRecord, RunHeader, RunSummary, StepRecord

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hybridnn.runs.resume import Resumed


class TrainView:
    """Callbacks of a run; the trainer calls them on rank 0 only.

    Parameters
    ----------
    as_json : bool
        Print one JSON object at the end and nothing else.
    quiet : bool
        Print nothing before the final tables.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._as_json = as_json
        self._silent = as_json or quiet
        self._console = make_console(sys.stdout)
        self._header: RunHeader | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> TrainView:
        """Return the view itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the terminal back, whatever happened."""
        self._stop_progress()

    def on_header(self, header: RunHeader) -> None:
        """Say what the run is about to do."""
        self._header = header
        if not self._silent:
            self._console.print(header_table(header))
            self._console.print()

    def on_resume(self, resumed: Resumed) -> None:
        """Say where the run goes on, and which checkpoints were passed over."""
        for problem in resumed.problems:
            print(f"damaged, passed over: {problem}", file=sys.stderr, flush=True)
        if not self._silent:
            progress = resumed.checkpoint.manifest.progress
            after = f"step {progress.step}, in epoch {progress.epoch} after {progress.minibatches} minibatches"
            self._console.print(f"goes on from {resumed.checkpoint.path.name}: {after}", soft_wrap=True)
            self._console.print()

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Start an epoch of `steps` steps, counted from 1; the progress bar spans all `epochs`."""
        if self._silent or not self._console.is_terminal:
            return
        if self._progress is None:
            self._start_progress(epochs * steps)
        self._describe(f"epoch {epoch}/{epochs}")

    def on_step(self, record: StepRecord) -> None:
        """Advance the progress bar."""
        self._advance(record.step, record.train_loss)

    def on_epoch(self, record: EpochRecord) -> None:
        """Show the result of an epoch: in the progress bar, or as a line where there is no terminal."""
        self._advance(record.step, record.train_loss)
        if not self._silent and not self._console.is_terminal:
            self._console.print(epoch_line(record))

    def on_end(self, summary: RunSummary) -> None:
        """Print the final tables, or the JSON object."""
        self._stop_progress()
        totals = RunTotals.of(summary.epochs)
        if self._as_json:
            figures = {**asdict(summary), **asdict(totals)}
            print_json({"header": asdict(self._header) if self._header else None, **figures})
            return
        pipelined = self._header is not None and self._header.pipeline > 1
        for line in ("", epoch_table(summary.epochs, pipelined=pipelined), ""):
            self._console.print(line)
        self._console.print(summary_table(summary, totals, pipelined=pipelined))

    def _start_progress(self, steps: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        # A slow refresh: the thread that draws competes with the training of rank 0.
        self._progress = Progress(*columns, console=self._console, refresh_per_second=4)
        self._task = self._progress.add_task("", total=steps, loss="-")
        self._progress.start()

    def _describe(self, text: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)

    def _advance(self, step: int, loss: float) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, loss=f"{loss:.4g}")

    def _stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
