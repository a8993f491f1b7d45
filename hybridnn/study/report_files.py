"""Files of a study's report: cells and curves as CSV, tables as Markdown and LaTeX, plots, and a page of HTML."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from hybridnn.comm.hosts import Hosts
from hybridnn.drawing.figures import FORMATS, figure_bytes
from hybridnn.study.cell_table import csv_text, write_csv
from hybridnn.study.folders import FOLDER, compared_folders, equal_points, times_as_fast
from hybridnn.study.publication import latex_table, plotted_points
from hybridnn.study.report_plots import draw_plots
from hybridnn.study.results import CellResult, StudyPoint, StudyResults
from hybridnn.study.scaling import Comparison, base_ranks, baseline_text, compare_points, warnings_of
from hybridnn.study.statistics import CONFIDENCE, LEAST_REPEATS
from hybridnn.study.verdicts import (
    Verdict,
    best_points,
    measure_columns,
    verdict_lines,
    verdicts_of,
    verdicts_summary,
)
from hybridnn.utils.files import write_atomically

MISSING = "-"
THREADS = "threads per rank"
TIMES = "the median of a run's epochs, without the first if there are more"

BREAKDOWN = (
    "Shares of the time of a step, as means over the ranks. The share of computing is the parallel efficiency of the "
    "POP metrics, the product of load balance and communication efficiency; the serial fraction is that of Karp and "
    "Flatt."
)

FOLDERS = "Times as fast: seconds per epoch of the first folder that has the point over those of the named one."

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.2rem; }
figure { margin: 1.5rem 0; } img { max-width: 100%; } figcaption { color: #5f6b7a; max-width: 48rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: .25rem .7rem; text-align: right; }
th { border-bottom: 2px solid #d7dce2; } td { border-bottom: 1px solid #eef1f4; white-space: nowrap; }
table.facts th, table.facts td { text-align: left; border: 0; vertical-align: top; white-space: normal; }
.warning { border-left: 4px solid #b7791f; padding-left: .7rem; }
.failed { color: #b42318; } .timed-out { color: #b7791f; } .interrupted { color: #6b46c1; }
.running { color: #23669c; } .never-run { color: #5f6b7a; }
details { border-left: 4px solid #d7dce2; padding-left: .7rem; margin: .4rem 0; }
details.agrees { border-color: #3a8f5c; } details.does-not { border-color: #b42318; }
"""


def write_report(results: StudyResults, folder: Path) -> list[Path]:
    """Write the cells and the points of the plots as CSV, tables as Markdown and LaTeX, every plot, and a page.

    The plots are PNG, SVG and PDF. Returns the files, the page last; raises `EnvironmentProblem` if one cannot be
    written.
    """
    plots = draw_plots(results)
    drawings = {f"{name}.{kind}": figure_bytes(figure, kind) for name, (_, figure) in plots.items() for kind in FORMATS}
    pictures = [(caption, drawings[f"{name}.png"]) for name, (caption, _) in plots.items()]
    points = plotted_points({name: figure for name, (_, figure) in plots.items()})
    contents: dict[str, str | bytes] = {
        "results.csv": csv_text(results),
        **({"curves.csv": write_csv(points)} if points else {}),
        "tables.md": markdown_text(results),
        "tables.tex": latex_text(results),
        **drawings,
        "index.html": page_html(results, pictures),
    }
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def point_facts(results: StudyResults) -> list[dict[str, Any]]:
    """Return the points as plain values, with units in the names."""
    comparisons = compare_points(results)
    return [
        {
            "values": point.values,
            "cells": [cell.id for cell in point.cells],
            "ranks": point.first.ranks,
            "grid": point.first.grid,
            "threads_per_rank": sorted({cell.figures.threads_per_rank for cell in point.cells}),
            "nodes": sorted({cell.figures.nodes for cell in point.cells}),
            "hosts": sorted({name for hosts in _hosts_of(point.cells) for name in hosts.names}),
            "processors": sorted({name for hosts in _hosts_of(point.cells) for name in hosts.processors}),
            "network": point.first.network,
            "seconds_per_epoch": asdict(point.seconds_per_epoch),
            "seconds_per_step": asdict(point.seconds_per_step),
            "predicted_seconds_per_epoch": point.predicted_seconds_per_epoch,
            **_comparison_facts(comparisons.get(point.cells[0].id)),
            **_share_facts(point),
            "metric_name": point.first.metric_name,
            "metric": None if point.metric is None else asdict(point.metric),
            "verdict": point.first.verdict.text,
        }
        for point in results.points
    ]


