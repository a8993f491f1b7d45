"""What a user sees of finished runs: one in detail, or several as a strong-scaling table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hybridnn.cli.output import make_console, print_json
from hybridnn.cli.train_tables import header_table
from hybridnn.runs.run_record import RunRecord
from hybridnn.study.figures import InstructionFigures, RunFigures, instruction_figures
from hybridnn.study.report.scaling import ScalingGroup, ScalingRow, compare_runs
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from rich.table import Table


MISSING = "-"


def print_run(run: RunRecord, figures: RunFigures, *, as_json: bool) -> None:
    """Print the header, and measured beside predicted seconds per step: of the step, its parts and its instructions."""
    instructions = instruction_figures(run)
    if as_json:
        prediction = None if run.prediction is None else asdict(run.prediction)
        facts = [{**asdict(item), "error": item.error} for item in instructions]
        print_json({**_facts(figures), "prediction": prediction, "instructions": facts})
        return
    console = make_console(sys.stdout)
    console.print(header_table(run.header))
    console.print()
    console.print(_step_table(figures, instructions))
    if run.prediction is not None:
        parts = ", ".join(f"{name.replace('_', ' ')} {_ms(seconds)}" for name, seconds in run.prediction.parts.items())
        console.print(f"predicted for {run.prediction.machine}, ms per step: {parts}")
    shares = f"communication {_percent(figures.shares.communication)}, waiting {_percent(figures.shares.waiting)}"
    console.print(f"{figures.seconds_per_epoch:.4g} s per epoch, {figures.samples_per_second:,.0f} samples/s; {shares}")
    console.print(f"limited by: {figures.verdict.text}")


def print_runs(figures: Sequence[RunFigures], *, as_json: bool) -> None:
    """Print the strong-scaling table of each network and data set."""
    groups = compare_runs(figures)
    if as_json:
        print_json({"groups": [_group_facts(group) for group in groups]})
        return
    console = make_console(sys.stdout)
    for group in groups:
        base = group.base
        data = f"{base.data} ({base.train_samples:,} training samples)"
        console.print(
            f"{base.network} on {data}; speed-up against {counted(base.ranks, 'rank')}, {base.folder}", soft_wrap=True
        )
        console.print(_scaling_table(group))
        for row in group.rows:
            method = f", {row.figures.method}" if row.figures.method else ""
            console.print(
                f"  {counted(row.figures.ranks, 'rank')}, {row.figures.grid}{method}: {row.figures.verdict.text}"
            )
        for warning in group.warnings:
            console.print(f"warning: {warning}", soft_wrap=True)
        console.print()


def _facts(figures: RunFigures) -> dict[str, Any]:
    return {**asdict(figures), "prediction_error": figures.prediction_error}


def _group_facts(group: ScalingGroup) -> dict[str, Any]:
    rows = [
        {
            **_facts(row.figures),
            "speed_up": row.speed_up,
            "efficiency": row.efficiency,
            "predicted_speed_up": row.predicted_speed_up,
        }
        for row in group.rows
    ]
    return {"base": group.base.folder, "base_ranks": group.base.ranks, "runs": rows, "warnings": group.warnings}


def _step_table(figures: RunFigures, instructions: Sequence[InstructionFigures]) -> Table:
    table = _table("ms per step", "measured", "predicted", "error")
    table.add_row(
        "whole step",
        _ms(figures.seconds_per_step),
        _ms(figures.predicted_seconds_per_step),
        _signed(figures.prediction_error),
    )
    for item in instructions:
        table.add_row(item.kind, _ms(item.seconds_per_step), _ms(item.predicted_seconds_per_step), _signed(item.error))
    predicted = figures.predicted_bytes_per_step
    table.add_row(
        "bytes per step", f"{figures.bytes_per_step:,.0f}", MISSING if predicted is None else f"{predicted:,.0f}", ""
    )
    return table


COLUMNS: dict[str, Callable[[ScalingRow], str]] = {
    "ranks": lambda row: str(row.figures.ranks),
    "grid": lambda row: row.figures.grid,
    "method": lambda row: row.figures.method or MISSING,
    "batch": lambda row: str(row.figures.batch_size),
    "s per\nepoch": lambda row: f"{row.figures.seconds_per_epoch:.4g}",
    "speed-\nup": lambda row: f"{row.speed_up:.2f}",
    "effi-\nciency": lambda row: _percent(row.efficiency),
    "predicted\nspeed-up": lambda row: MISSING if row.predicted_speed_up is None else f"{row.predicted_speed_up:.2f}",
    "step\nerror": lambda row: _signed(row.figures.prediction_error),
    "comm.": lambda row: _percent(row.figures.shares.communication),
    "idle": lambda row: _percent(row.figures.shares.waiting),
}


def _scaling_table(group: ScalingGroup) -> Table:
    table = _table(*COLUMNS)
    for row in group.rows:
        table.add_row(*(cell(row) for cell in COLUMNS.values()))
    return table


def _table(first: str, *titles: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column(first, no_wrap=True, vertical="bottom")
    for title in titles:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    return table


def _ms(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{1e3 * seconds:.4g}"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.0%}"


def _signed(error: float | None) -> str:
    return MISSING if error is None else f"{error:+.0%}"
