"""`hybridnn report`: the cost of finished runs and what limits them, what differs between them; why a run stalled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import OutputFormat, option
from hybridnn.cli.output import MISSING, make_console, new_table, number_cell, print_table, require_place, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import DataError, SettingError
from hybridnn.utils.text import counted, figure_text, format_milliseconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.diagnostics.diagnosis import StallRecord
    from hybridnn.runs.quantities import InstructionFigures, RunFigures
    from hybridnn.runs.run_files import RunRecord
    from hybridnn.study.scaling import Comparison


FIGURE = re.compile("loss|accuracy|r2|^best(?!_epoch)")  # names of losses and metrics
RUNS_OF_TABLE = 6  # columns that a terminal has room for
NAMED = frozenset({"data", "data.train_samples", "model.sizes"})  # conditions that every title has


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    output_format: OutputFormat = "text",
    plot: Annotated[
        Path | None,
        option("Draw the learning curves of several runs into a .svg, .png or .pdf (default: no picture).", "FILE"),
    ] = None,
) -> None:
    """Show where the time of a run went, or which rank it waited for; of several, what differs and how they scale."""
    from hybridnn.runs.run_files import read_run

    if plot is not None and len(folders) == 1:
        raise SettingError("--plot", str(plot), "needs two run folders or more; a run folder has the curves of its run")
    if plot is not None:
        require_place("--plot", plot)
    with first_rank_alone():
        as_json = output_format == "json"
        if len(folders) == 1:
            _report_run(folders[0], as_json=as_json)
        else:
            _report_runs([read_run(folder) for folder in folders], plot, as_json=as_json)


def _report_run(folder: Path, *, as_json: bool) -> None:
    """Print the figures of a run, and why it stalled."""
    from hybridnn.diagnostics.diagnosis import stall_report
    from hybridnn.diagnostics.stall_files import FOLDER, read_stall
    from hybridnn.runs.quantities import figures_of, instruction_figures
    from hybridnn.runs.run_files import read_run, run_status

    record = read_stall(folder)
    if record is not None:
        if not as_json:
            print(stall_report(record, folder / FOLDER))
        if run_status(folder) in ("absent", "unfinished"):
            if as_json:
                write_json({"stall": _stall_facts(record)})
            return
    run = read_run(folder)
    figures, instructions = figures_of(run), instruction_figures(run)
    if as_json:
        write_json(_run_facts(run, figures, instructions) | {"stall": record and _stall_facts(record)})
    else:
        _print_run(run, figures, instructions)


def _report_runs(runs: Sequence[RunRecord], plot: Path | None, *, as_json: bool) -> None:
    """Print the settings in which runs differ, with their losses and times, and how they scale."""
    from hybridnn.runs.quantities import differing
    from hybridnn.study.scaling import group_runs
    from hybridnn.utils.settings_models import by_dotted_name

    settings = [by_dotted_name(run.settings.model_dump(exclude={"output"})) for run in runs]
    if plot is not None:
        _draw(runs, settings, plot)
    names = differing(settings)
    differences = [{name: one.get(name) for name in names} for one in settings]
    results, groups = [_results(run) for run in runs], group_runs(runs)
    if as_json:
        facts = [
            {"run": str(run.folder), "settings": own, **result}
            for run, own, result in zip(runs, differences, results, strict=True)
        ]
        write_json({"runs": facts, "groups": [_group_facts(group) for group in groups]})
        return
    console = make_console()
    for start in range(0, len(runs), RUNS_OF_TABLE):
        part = slice(start, start + RUNS_OF_TABLE)
        console.print(_runs_table(runs[part], differences[part], results[part]))
    _print_groups(console, groups)


def _runs_table(
    runs: Sequence[RunRecord], settings: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> Table:
    """A column for each run, with settings and results; without rows in which all cells are empty."""
    rows = [(name, *(_text(one[name]) for one in settings)) for name in settings[0]]
    for name in dict.fromkeys(chain.from_iterable(results)):
        rows.append((name.replace("_", " "), *(_text(result.get(name), FIGURE.search(name)) for result in results)))
    rows = [row for row in rows if any(cell != MISSING for cell in row[1:])]
    return new_table(("",), tuple(str(run.folder) for run in runs), rows, wraps=True)


def _results(run: RunRecord) -> dict[str, Any]:
    """Figures of a run; None for what it does not have."""
    from hybridnn.runs.records import best_epoch, watched

    monitor = run.settings.training.monitor
    last = run.epochs[-1] if run.epochs else None
    best = best_epoch(run.epochs, monitor) if run.header.validation_samples else None
    kind = "accuracy" if last is None else last.metric_name
    part = _evaluated(run)
    return {
        "ranks": run.header.ranks,
        "epochs": len(run.epochs),
        "validation_samples": run.header.validation_samples or None,
        "train_loss": None if last is None else last.train_loss,
        f"{part}_loss": None if last is None else last.validation_loss,
        f"{part}_accuracy": None if last is None or kind != "accuracy" else last.metric,
        f"{part}_r2": None if last is None or kind != "R²" else last.metric,
        "best" if monitor == "auto" else f"best_{monitor}": None if best is None else watched(best, monitor),
        "best_epoch": None if best is None else best.epoch,
        "seconds_per_epoch": None if run.untimed else run.seconds_per_epoch,
        "diverged": "" if run.diverged is None else f"epoch {run.diverged.epoch}",
    }


def _evaluated(run: RunRecord) -> str:
    """Name of the split on which the epochs were evaluated."""
    return "validation" if run.header.validation_samples else "test"


def _draw(runs: Sequence[RunRecord], settings: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the curves of runs, named by their folders and the settings in which they differ.

    A setting that only some runs have, as those of an optimizer, counts where these differ.
    """
    from hybridnn.drawing.figures import figure_bytes, write_picture
    from hybridnn.drawing.learning_curve import RunCurves, compared_curves
    from hybridnn.runs.quantities import differing

    if not any(epoch.validation_loss is not None for run in runs for epoch in run.epochs):
        raise DataError("--plot: none of the runs has an epoch with an evaluation")
    found = dict.fromkeys(chain.from_iterable(settings))
    names = [name for name in found if differing([{name: one[name]} for one in settings if name in one])]
    curves = [
        RunCurves(_label(run, {name: own[name] for name in names if name in own}), run.epochs, _evaluated(run))
        for run, own in zip(runs, settings, strict=True)
    ]
    write_picture(path, partial(figure_bytes, compared_curves(curves)), "--plot")


