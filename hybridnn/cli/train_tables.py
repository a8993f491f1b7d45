"""The tables of a run, and the totals that they and the JSON output share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridnn.training.records import EpochRecord, RunHeader, RunSummary, best_epoch
from hybridnn.utils.text import counted, format_bytes, plural

if TYPE_CHECKING:
    from rich.table import Table


MOST_ROWS = 20


@dataclass(frozen=True)
class RunTotals:
    """Figures of a whole run.

    Attributes
    ----------
    best_metric, best_epoch : float, int or None
        Highest test accuracy or R², and the first epoch that reached it; None where none was measured.
    samples_per_second : float
        Over the training time of all epochs, evaluation excluded.
    compute_seconds, communication_seconds, waiting_seconds : float
        Sums over the epochs, of rank 0; waiting is part of communication.
    bytes_sent : int
        By all ranks.
    """

    best_metric: float | None
    best_epoch: int | None
    samples_per_second: float
    compute_seconds: float
    communication_seconds: float
    bytes_sent: int
    waiting_seconds: float

    @classmethod
    def of(cls, epochs: Sequence[EpochRecord]) -> RunTotals:
        """Add up the records of a run."""
        best = best_epoch(epochs)
        compute = sum(record.compute_seconds for record in epochs)
        communication = sum(record.communication_seconds for record in epochs)
        samples = sum(
            record.samples_per_second * (record.compute_seconds + record.communication_seconds) for record in epochs
        )
        return cls(
            best_metric=best.metric if best else None,
            best_epoch=best.epoch if best else None,
            samples_per_second=samples / (compute + communication) if samples else 0.0,
            compute_seconds=compute,
            communication_seconds=communication,
            bytes_sent=sum(record.bytes_sent for record in epochs),
            waiting_seconds=sum(record.waiting_seconds for record in epochs),
        )

    def shares(self, *, pipelined: bool) -> str:
        """Parts of the training time in words; in a pipeline waits are the bubble, else communication."""
        waiting = self.waiting_seconds if pipelined else 0.0
        parts = {"compute": self.compute_seconds, "communication": self.communication_seconds - waiting}
        parts |= {"bubble": waiting} if pipelined else {}
        seconds = sum(parts.values())
        return ", ".join(f"{part / seconds if seconds else 0:.0%} {name}" for name, part in parts.items())


def header_table(header: RunHeader) -> Table:
    """Ranks, grid, threads, data, network, optimizer, versions and folder."""
    nodes = counted(header.nodes, "node")
    threads = f"{counted(header.threads_per_rank, 'thread')} per rank"
    threads += f" ({header.threads_why})" if header.threads_why else ""
    samples = f"{header.train_samples:,} training and {header.test_samples:,} test samples"
    network = f"{'-'.join(map(str, header.sizes))}, {header.parameters:,} parameters, {header.dtype}"
    return _grid(
        ("ranks", f"{header.ranks} on {nodes}, {threads}"),
        ("grid", _grid_of(header)),
        *_pipeline_rows(header),
        *_device_rows(header),
        *([("wire", header.wire)] if header.wire is not None else []),
        ("data", f"{header.data}, {samples}"),
        *([("task", header.task)] if header.task else []),
        ("network", network),
        ("optimizer", header.optimizer),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("folder", header.folder),
    )


def _device_rows(header: RunHeader) -> list[tuple[str, str]]:
    """What computes and why, and how a GPU's arrays travel; what to install for a GPU is in the run's records."""
    if header.transport is None:
        return [("device", f"{header.device} ({header.device_why.partition(';')[0]})")]
    device = "device", f"{header.device} ({header.device_why})"
    return [device, ("transport", f"{header.transport} ({header.transport_why})")]


def _grid_of(header: RunHeader) -> str:
    widths = {(stage.batch, stage.model) for stage in header.stages}
    if len(widths) > 1:
        stages = " + ".join(f"{stage.batch} x {stage.model}" for stage in header.stages)
        return f"{stages} (batch x model of each stage)"
    if header.pipeline > 1:
        return f"{header.pipeline} x {header.batch} x {header.model} (pipeline x batch x model)"
    return f"{header.batch} x {header.model} (batch x model)"


def _pipeline_rows(header: RunHeader) -> list[tuple[str, str]]:
    """The method, and what every stage holds beside its weights, gradients and optimizer state."""
    if header.method is None:
        return []
    cut = f", {header.microbatches} microbatches" if header.microbatches > 1 else ""
    rows = [("pipeline", f"{header.method}{cut}")]
    for stage in header.stages:
        layers = ", ".join(map(str, stage.layers))
        rows.append(
            (
                f"stage {stage.stage}",
                f"{plural('layer', len(stage.layers))} {layers}: "
                f"other weight versions {format_bytes(stage.weight_version_bytes, decimals=1)}, "
                f"activations {format_bytes(stage.activation_bytes, decimals=1)}, "
                f"buffers {format_bytes(stage.buffer_bytes, decimals=1)}",
            )
        )
    return rows


def epoch_line(record: EpochRecord) -> str:
    """One epoch as a line of plain text."""
    parts = [f"epoch {record.epoch:>3}", f"train loss {record.train_loss:.4g}"]
    if record.test_loss is not None:
        parts.append(f"test loss {record.test_loss:.4g}")
    if record.test_accuracy is not None:
        parts.append(f"test accuracy {record.test_accuracy:.4f}")
    if record.test_r2 is not None:
        parts.append(f"test R² {record.test_r2:.4f}")
    return "  ".join([*parts, f"{record.samples_per_second:,.0f} samples/s"])


def epoch_table(epochs: Sequence[EpochRecord], *, pipelined: bool = False) -> Table:
    """Make one row per epoch; of a long run evenly spaced ones, the best and the last.

    In a pipeline the bubble has a column of its own.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    label = "R²" if any(record.test_r2 is not None for record in epochs) else "accuracy"
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    titles = (
        "epoch",
        "train\nloss",
        "test\nloss",
        f"test\n{label}",
        "samples\nper s",
        "compute\ns",
        "comm.\ns",
        *(["bubble\ns"] if pipelined else []),
        "sent",
    )
    for title in titles:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    best = RunTotals.of(epochs).best_epoch
    for record in _shown(epochs, best):
        table.add_row(
            str(record.epoch),
            _number(record.train_loss),
            _number(record.test_loss),
            _number(record.metric),
            f"{record.samples_per_second:,.0f}",
            f"{record.compute_seconds:.3f}",
            *_communication_cells(record, pipelined=pipelined),
            format_bytes(record.bytes_sent, decimals=1),
            style="bold" if record.epoch == best else None,
        )
    return table


