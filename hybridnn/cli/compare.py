"""`hybridnn compare`: what differs between runs, and how good and how fast they were."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import Format, OutputFormat, option
from hybridnn.cli.output import MISSING, make_console, new_table, require_place, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import DataError, SettingError
from hybridnn.utils.text import figure_text

if TYPE_CHECKING:
    from hybridnn.runs.run_files import RunRecord

FIGURE = re.compile("loss|accuracy|r2|^best(?!_epoch)")  # names of losses and metrics


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Two run folders or more.", metavar="RUN...")],
    output_format: OutputFormat = Format.text,
    plot: Annotated[
        Path | None,
        option("Draw the learning curves of all runs into a .svg, .png or .pdf (default: no picture).", "FILE"),
    ] = None,
) -> None:
    """List the settings in which runs differ, with their losses, accuracies and times."""
    from hybridnn.runs.run_files import read_run
    from hybridnn.utils.settings_models import by_dotted_name

    if len(folders) < 2:
        raise SettingError("RUN...", str(folders[0]), "two run folders or more")
    if plot is not None:
        require_place("--plot", plot)
    with first_rank_alone():
        runs = [read_run(folder) for folder in folders]
        settings = [by_dotted_name(run.settings.model_dump(exclude={"output"})) for run in runs]
        names = [name for name in dict.fromkeys(name for one in settings for name in one) if _differ(settings, name)]
        if plot is not None:
            _draw(runs, settings, plot)
        results = [_results(run) for run in runs]
        if output_format is Format.json:
            write_json(
                {
                    "runs": [
                        {"run": str(run.folder), "settings": {name: one.get(name) for name in names}, **result}
                        for run, one, result in zip(runs, settings, results, strict=True)
                    ]
                }
            )
            return
        rows = [(name, *(_text(one.get(name)) for one in settings)) for name in names]
        for name in dict.fromkeys(chain.from_iterable(results)):
            rows.append((name.replace("_", " "), *(_text(result.get(name), FIGURE.search(name)) for result in results)))
        rows = [row for row in rows if any(cell != MISSING for cell in row[1:])]
        make_console().print(new_table(("",), tuple(str(run.folder) for run in runs), rows, wraps=True))


def _differ(settings: list[dict[str, Any]], name: str) -> bool:
    return any(one.get(name) != settings[0].get(name) for one in settings)


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


def _draw(runs: list[RunRecord], settings: list[dict[str, Any]], path: Path) -> None:
    """Draw the curves of runs, named by their folders and the settings in which they differ.

    A setting that only some runs have, as those of an optimizer, counts where these differ.
    """
    from hybridnn.drawing.figures import write_picture
    from hybridnn.drawing.learning_curve import RunCurves, compared_curves

    if not any(epoch.validation_loss is not None for run in runs for epoch in run.epochs):
        raise DataError("--plot: none of the runs has an epoch with an evaluation")
    found = dict.fromkeys(name for one in settings for name in one)
    names = [name for name in found if _differ([one for one in settings if name in one], name)]
    curves = [
        RunCurves(_label(run, {name: own[name] for name in names if name in own}), run.epochs, _evaluated(run))
        for run, own in zip(runs, settings, strict=True)
    ]
    write_picture(path, compared_curves(curves).encoded, "--plot")


def _label(run: RunRecord, settings: dict[str, Any]) -> str:
    parts = [f"{name} {_text(value)}" for name, value in settings.items()]
    parts += [] if run.diverged is None else [f"diverged in epoch {run.diverged.epoch}"]
    return f"{run.folder}: {', '.join(parts)}" if parts else str(run.folder)


def _text(value: object, is_figure: object = None) -> str:
    if value is None or value == "":
        return MISSING
    if isinstance(value, float):
        return figure_text(value) if is_figure else f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
