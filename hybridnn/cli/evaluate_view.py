"""What `hybridnn evaluate` prints."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hybridnn.cli.output import make_console, print_json
from hybridnn.cli.trained_options import warn_of_columns, warn_of_damage, weights_words

if TYPE_CHECKING:
    from hybridnn.runs.inference.evaluation import Evaluation
    from hybridnn.runs.inference.trained_run import TrainedRun


def print_evaluation(run: TrainedRun, result: Evaluation, *, as_json: bool) -> None:
    """Print figures, and what they are of, as text or JSON; damaged checkpoints are named on the error stream."""
    warn_of_damage(run.source)
    warn_of_columns(result.data, result.ignored)
    if as_json:
        print_json(evaluation_facts(run, result))
        return
    from rich.table import Table

    metrics = result.metrics
    quality = ("R²", metrics.r2) if metrics.accuracy is None else ("accuracy", metrics.accuracy)
    rows = {
        "weights": weights_words(run.source),
        "data": f"{result.data}, {'all' if result.part == 'all' else f'the {result.part} part'}",
        "samples": f"{metrics.samples:,}",
        "loss": f"{metrics.loss:.6g}",
        quality[0]: "not a number" if quality[1] is None else f"{quality[1]:.6g}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, value)
    make_console(sys.stdout).print(table)


def evaluation_facts(run: TrainedRun, result: Evaluation) -> dict[str, Any]:
    """All figures of an evaluation."""
    return {
        "run": str(run.folder),
        "weights": {"path": str(run.source.path), "step": run.source.step, "damaged": list(run.source.damaged)},
        "data": result.data,
        "part": result.part,
        **asdict(result.metrics),
    }
