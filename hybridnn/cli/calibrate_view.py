"""What `hybridnn calibrate` prints: the fits, their errors on what was held out, and what to do with the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hybridnn.cli.output import print_table
from hybridnn.cost.calibration.calibrate import Calibration
from hybridnn.cost.calibration.fit import LARGE_BYTES, FittedOperation, HeldOutError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.cost.machine.machine import Machine


def print_calibration(console: Console, found: Calibration, out: Path | None) -> None:
    """Print the tables of a calibration, the verdict, and how to use the file; None where none was written."""
    if found.fits:
        console.print("\nmessages and collectives: alpha per message, beta per byte, by size; errors on held-out sizes")
        print_table(console, _fit_table(found.fits))
        overlap = found.machine.overlap
        console.print(
            f"\noverlap: {overlap.hidden_fraction:.0%} of an all-reduce hides behind computing, which takes "
            f"{overlap.compute_slowdown:.2f} times as long meanwhile; "
            f"without blocking it takes {overlap.nonblocking_factor:.2f} times as long"
        )
    if found.compute_errors:
        console.print("\npasses of layers: errors on held-out networks, the mean weighted by time")
        print_table(console, _compute_table(found))
        _print_pace(console, found.machine)
    for text in found.missing:
        console.print(f"not measured: {text}", soft_wrap=True)
    if found.crowded:
        console.print(f"mind: {found.crowded}", soft_wrap=True)
    if found.machine.quality is not None:
        console.print(f"\nverdict: {found.machine.quality.line}", soft_wrap=True)
    if out is None:
        console.print("no machine file was written; measure again when the machine is idle, or write it with --force")
        return
    console.print(f"\n{out}: use it with `hybridnn plan SETTINGS.toml --ranks N --machine {out}`", soft_wrap=True)


def _print_pace(console: Console, machine: Machine) -> None:
    """How much longer than the median computing takes, because ranks that meet wait for the last."""
    compute = max(machine.compute, key=lambda entry: (entry.dtype == "float32", entry.busy_ranks))
    later = " and ".join(f"{compute.pace(ranks) - 1:.0%} until the last of {ranks}" for ranks in (2, 64))
    alone = f"{compute.pace(1) - 1:.0%}"
    console.print(
        f"\nnoise: computing takes {alone} longer than its median, and {later} ranks is through", soft_wrap=True
    )


def calibration_facts(found: Calibration, out: Path | None) -> dict[str, object]:
    """The same figures, and all samples, for JSON."""
    return {
        "file": None if out is None else str(out),
        "verdict": None if found.machine.quality is None else found.machine.quality.line,
        "machine": found.machine.model_dump(),
        "communication": [
            {
                "operation": fit.operation,
                "ranks": fit.cost.ranks,
                "spans_nodes": fit.cost.spans_nodes,
                "algorithm": fit.cost.algorithm,
                "factor": fit.factor,
                "segments": [segment.model_dump() for segment in fit.cost.segments],
                "held_out_error": _error_facts(fit.held_out_error()),
                "held_out_error_from_64_kib": _error_facts(fit.held_out_error(LARGE_BYTES)),
                "samples": [
                    {"nbytes": sample.nbytes, "seconds": sample.seconds, "held_out": sample.held_out}
                    for sample in fit.samples
                ],
            }
            for fit in found.fits
        ],
        "compute_errors": [asdict(error) for error in found.compute_errors],
        "not_measured": list(found.missing),
        "crowded": found.crowded,
    }


def _error_facts(error: HeldOutError | None) -> dict[str, object] | None:
    return None if error is None else asdict(error)


def _fit_table(fits: tuple[FittedOperation, ...]) -> Table:
    """One row for each segment; the first of an operation and group says how well all of them predict."""
    table = _table(
        ("operation", "ranks", "algorithm"),
        ("up to\nbytes", "alpha\nus", "beta\nns/byte", "mean\nerror", "largest\nerror", "mean from\n64 KiB"),
    )
    for fit in fits:
        error, large = fit.held_out_error(), fit.held_out_error(LARGE_BYTES)
        errors = (
            _percent(error.mean if error else None),
            _percent(error.max if error else None),
            _percent(large.mean if large else None),
        )
        ranks = f"{fit.cost.ranks}{' across nodes' if fit.cost.spans_nodes else ''}"
        heads = iter([((fit.operation, ranks, fit.cost.algorithm), errors)])
        for cells in _segments(fit):
            names, judged = next(heads, (("", "", ""), ("", "", "")))
            table.add_row(*names, *cells, *judged)
    return table


def _segments(fit: FittedOperation) -> Iterator[tuple[str, str, str]]:
    for segment in fit.cost.segments:
        end = "" if segment.up_to_bytes is None else f"{segment.up_to_bytes:,.0f}"
        alpha, beta = segment.alpha_seconds * fit.factor, segment.beta_seconds_per_byte * fit.factor
        yield end, f"{1e6 * alpha:.2f}", f"{1e9 * beta:.4f}"


def _compute_table(found: Calibration) -> Table:
    table = _table(("pass",), ("precision", "busy ranks", "held out", "mean\nerror", "largest\nerror"))
    for error in found.compute_errors:
        table.add_row(
            error.what,
            error.dtype,
            str(error.busy_ranks),
            str(error.samples),
            _percent(error.mean),
            _percent(error.largest),
        )
    return table


def _table(texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for title in texts:
        table.add_column(title, vertical="bottom", no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
