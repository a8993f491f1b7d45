"""Output of a training run: header, progress, final tables or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from hybridnn.cli.output import MISSING, make_console, new_grid, new_table, write_json
from hybridnn.cli.ranks import launch_rank, stop_unread
from hybridnn.diagnostics.failsafe import bar_file, progress_file
from hybridnn.runs.records import RunHeader, RunSummary, RunView
from hybridnn.training.records import EpochRecord, Speed, StepRecord
from hybridnn.utils.text import counted, figure_text, format_bytes, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from hybridnn.checkpoints.reading import Checkpoint
    from hybridnn.config.settings import Settings
    from hybridnn.pipeline.layout import Layout
    from hybridnn.training.trained_network import TrainedNetwork


ROW_WIDTH = 8  # of a column that is printed row by row, without knowing what follows
REFRESH_SECONDS = 0.25  # of the bar; who draws it competes with the training of rank 0
MOST_ROWS = 20  # rows of the table of epochs, but for the first, the best and the last


class TrainView(RunView):
    """Shows a run: header, progress and final tables. It is silent on ranks other than 0, which are given no header.

    Printed is one JSON object at the end, where `as_json`, or where `quiet` the final tables only.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._as_json = as_json
        self._silent = as_json or quiet
        self._header: RunHeader | None = None
        self._progress: Progress | None = None
        self._has_rows = False  # whether the epochs are printed as they end
        self._drawn_at = 0.0

    @cached_property
    def _console(self) -> Console:
        """Made on rank 0 only, which alone loads rich."""
        return make_console(on_unread=stop_unread)

    @cached_property
    def _bar_file(self) -> Path | None:
        """Where a rank draws the bar, for the process that started the launcher: the launcher forwards whole lines."""
        file = progress_file()
        return None if file is None else bar_file(file)

    @property
    def _has_bar(self) -> bool:
        return self._console.is_terminal and (launch_rank() is None or self._bar_file is not None)

    def show_refused_table(self, settings: Settings) -> None:
        """Print the columns on standard error."""
        from hybridnn.cli.data import print_columns

        print_columns(settings)

    def show_header(self, header: RunHeader) -> None:
        """Print the header."""
        self._header = header
        if not self._silent:
            self._console.print(header_table(header))
            self._console.print()

    def show_resume(self, checkpoint: Checkpoint, problems: Sequence[str]) -> None:
        """Print the checkpoint that the run resumes from, and the damaged ones that were skipped."""
        for problem in problems:
            print(f"damaged, skipped: {problem}", file=sys.stderr, flush=True)
        if not self._silent:
            progress = checkpoint.manifest.progress
            after = f"step {progress.step}, in epoch {progress.epoch} after {progress.minibatches} minibatches"
            self._console.print(f"continues from {checkpoint.path.name}: {after}", soft_wrap=True)
            self._console.print()

    def on_epoch_begin(self, trainer: TrainedNetwork, epoch: int) -> None:
        """Name the epoch in the progress bar, which spans all epochs."""
        if self._silent or self._header is None or not self._has_bar:
            return
        if self._progress is None:
            self._progress = self._start_progress(trainer.last_step)
        self._progress.update(self._progress.task_ids[0], description=f"epoch {epoch}/{trainer.last_epoch}")

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        """Advance the progress bar."""
        self._advance(record.step, record.train_loss)

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Show the result of an epoch: in the progress bar, or as a row of the table where there is no terminal."""
        self._advance(record.step, record.train_loss)
        if not self._silent and self._header is not None and not self._has_bar:
            self._print_row(record, self._header)

    def show_summary(self, summary: RunSummary) -> None:
        """Print the final tables, or the JSON object."""
        self.close()
        speed = speed_of(summary.epochs)
        if self._as_json:
            best = summary.best
            figures = {**asdict(summary), "best_metric": summary.best_value, "best_epoch": best and best.epoch}
            figures |= asdict(speed)
            write_json({"header": asdict(self._header) if self._header else None, **figures})
            return
        layout = None if self._header is None else self._header.layout
        quality = summary.evaluated, summary.metric_name.partition(" ")[2]
        tables = [] if self._has_rows else ["", epoch_table(summary.epochs, *quality, layout=layout, best=summary.best)]
        for line in (*tables, ""):
            self._console.print(line)
        self._console.print(summary_table(summary, speed))

    def _print_row(self, record: EpochRecord, header: RunHeader) -> None:
        """Print the row of an epoch of the final table as soon as it has ended, the first with the titles."""
        table = epoch_table(
            [record],
            "validation" if header.validation_samples else "test",
            "metric" if record.validation_loss is None else record.metric_name,
            layout=header.layout,
            tested=bool(header.validation_samples or header.test_samples),
        )
        for column in table.columns:
            column.min_width = ROW_WIDTH
        table.show_header, self._has_rows = not self._has_rows, True
        self._console.print(table)

    def _start_progress(self, steps: int) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=self._console, refresh_per_second=1 / REFRESH_SECONDS)
        progress.add_task("", total=steps, loss="-")
        if self._bar_file is None:
            progress.start()
        return progress

    def _advance(self, step: int, loss: float) -> None:
        if self._progress is None:
            return
        self._progress.update(self._progress.task_ids[0], completed=step, loss=figure_text(loss))
        if self._bar_file is not None and monotonic() - self._drawn_at >= REFRESH_SECONDS:
            with self._console.capture() as drawn:
                self._console.print(self._progress, end="")
            self._bar_file.write_text(drawn.get().rstrip("\n"), encoding="utf-8")
            self._drawn_at = monotonic()

    def close(self) -> None:
        """Remove the progress bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            if self._bar_file is not None:
                self._bar_file.write_bytes(b"")