def _label(run: RunRecord, settings: Mapping[str, Any]) -> str:
    parts = [f"{name} {_text(value)}" for name, value in settings.items()]
    parts += [] if run.diverged is None else [f"diverged in epoch {run.diverged.epoch}"]
    return f"{run.folder}: {', '.join(parts)}" if parts else str(run.folder)


def _text(value: object, is_figure: object = None) -> str:
    if value is None or value == "":
        return MISSING
    if isinstance(value, float):
        return figure_text(value) if is_figure else f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _stall_facts(record: StallRecord) -> dict[str, object]:
    return {
        "findings": [asdict(finding) for finding in record.findings],
        "job": None if record.job is None else asdict(record.job),
        "states": [asdict(state) for state in record.states.values()],
    }


def _print_run(run: RunRecord, figures: RunFigures, instructions: Sequence[InstructionFigures]) -> None:
    """Print the header, and measured beside predicted seconds per step: of the step, its parts and its instructions."""
    from hybridnn.cli.train_view import header_table
    from hybridnn.diagnostics.hosts import MOST_DISTURBANCE, disturbance_text
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


def _print_groups(console: Console, groups: Sequence[Sequence[Comparison]]) -> None:
    """Print the strong-scaling table of each group, with the conditions that distinguish it from the others."""
    from hybridnn.runs.quantities import differing
    from hybridnn.study.answer import group_warnings
    from hybridnn.study.results import mark_note

    distinguishing = [name for name in differing([group[0].base.values for group in groups]) if name not in NAMED]
    for group in groups:
        base = group[0].base.first
        data = f"{base.data} ({base.train_samples:,} training samples)"
        repeats = " and its repeats" * (len(group[0].base.cells) > 1)
        base_text = f"{counted(base.ranks, 'rank')}, {base.folder}{repeats}"
        shown = [f"{name} = {base.conditions[name]}" for name in distinguishing if name in base.conditions]
        title = ", ".join([f"{base.network} on {data}", *shown])
        console.print(f"{title}; speed-up against {base_text}", soft_wrap=True)
        print_table(console, _scaling_table(group))
        lines = []
        for figures in (cell.figures for found in group for cell in found.point.cells):
            method = f", {figures.method}" if figures.method else ""
            end = "" if figures.diverged_at is None else f"; diverged at step {figures.diverged_at}"
            lines.append(f"  {counted(figures.ranks, 'rank')}, {figures.grid}{method}: {figures.verdict.text}{end}")
        console.print(*dict.fromkeys(lines), sep="\n")
        if note := mark_note(found.point for found in group):
            console.print(note)
        for warning in group_warnings(group):
            console.print(f"warning: {warning}", soft_wrap=True)
        console.print()