def _hosts_of(cells: Iterable[CellResult]) -> list[Hosts]:
    """The hosts of the cells whose runs recorded them."""
    return [cell.run.header.hosts for cell in cells if cell.run.header.hosts is not None]


def _comparison_facts(found: Comparison | None) -> dict[str, Any]:
    return {
        "speed_up": None if found is None else asdict(found.speed_up),
        "speed_up_against": None if found is None else found.base.cells[0].id,
        "speed_up_against_ranks": None if found is None else found.base.first.ranks,
        "efficiency": None if found is None else asdict(found.efficiency),
        "serial_fraction": None if found is None else found.serial_fraction,
    }


def _share_facts(point: StudyPoint) -> dict[str, float | None]:
    shares = point.shares
    return {
        "computing_share": shares.computing,
        "communication_share": shares.communication,
        "waiting_share": shares.waiting,
        "overhead_share": shares.overhead,
        "load_balance": shares.load_balance,
        "communication_efficiency": shares.communication_efficiency,
    }


def point_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of points: cells by title.

    It has a column of nodes where some cell ran on several, and one of predictions where there are some. A study whose
    ranks take turns in one process has no columns of times.
    """
    on_several_nodes = any(cell.figures.nodes > 1 for cell in results.cells)
    is_predicted = any(point.predicted_seconds_per_epoch is not None for point in results.points)
    comparisons, bases = compare_points(results), base_ranks(results)

    def times(point: StudyPoint) -> dict[str, str]:
        compared = _comparison_row(comparisons.get(point.cells[0].id), names_base=len(bases) > 1)
        return {"seconds per epoch": point.seconds_per_epoch.format(), **compared}

    return [
        {
            "ranks": str(point.first.ranks),
            "grid": point.first.grid,
            THREADS: _distinct(sorted({cell.figures.threads_per_rank for cell in point.cells})),
            **({"nodes": _distinct(sorted({cell.figures.nodes for cell in point.cells}))} if on_several_nodes else {}),
            **_named_values(results, point),
            **(times(point) if results.is_timed else {}),
            **({"predicted s per epoch": _number(point.predicted_seconds_per_epoch, ".4g")} if is_predicted else {}),
            results.metric_name: MISSING if point.metric is None else point.metric.format(),
            **measure_columns(results, point),
            **({"limited by": point.first.verdict.limit} if results.is_timed else {}),
        }
        for point in best_points(results)
    ]


def _named_values(results: StudyResults, point: StudyPoint) -> dict[str, str]:
    """The values of the axes that vary, but for ranks and grid, which have columns in any case."""
    labels = [label for label in results.varying if label not in ("ranks", "grid")]
    return {label: str(point.values.get(label, MISSING)) for label in labels}


def _comparison_row(found: Comparison | None, *, names_base: bool) -> dict[str, str]:
    if found is None:
        return dict.fromkeys(("speed-up", "efficiency"), MISSING)
    base = found.base.first.ranks
    speed_up = found.speed_up.format(".2f") + f" (against {base})" * (names_base and base > 1)
    # Its interval is that of the speed-up, in another unit.
    return {"speed-up": speed_up, "efficiency": f"{found.efficiency.value:.2f}"}


def further_tables(results: StudyResults) -> list[tuple[str, list[dict[str, str]], str]]:
    """Title, rows and note of the tables after that of the points, but for those without rows."""
    tables = [
        ("Folders side by side", folder_rows(results), FOLDERS),
        ("Where the time goes", breakdown_rows(results) if results.is_timed else [], BREAKDOWN),
    ]
    return [table for table in tables if table[1]]


def folder_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of equal points of several folders: cells by title; empty for one folder."""
    folders = compared_folders(results)
    rows = []
    for points in equal_points(results):
        first, ratios = next(iter(points.values())), times_as_fast(points)
        values = {label: text for label, text in _named_values(results, first).items() if label != FOLDER}
        row = {"ranks": str(first.first.ranks), "grid": first.first.grid, **values}
        for folder in folders:
            seconds = points[folder].seconds_per_epoch.format() if folder in points else MISSING
            row[f"{folder}: seconds per epoch"] = seconds
            if folder != folders[0]:
                row[f"{folder}: times as fast"] = ratios[folder].format(".3f") if folder in ratios else MISSING
        for folder in folders:
            metric = points[folder].metric if folder in points else None
            row[f"{folder}: {results.metric_name}"] = MISSING if metric is None else metric.format()
        rows.append(row)
    return rows


