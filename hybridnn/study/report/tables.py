"""Tables of a study: its cells as CSV, its points as Markdown, as text or as plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from hybridnn.study.report.results import Spread, StudyPoint, StudyResults
from hybridnn.study.report.scaling import speed_ups, warnings_of

MISSING = "-"
THREADS = "threads per rank"
FIGURES = (
    "ranks",
    "grid",
    "threads_per_rank",
    "nodes",
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
    "predicted_seconds_per_epoch",
    "predicted_seconds_per_step",
)
"""Columns of the CSV that are attributes of `RunFigures`."""


def csv_text(results: StudyResults) -> str:
    """One line for each finished cell: its id, axes (``axis.width``) and figures; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    labels = list(dict.fromkeys(label for cell in results.cells for label in cell.values))
    shares = ("communication_share", "waiting_share")
    writer.writerow(["id", *(f"axis.{label}" for label in labels), *FIGURES, *shares, "verdict"])
    for cell in results.cells:
        figures = cell.figures
        writer.writerow(
            [
                cell.id,
                *(cell.values.get(label) for label in labels),
                *(getattr(figures, name) for name in FIGURES),
                figures.shares.communication,
                figures.shares.waiting,
                figures.verdict.text,
            ]
        )
    return text.getvalue()


def markdown_text(results: StudyResults) -> str:
    """The study's name, description, warnings, the table of its points and the unfinished cells."""
    titles, rows = point_rows(results)
    manifest = results.manifest
    lines = [f"# {manifest.name}{', reduced' * manifest.reduced}", "", manifest.description, ""]
    lines += [f"**Warning:** {text}\n" for text in warnings_of(results)]
    lines += [_line(titles), _line(["---"] * len(titles)), *(_line(row) for row in rows), "", _note(results), ""]
    if results.unfinished:
        lines += [f"Not finished: {len(results.unfinished)} cells ({results.unfinished_counts})", ""]
        lines += [f"* **{cell.state.status}** {cell.text}" for cell in results.unfinished] + [""]
    return "\n".join(lines)


def point_rows(results: StudyResults) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the table of points; it has a column of nodes where some cell ran on several."""
    labels = [label for label in results.varying if label not in ("ranks", "grid")]
    relative = speed_ups(results)
    several_nodes = any(cell.figures.nodes > 1 for cell in results.cells)
    titles = [
        "ranks",
        "grid",
        THREADS,
        *["nodes"] * several_nodes,
        *labels,
        "seconds per epoch",
        "speed-up",
        "predicted s per epoch",
    ]
    titles += [results.metric_name, "limited by"]
    rows = []
    for point in results.points:
        values, (speed_up, base) = dict(point.values), relative[point.cells[0].id]
        rows.append(
            [
                str(point.first.ranks),
                point.first.grid,
                _distinct(cell.figures.threads_per_rank for cell in point.cells),
                *[_distinct(cell.figures.nodes for cell in point.cells)] * several_nodes,
                *(str(values.get(label, MISSING)) for label in labels),
                _spread(point.seconds_per_epoch),
                f"{speed_up:.2f}" + f" (against {base})" * (base > 1),
                _number(point.predicted_seconds_per_epoch),
                _spread(point.metric),
                point.first.verdict.limit,
            ]
        )
    return titles, rows


def point_facts(results: StudyResults) -> list[dict[str, Any]]:
    """Return the points as plain values, with units in the names."""
    relative = speed_ups(results)
    return [_facts(point, *relative[point.cells[0].id]) for point in results.points]


def _facts(point: StudyPoint, speed_up: float, base: int) -> dict[str, Any]:
    metric = point.metric
    return {
        "values": dict(point.values),
        "cells": [cell.id for cell in point.cells],
        "ranks": point.first.ranks,
        "grid": point.first.grid,
        "threads_per_rank": sorted({cell.figures.threads_per_rank for cell in point.cells}),
        "nodes": sorted({cell.figures.nodes for cell in point.cells}),
        "network": point.first.network,
        "seconds_per_epoch": asdict(point.seconds_per_epoch),
        "seconds_per_step": asdict(point.seconds_per_step),
        "predicted_seconds_per_epoch": point.predicted_seconds_per_epoch,
        "speed_up": speed_up,
        "speed_up_against_ranks": base,
        "efficiency": speed_up * base / point.first.ranks,
        "metric_name": point.first.metric_name,
        "metric": None if metric is None else asdict(metric),
        "verdict": point.first.verdict.text,
    }


def _note(results: StudyResults) -> str:
    repeated = max(len(point.cells) for point in results.points)
    medians = f"Medians of up to {repeated} runs, with the least and the greatest. " if repeated > 1 else ""
    return f"{medians}Times are of training alone: the median of a run's epochs, without the first if there are more."


def _distinct(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return MISSING
    extremes = "" if spread.least == spread.most else f" ({spread.least:.4g} to {spread.most:.4g})"
    return f"{spread.median:.4g}{extremes}"


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"