def _communication_cells(record: EpochRecord, *, pipelined: bool) -> list[str]:
    if not pipelined:
        return [f"{record.communication_seconds:.3f}"]
    return [f"{record.communication_seconds - record.waiting_seconds:.3f}", f"{record.waiting_seconds:.3f}"]


def summary_table(summary: RunSummary, totals: RunTotals, *, pipelined: bool = False) -> Table:
    """Last and best metric, speed, where the time went, and the folder."""
    best = f", best {_number(totals.best_metric)} in epoch {totals.best_epoch}" if totals.best_epoch else ""
    steps, here = f"{summary.steps:,}", summary.steps - summary.resumed_at
    if summary.resumed_at:
        steps += f", the last {here:,}"
    return _grid(
        (summary.metric_name, f"{_number(summary.metric)}{best}"),
        ("steps", f"{steps} in {summary.seconds:.1f} s, {totals.samples_per_second:,.0f} samples/s"),
        ("time", f"{totals.shares(pipelined=pipelined)} (rank 0)"),
        ("sent", f"{format_bytes(totals.bytes_sent, decimals=1)} by all ranks"),
        ("folder", summary.folder),
    )


def _shown(epochs: Sequence[EpochRecord], best_epoch: int | None) -> list[EpochRecord]:
    every = -(-len(epochs) // MOST_ROWS)
    last = epochs[-1].epoch if epochs else None
    return [record for record in epochs if record.epoch % every == 0 or record.epoch in (1, best_epoch, last)]


def _grid(*rows: tuple[str, str]) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"