def _idle(record: EpochRecord, layout: Layout | None, minibatches: int) -> dict[str, float]:
    """Seconds of the bubble and of waiting in a pipeline of so many minibatches per epoch; empty for other layouts."""
    if layout is None or len(layout.stages) == 1:
        return {}
    from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble, split_idle

    seconds = record.compute_seconds + record.communication_seconds
    bubble, wait = split_idle(record.waiting_seconds, seconds * schedule_bubble(layout, minibatches))
    return {"bubble": bubble, "wait": wait}


def header_table(header: RunHeader) -> Table:
    """Ranks, grid, threads, data, network, optimizer, versions and folder."""
    nodes = counted(header.nodes, "node")
    threads = f"{counted(header.threads_per_rank, 'thread')} per rank"
    threads += f" ({header.threads_why})" if header.threads_why else ""
    samples = f"{header.train_samples:,} training and {header.test_samples:,} test samples"
    if header.validation_samples:
        samples = f"{header.train_samples:,} training, {header.validation_samples:,} validation and "
        samples += f"{header.test_samples:,} test samples"
    network = f"{'-'.join(map(str, header.sizes))}, {header.parameters:,} parameters, {header.dtype}"
    rows = [
        ("ranks", f"{header.ranks} on {nodes}, {threads}"),
        ("grid", _grid_text(header)),
        *_pipeline_rows(header),
        *_device_rows(header),
        ("data", f"{header.data}, {samples}"),
        ("task", header.task),
        ("network", network),
        ("optimizer", header.optimizer),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("folder", header.folder),
        ("cores", "; ".join(header.crowded)),
        ("layout", "" if header.in_process or header.crowded else header.layout_advice),
    ]
    return new_grid((name, value) for name, value in rows if value)


def _device_rows(header: RunHeader) -> list[tuple[str, str]]:
    """Device and transport with their reasons; advice on installing GPU support is left to the run's records."""
    if header.transport is None:
        return [("device", f"{header.device} ({header.device_why.partition(';')[0]})")]
    device = "device", f"{header.device} ({header.device_why})"
    return [device, ("transport", f"{header.transport} ({header.transport_why})")]


def _grid_text(header: RunHeader) -> str:
    stages = header.layout.stages
    widths = [f"{batch} x {model}" for batch, model in stages]
    if len(set(widths)) > 1:
        return f"{' + '.join(widths)} (batch x model of each stage)"
    if len(stages) > 1:
        return f"{len(stages)} x {widths[0]} (pipeline x batch x model)"
    return f"{widths[0]} (batch x model)"


def _pipeline_rows(header: RunHeader) -> list[tuple[str, str]]:
    """The method, and every stage's memory beside its weights, gradients and optimizer state."""
    layout = header.layout
    if len(layout.stages) == 1:
        return []
    cut = f", {layout.microbatches} microbatches" if layout.microbatches > 1 else ""
    cut += f" ({header.microbatches_why})" if header.microbatches_why else ""
    rows = [("pipeline", f"{layout.method}{cut}")]
    if header.mean_staleness:
        of_stages = ", ".join(f"{updates:.2f}" for updates in header.stage_staleness)
        rows.append(("staleness", f"{header.mean_staleness:.2f} updates on average; of the stages {of_stages}"))
    for stage, memory_of_stage in enumerate(header.memory):
        indices = list(chain.from_iterable(layout.layer_indices(stage)))
        layers = f"{plural('layer', len(indices))} {', '.join(map(str, indices))}"
        sizes = memory_of_stage.weight_version_bytes, memory_of_stage.activation_bytes, memory_of_stage.buffer_bytes
        versions, activations, buffers = (format_bytes(size, decimals=1) for size in sizes)
        memory = f"other weight versions {versions}, activations {activations}, buffers {buffers}"
        rows.append((f"stage {stage}", f"{layers}: {memory}"))
    return rows


