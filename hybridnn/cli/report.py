"""`hybridnn report`: the cost of finished runs and what limits them; why a run stalled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import Format, OutputFormat
from hybridnn.cli.output import MISSING, make_console, new_table, number_cell, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.utils.text import format_milliseconds

if TYPE_CHECKING:
    from rich.table import Table

    from hybridnn.diagnostics.diagnosis import StallRecord
    from hybridnn.runs.quantities import InstructionFigures, RunFigures, ScalingGroup
    from hybridnn.runs.run_files import RunRecord


NAMED = frozenset({"data", "data.train_samples", "model.sizes"})  # conditions that every title has


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    output_format: OutputFormat = Format.text,
) -> None:
    """Show where the time of a run went, or which rank a stalled run waited for; of several runs, how they scale."""
    from hybridnn.diagnostics.diagnosis import stall_report
    from hybridnn.diagnostics.stall_files import FOLDER, read_stall
    from hybridnn.runs.quantities import compare_runs, figures_of, instruction_figures
    from hybridnn.runs.run_files import read_run, run_status

    with first_rank_alone():
        as_json = output_format is Format.json
        record = read_stall(folders[0]) if len(folders) == 1 else None
        if record is not None:
            if not as_json:
                print(stall_report(record, folders[0] / FOLDER))
            if run_status(folders[0]) in ("absent", "unfinished"):
                if as_json:
                    write_json({"stall": _stall_facts(record)})
                return
        runs = [read_run(folder) for folder in folders]
        figures = [figures_of(run) for run in runs]
        if len(runs) == 1:
            instructions = instruction_figures(runs[0])
            if as_json:
                write_json(_run_facts(runs[0], figures[0], instructions) | {"stall": record and _stall_facts(record)})
            else:
                _print_run(runs[0], figures[0], instructions)
        else:
            groups = compare_runs(figures)
            if as_json:
                write_json({"groups": [_group_facts(group) for group in groups]})
            else:
                _print_groups(groups)


def _stall_facts(record: StallRecord) -> dict[str, object]:
    return {
        "findings": [asdict(finding) for finding in record.findings],
        "job": None if record.job is None else asdict(record.job),
        "states": [asdict(state) for state in record.states.values()],
    }


def _print_run(run: RunRecord, figures: RunFigures, instructions: Sequence[InstructionFigures]) -> None:
    """Print the header, and measured beside predicted seconds per step: of the step, its parts and its instructions."""
    from hybridnn.cli.train_view import header_table
    from hybridnn.comm.node_load import MOST_DISTURBANCE, disturbance_text
    from hybridnn.runs.quantities import shares_text

    console = make_console()
    console.print(header_table(run.header))
    console.print()
    console.print(_step_table(figures, instructions))
    if run.prediction is not None:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {_milliseconds(seconds)}" for name, seconds in run.prediction.parts.items()
        )
        console.print(f"predicted for {run.prediction.machine}, ms per step: {parts}")
        if run.prediction.doubt:
            console.print(f"warning: {run.prediction.doubt}", soft_wrap=True)
    if run.diverged is not None:
        console.print(f"diverged in epoch {run.diverged.epoch}: {run.diverged.reason}", soft_wrap=True)
    if run.untimed:
        console.print(f"no times: {run.untimed}")
        return
    shares = shares_text(figures.shares.parts)
    console.print(f"{figures.seconds_per_epoch:.4g} s per epoch, {figures.samples_per_second:,.0f} samples/s; {shares}")
    console.print(f"limited by: {figures.verdict.text}")
    if run.disturbance > MOST_DISTURBANCE:
        console.print(f"warning: {disturbance_text(run.disturbance)}")


def _print_groups(groups: Sequence[ScalingGroup]) -> None:
    """Print the strong-scaling table of each group, with the conditions that distinguish it from the others."""
    from hybridnn.runs.quantities import distinguishing_conditions
    from hybridnn.utils.text import counted

    console = make_console()
    differing = distinguishing_conditions([group.base for group in groups])
    for group, conditions in zip(groups, differing, strict=True):
        base = group.base
        data = f"{base.data} ({base.train_samples:,} training samples)"
        base_text = f"{counted(base.ranks, 'rank')}, {base.folder}"
        shown = [f"{name} = {value}" for name, value in conditions.items() if name not in NAMED]
        title = ", ".join([f"{base.network} on {data}", *shown])
        console.print(f"{title}; speed-up against {base_text}", soft_wrap=True)
        console.print(_scaling_table(group))
        for row in group.rows:
            figures = row.figures
            method = f", {figures.method}" if figures.method else ""
            end = "" if figures.diverged_at is None else f"; diverged at step {figures.diverged_at}"
            console.print(f"  {counted(figures.ranks, 'rank')}, {figures.grid}{method}: {figures.verdict.text}{end}")
        for warning in group.warnings:
            console.print(f"warning: {warning}", soft_wrap=True)
        console.print()


def _run_facts(run: RunRecord, figures: RunFigures, instructions: Sequence[InstructionFigures]) -> dict[str, Any]:
    prediction = None if run.prediction is None else asdict(run.prediction)
    facts = [{**asdict(item), "error": item.error} for item in instructions]
    staleness = {"mean_staleness": run.header.mean_staleness, "stage_staleness": run.header.stage_staleness}
    return {**_facts(figures), **staleness, "prediction": prediction, "instructions": facts}


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
    step = (figures.seconds_per_step, figures.predicted_seconds_per_step, figures.prediction_error)
    items = [(item.kind, item.seconds_per_step, item.predicted_seconds_per_step, item.error) for item in instructions]
    rows = [
        (name, _milliseconds(measured), _milliseconds(predicted), number_cell(error, "+.0%"))
        for name, measured, predicted, error in [("whole step", *step), *items]
    ]
    sent = tuple(number_cell(number, ",.0f") for number in (figures.bytes_per_step, figures.predicted_bytes_per_step))
    titles = ("measured", "predicted", "error")
    return new_table(("ms per step",), titles, [*rows, ("bytes per step", *sent, "")], show_edge=False)


def _scaling_table(group: ScalingGroup) -> Table:
    rows = [
        (
            str(row.figures.ranks),
            row.figures.grid,
            row.figures.method or MISSING,
            str(row.figures.batch_size),
            number_cell(row.figures.seconds_per_epoch, ".4g"),
            number_cell(row.speed_up, ".2f"),
            number_cell(row.efficiency, ".0%"),
            number_cell(row.predicted_speed_up, ".2f"),
            number_cell(row.figures.prediction_error, "+.0%"),
            number_cell(row.figures.shares.communicate, ".0%"),
            number_cell(row.figures.shares.bubble, ".0%"),
            number_cell(row.figures.shares.wait, ".0%"),
        )
        for row in group.rows
    ]
    titles = ("grid", "method", "batch", "s per\nepoch", "speed-\nup", "effi-\nciency")
    more = ("predicted\nspeed-up", "step\nerror", "comm.", "bubble", "wait")
    return new_table(("ranks",), (*titles, *more), rows, show_edge=False, padding=(0, 1, 0, 0))


def _milliseconds(seconds: float | None) -> str:
    return MISSING if seconds is None or isnan(seconds) else format_milliseconds(seconds)