def _run_facts(run: RunRecord, figures: RunFigures, instructions: Sequence[InstructionFigures]) -> dict[str, Any]:
    prediction = None if run.prediction is None else asdict(run.prediction)
    facts = [{**asdict(item), "error": item.error} for item in instructions]
    staleness = {"mean_staleness": run.header.mean_staleness, "stage_staleness": run.header.stage_staleness}
    return {**_facts(figures), **staleness, "prediction": prediction, "instructions": facts}


def _facts(figures: RunFigures) -> dict[str, Any]:
    return {**asdict(figures), "prediction_error": figures.prediction_error}


def _group_facts(group: Sequence[Comparison]) -> dict[str, Any]:
    from hybridnn.study.answer import group_warnings

    rows = [
        {
            **_facts(cell.figures),
            "disturbance": cell.run.disturbance,
            "speed_up": compared.speed_up.value,
            "speed_up_interval": (compared.speed_up.low, compared.speed_up.high),
            "efficiency": compared.efficiency.value,
            "predicted_speed_up": compared.predicted_speed_up,
        }
        for compared in group
        for cell in compared.point.cells
    ]
    base = group[0].base.first
    return {"base": base.folder, "base_ranks": base.ranks, "runs": rows, "warnings": group_warnings(group)}


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


def _scaling_table(group: Sequence[Comparison]) -> Table:
    """A row for each point; of three repeats or more, with intervals."""
    from hybridnn.runs.quantities import relative_error
    from hybridnn.study.results import marked

    rows = [
        (
            str(point.first.ranks),
            point.first.grid,
            point.first.method or MISSING,
            str(point.first.batch_size),
            marked(point.seconds_per_epoch.format(), point.is_disturbed),
            marked("1.00" if point is compared.base else compared.judged.text, compared.is_disturbed),
            marked(compared.efficiency.format(".0%"), compared.is_disturbed),
            number_cell(compared.predicted_speed_up, ".2f"),
            number_cell(relative_error(point.predicted_seconds_per_epoch, point.seconds_per_epoch.value), "+.0%"),
            number_cell(point.shares.communicate, ".0%"),
            number_cell(point.shares.bubble, ".0%"),
            number_cell(point.shares.wait, ".0%"),
        )
        for point, compared in ((compared.point, compared) for compared in group)
    ]
    titles = ("grid", "method", "batch", "s per\nepoch", "speed-\nup", "effi-\nciency")
    more = ("predicted\nspeed-up", "step\nerror", "comm.", "bubble", "wait")
    return new_table(("ranks",), (*titles, *more), rows, show_edge=False, padding=(0, 1, 0, 0))


def _milliseconds(seconds: float | None) -> str:
    return MISSING if seconds is None or isnan(seconds) else format_milliseconds(seconds)