def folder_facts(results: StudyResults) -> list[dict[str, Any]]:
    """Return the equal points of several folders as plain values."""
    return [
        {
            "values": {label: value for label, value in point.values.items() if label != FOLDER},
            "seconds_per_epoch": {folder: asdict(found.seconds_per_epoch) for folder, found in points.items()},
            "times_as_fast": {folder: asdict(ratio) for folder, ratio in times_as_fast(points).items()},
        }
        for points in equal_points(results)
        for point in [next(iter(points.values()))]
    ]


def breakdown_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of where the time of the points goes: cells by title; empty where no run has records of its steps."""
    comparisons = compare_points(results)
    rows = []
    for point in results.points:
        shares, found = point.shares, comparisons.get(point.cells[0].id)
        if shares.overhead is None:
            continue
        parts = ("computing", "communication", "waiting", "overhead")
        rows.append(
            {"ranks": str(point.first.ranks), "grid": point.first.grid, **_named_values(results, point)}
            | {part: _number(getattr(shares, part), ".1%") for part in parts}
            | {
                "load balance": _number(shares.load_balance, ".3f"),
                "communication efficiency": _number(shares.communication_efficiency, ".3f"),
                "serial fraction": _number(None if found is None else found.serial_fraction, ".4f"),
            }
        )
    return rows


def _number(value: float | None, spec: str) -> str:
    return MISSING if value is None else f"{value:{spec}}"


def _distinct(values: Iterable[object]) -> str:
    """The distinct values in order of appearance."""
    return ", ".join(dict.fromkeys(map(str, values)))


def markdown_text(results: StudyResults) -> str:
    """The study's name, description, verdicts, warnings, tables, unfinished cells, and how it was made."""
    rows = point_rows(results)
    verdicts = verdicts_of(results)
    summary = f"**{verdicts_summary(verdicts, results.manifest.paper)}**\n" if verdicts else ""
    lines = [f"# {results.title}", "", *filter(None, [summary]), results.manifest.description, ""]
    for statement, *pairs in map(verdict_lines, verdicts):
        lines += [f"* {statement}", *(f"    * {pair}" for pair in pairs)]
    lines += [""] * bool(verdicts)
    lines += [f"**Warning:** {text}\n" for text in warnings_of(results)]
    lines += [*_table(rows), _table_note(results), ""]
    for title, table, note in further_tables(results):
        lines += [f"## {title}", "", *_table(table), note, ""]
    if results.unfinished:
        lines += [f"Not finished: {len(results.unfinished)} cells ({results.unfinished_counts})", ""]
        lines += [f"* **{cell.state.status}** {cell.text}" for cell in results.unfinished] + [""]
    lines += ["## How it was made", "", *(f"* {name}: {text}" for name, text in _conditions(results).items()), ""]
    return "\n".join(lines)


def latex_text(results: StudyResults) -> str:
    """The tables of the study, each to be put into a ``table``; the package booktabs is needed."""
    notes = [*(f"Warning: {text}." for text in warnings_of(results)), _table_note(results)]
    tables = [f"% {results.title}: the points of the study\n", latex_table(point_rows(results), notes)]
    if verdicts := verdicts_of(results):
        rows = [{"statement": found.title, "expected": found.expected, "verdict": found.outcome} for found in verdicts]
        tables += ["\n% Verdicts\n", latex_table(rows, [verdicts_summary(verdicts, results.manifest.paper)])]
    for title, table, note in further_tables(results):
        tables += [f"\n% {title}\n", latex_table(table, [note])]
    return "".join(tables)


def _table_note(results: StudyResults) -> str:
    times = f" Times are of training alone: {TIMES}." if results.is_timed else ""
    return conditions_text(results) + times


