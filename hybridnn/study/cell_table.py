"""The cells of a study as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from hybridnn.study.measures import measured
from hybridnn.study.results import StudyResults
from hybridnn.study.scaling import compare_points
from hybridnn.study.verdicts import named_measures

FIGURES = (
    "ranks",
    "grid",
    "threads_per_rank",
    "nodes",
    "method",
    "network",
    "parameters",
    "batch_size",
    "train_samples",
    "steps_per_epoch",
    "seconds_per_epoch",
    "seconds_per_step",
    "samples_per_second",
    "bytes_per_step",
    "metric_name",
    "metric",
    "diverged_at",
    "predicted_seconds_per_epoch",
    "predicted_seconds_per_step",
    "prediction_error",
)
"""Columns of the CSV that are attributes of `RunFigures`."""

HOST_COLUMNS = {
    "hosts": "names",
    "ranks_on_hosts": "ranks",
    "cpu_model": "processors",
    "cores_per_node": "cores",
    "binding": "binding",
    "launcher": "launcher",
    "blas": "blas",
}
"""Columns of the CSV that are attributes of `Hosts`."""


def csv_text(results: StudyResults) -> str:
    """One line for each cell: its id, outcome, axes (``axis.width``) and figures; missing values are empty."""
    labels = list(dict.fromkeys(label for cell in results.manifest.cells for label in cell.values))
    figures = {row["id"]: row for row in _cell_figures(results)}
    outcomes = {cell.id: "diverged" if cell.diverged else "finished" for cell in results.cells}
    outcomes |= {cell.id: cell.state.status for cell in results.unfinished}
    rows = [
        {
            "id": cell.id,
            "outcome": outcomes[cell.id],
            **{f"axis.{label}": cell.values.get(label) for label in labels},
            **figures.get(cell.id, {}),
        }
        for cell in results.manifest.cells
    ]
    return write_csv(rows)


def _cell_figures(results: StudyResults) -> Iterator[dict[str, Any]]:
    """Figures of the finished cells by column; speed-ups are those of the cell, against the median of the base."""
    comparisons = compare_points(results)
    names, target = named_measures(results), results.manifest.conclusions.target
    for point in results.points:
        found, median = comparisons.get(point.cells[0].id), point.seconds_per_epoch.value
        for cell in point.cells:
            header, figures = cell.run.header, cell.figures
            last = cell.run.epochs[-1] if cell.run.epochs else None
            faster = median / figures.seconds_per_epoch
            hosts = {} if header.hosts is None else asdict(header.hosts)
            yield {
                "id": cell.id,
                **{name: _known(getattr(figures, name)) for name in FIGURES},
                "dtype": header.dtype,
                "train_loss": last.train_loss if last else None,
                "test_loss": last.test_loss if last else None,
                "speed_up": None if found is None else _known(found.speed_up.value * faster),
                "efficiency": None if found is None else _known(found.efficiency.value * faster),
                "communication_share": _known(figures.shares.communication),
                "waiting_share": figures.shares.waiting,
                "verdict": figures.verdict.text,
                **{f"measure.{name}": measured(cell.run, figures, name, target) for name in names},
                **{name: _joined(hosts.get(key, ())) for name, key in HOST_COLUMNS.items()},
                **{f"version.{name}": version for name, version in header.versions.items()},
            }


def _joined(values: Any) -> str:
    return values if isinstance(values, str) else ", ".join(map(str, values))


def write_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with the columns of all rows in the order of their appearance.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _known(figure: Any) -> Any:
    """None in place of NaN, which a run without times has."""
    return None if isinstance(figure, float) and isnan(figure) else figure