def epoch_table(
    epochs: Sequence[EpochRecord],
    evaluated: str = "test",
    metric: str = "accuracy",
    *,
    layout: Layout | None = None,
    tested: bool = False,
    best: EpochRecord | None = None,
) -> Table:
    """Make a table of one row per epoch; of a long run evenly spaced ones, the `best` and the last.

    `evaluated` is the name of the split on which the epochs were evaluated, `metric` that of what was found there.

    In a pipeline the bubble and waiting have columns of their own. Data that are `tested` have columns even where no
    epoch is.
    """
    tested = tested or any(record.validation_loss is not None for record in epochs)
    quality = ("train\nloss", *((f"{evaluated}\nloss", f"{evaluated}\n{metric}") if tested else ()))
    pipelined = layout is not None and len(layout.stages) > 1
    times = ("samples\nper s", "compute\ns", "comm.\ns", *(["bubble\ns", "wait\ns"] if pipelined else []))
    table = new_table((), ("epoch", *quality, *times, "sent"), show_edge=False)
    every = -(-len(epochs) // MOST_ROWS)
    for record in (it for it in epochs if it.epoch % every == 0 or it.epoch == 1 or it in (best, epochs[-1])):
        idle = _idle(record, layout, record.step // record.epoch).values()
        communication = (record.communication_seconds - sum(idle), *idle)
        table.add_row(
            str(record.epoch),
            _figure(record.train_loss),
            *((_figure(record.validation_loss), _figure(record.metric)) if tested else ()),
            f"{record.samples_per_second:,.0f}",
            f"{record.compute_seconds:.3f}",
            *(f"{seconds:.3f}" for seconds in communication),
            format_bytes(record.bytes_sent, decimals=1),
            style="bold" if record is best else None,
        )
    return table


def speed_of(epochs: Sequence[EpochRecord]) -> Speed:
    """Throughput over several epochs together, and the sums of their times and traffic."""
    compute = sum(record.compute_seconds for record in epochs)
    inside = sum(record.communication_seconds for record in epochs)
    seconds = [record.compute_seconds + record.communication_seconds for record in epochs]
    samples = sum(record.samples_per_second * own for record, own in zip(epochs, seconds, strict=True))
    sent, waiting = sum(record.bytes_sent for record in epochs), sum(record.waiting_seconds for record in epochs)
    return Speed(samples / (compute + inside) if samples else 0.0, compute, inside, sent, waiting)


def summary_table(summary: RunSummary, speed: Speed) -> Table:
    """Last and best metric, speed, where the time went, and the folder."""
    from hybridnn.runs.quantities import shares_text

    steps = f"{summary.steps:,}"
    if summary.resumed_at:
        steps += f", the last {summary.steps - summary.resumed_at:,}"
    return new_grid(
        [
            *_quality_rows(summary),
            ("steps", f"{steps} in {summary.seconds:.1f} s, {speed.samples_per_second:,.0f} samples/s"),
            ("time", shares_text(summary.shares) or "none: the ranks took turns in one process"),
            ("sent", f"{format_bytes(speed.bytes_sent, decimals=1)} by all ranks"),
            ("folder", summary.folder),
        ]
    )


def _quality_rows(summary: RunSummary) -> list[tuple[str, str]]:
    """Last and best metric; with a validation split, the metric of the final weights and the best one on that split."""
    if summary.epochs and all(epoch.validation_loss is None for epoch in summary.epochs):
        return [("training loss", _figure(summary.epochs[-1].train_loss))]
    value, best = _figure(summary.metric), summary.best
    if summary.evaluated == "test":
        return [(summary.metric_name, value)]
    best_text = f"best {_figure(summary.best_value)} in epoch {best.epoch}" if best else MISSING
    last = summary.epochs[-1].epoch
    name = summary.monitor
    if name == "auto":
        name = f"{summary.evaluated} {summary.metric_name.partition(' ')[2]}"
    weights = f"{value} with the weights of epoch {summary.weights_epoch or last} of {last}"
    return [(name, best_text), (summary.metric_name, weights)]


def _figure(value: float | None) -> str:
    return MISSING if value is None else figure_text(value)