def conditions_text(results: StudyResults) -> str:
    """Return the sentences on what the tables compare, and how: repeats, intervals, base of the speed-ups."""
    repeated = max(len(point.cells) for point in results.points)
    seeds = max(len({str(cell.values.get("seed")) for cell in point.cells}) for point in results.points)
    sentences = [f"Medians of up to {repeated} runs" if repeated > 1 else "Single runs"]
    if repeated >= LEAST_REPEATS:
        sentences[0] += f" [{CONFIDENCE:.0%} confidence interval, bootstrap]"
    if seeds > 1:
        means = f"results of the training are means ± standard deviations over up to {seeds} seeds"
        sentences = [sentences[0], means.capitalize()] if results.is_timed else [means.capitalize()]
    if results.is_timed:
        sentences.append(f"Speed-up against {baseline_text(results)}")
    if best_over := results.manifest.conclusions.best_over:
        sentences.append(f"Of {', '.join(best_over)} the value of the best metric")
    return " ".join(f"{sentence}." for sentence in sentences)


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [_line(rows[0]), _line(["---"] * len(rows[0])), *(_line(row.values()) for row in rows), ""]


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def page_html(results: StudyResults, pictures: Iterable[tuple[str, bytes]]) -> str:
    """Make the page: plots, warnings, table, unfinished cells, and the conditions of the measurement.

    `pictures` are the caption and PNG of each plot; the page embeds them.
    """
    title = escape(results.title)
    verdicts = verdicts_of(results)
    body = [
        f"<h1>{title}</h1>",
        *([f"<p><b>{escape(verdicts_summary(verdicts, results.manifest.paper))}</b></p>"] if verdicts else []),
        f"<p>{escape(results.manifest.description)}</p>",
        *(_html_verdict(verdict) for verdict in verdicts),
        *(_figure(caption, png) for caption, png in pictures),
        "<h2>Results</h2>",
        *(f'<p class="warning">Warning: {escape(text)}</p>' for text in warnings_of(results)),
        _html_table(point_rows(results)),
        f"<p>{escape(conditions_text(results))}</p>",
    ]
    for heading, table, note in further_tables(results):
        body += [f"<h2>{heading}</h2>", _html_table(table), f"<p>{escape(note)}</p>"]
    if results.unfinished:
        body += [f"<h2>Not finished: {len(results.unfinished)} cells ({escape(results.unfinished_counts)})</h2>"]
        body += [_facts((cell.state.status, cell.id, cell.state.reason) for cell in results.unfinished)]
    body += ["<h2>How it was made</h2>", _facts(_conditions(results).items())]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    lines = "\n".join(body)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{lines}\n</body></html>\n'


def _html_verdict(verdict: Verdict) -> str:
    statement, *pairs = map(escape, verdict_lines(verdict))
    items = "".join(f"<li>{pair}</li>" for pair in pairs)
    return (
        f'<details class="{verdict.outcome.replace(" ", "-")}"><summary>{statement}</summary><ul>{items}</ul></details>'
    )


def _html_table(rows: Sequence[Mapping[str, str]]) -> str:
    lines = "".join(f"<tr>{_cells('td', row.values())}</tr>\n" for row in rows)
    head = f"<thead><tr>{_cells('th', rows[0])}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{lines}</tbody></table></div>'


def _figure(caption: str, png: bytes) -> str:
    data = b64encode(png).decode("ascii")
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def _facts(rows: Iterable[tuple[str, ...]]) -> str:
    """A table whose rows begin with a name, which is also the class of its style."""
    lines = [
        f'<tr><th class="{name.replace(" ", "-")}">{escape(name)}</th>{_cells("td", texts)}</tr>\n'
        for name, *texts in rows
    ]
    return f'<table class="facts">{"".join(lines)}</table>'


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _conditions(results: StudyResults) -> dict[str, str]:
    headers = [cell.run.header for cell in results.cells]
    hosts = _hosts_of(results.cells)
    predictions = [cell.run.prediction for cell in results.cells if cell.run.prediction is not None]
    return {
        "date": results.days,
        "cells": f"{len(results.cells)} of {len(results.manifest.cells)} finished",
        "versions": _distinct(f"{name} {version}" for header in headers for name, version in header.versions.items()),
        "nodes": _distinct(header.nodes for header in headers),
        "hosts": _distinct(name for h in hosts for name in h.names) or MISSING,
        "processors": _distinct(name for h in hosts for name in h.processors) or MISSING,
        "cores of a node": _distinct(number for h in hosts for number in h.cores) or MISSING,
        "binding": _distinct(h.binding for h in hosts) or MISSING,
        "launcher": _distinct(h.launcher or "none" for h in hosts) or MISSING,
        "BLAS": _distinct(h.blas for h in hosts) or MISSING,
        "machine file": _distinct(found.machine for found in predictions) or MISSING,
        "BLAS threads per rank": _distinct(header.threads_per_rank for header in headers),
        "data": _distinct(f"{h.data}, {h.train_samples:,} training samples" for h in headers),
        "epochs": _distinct(cell.run.settings.training.epochs for cell in results.cells),
        "precision": _distinct(header.dtype for header in headers),
        "times": f"training without evaluation; {TIMES}",
    }
