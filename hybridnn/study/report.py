"""Files of a study's report: cells as CSV, tables as LaTeX, plots, and the report as Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from math import isnan
from pathlib import Path
from typing import Any

from hybridnn.drawing.figures import COLUMN, figure_bytes
from hybridnn.runs.quantities import RunFigures
from hybridnn.study.answer import (
    TIMES,
    accuracy_note,
    accuracy_rows,
    answers_of,
    compare_trainings,
    conditions_text,
    fastest_layouts,
    warnings_of,
)
from hybridnn.study.plots import draw_plots
from hybridnn.study.results import CellResult, StudyPoint, StudyResults, host_values, mark_note, marked
from hybridnn.study.scaling import baseline_text, compare_points, times_as_fast
from hybridnn.utils.files import TOML_BYTES, read_text, write_atomically

MISSING = "-"
THREADS = "threads per rank"
FASTER = "times as fast"

BREAKDOWN = (
    "Shares of the ranks' time. Compute is the parallel efficiency, and the other parts are what it lacks against the "
    "base of the speed-up. Load balance and communication efficiency are those of the POP metrics; the serial fraction "
    "is that of Karp and Flatt."
)

NO_COLUMNS = {"folder", "data", "shares", "verdict", "conditions", "predicted_bytes_per_step"}
FIGURES = (*(field.name for field in fields(RunFigures) if field.name not in NO_COLUMNS), "prediction_error")
"""Columns of the CSV that are attributes of `RunFigures`."""

HOSTS = {
    "names": ("hosts", "hosts"),
    "ranks": ("ranks_on_hosts", ""),
    "processors": ("cpu_model", "processors"),
    "cores": ("cores_per_node", "cores of a node"),
    "binding": ("binding", "binding"),
    "launcher": ("launcher", "launcher"),
    "blas": ("blas", "BLAS"),
}
"""Column of the CSV, and name in the conditions of the measurement, of the attributes of `Hosts`."""

LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$"}
    | {"†": r"$\dagger$", "µ": r"$\mu$", "²": r"\textsuperscript{2}", "\u2013": "--", "…": r"\ldots{}"}
)
"""What LaTeX prints for characters that it reads in another way or not at all."""

PLOT_LINK = re.compile(r"^!\[.*\]\(([\w-]+\.(?:svg|png|pdf))\)$", re.MULTILINE)

LATEX_NEEDS = "% needs \\usepackage{booktabs,graphicx}; each table is for a table or table* environment\n"
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"

NUMBER = re.compile(r"-|[-+]?[0-9][0-9.,e+-]*( .*)?")
"""A number, which may be followed by its interval or deviation, or a missing one."""


def write_report(results: StudyResults, folder: Path, picture_format: str = "svg", width: float = COLUMN) -> list[Path]:
    """Write the cells as CSV, the report as Markdown, its tables as LaTeX, and the plots, of a `width` in inches.

    Other plots of an earlier report are removed. Returns the files, the report last; raises `EnvironmentProblem` if one
    cannot be written.
    """
    plots = draw_plots(results)
    for _, figure in plots.values():
        figure.set_figwidth(width)
    captions = {f"{name}.{picture_format}": caption for name, (caption, _) in plots.items()}
    contents: dict[str, str | bytes] = {
        "results.csv": csv_text(results),
        "tables.tex": latex_text(results),
        **{f"{name}.{picture_format}": figure_bytes(figure, picture_format) for name, (_, figure) in plots.items()},
        "report.md": markdown_text(results, captions),
    }
    earlier = PLOT_LINK.findall(read_text(report, TOML_BYTES)) if (report := folder / "report.md").exists() else ()
    for name, content in contents.items():
        write_atomically(folder / name, content)
    for name in set(earlier) - contents.keys():
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in contents]


def report_facts(results: StudyResults) -> dict[str, Any]:
    """Return what the report says as plain values: points, fastest layouts, verdicts, warnings, unfinished cells."""
    return {
        "study": results.manifest.name,
        "reduced": results.manifest.reduced,
        "paper": results.manifest.paper,
        "summary": results.findings.summary,
        "verdicts": results.findings.verdicts,
        "fastest": [found.facts for found in fastest_layouts(results)],
        "accuracy": [found.facts for found in compare_trainings(results)],
        "speed_ups_against": baseline_text(results),
        "finished_cells": len(results.cells),
        "unfinished": [{"id": name, **asdict(state)} for name, state in results.unfinished.items()],
        "diverged": [cell.id for cell in results.cells if cell.diverged],
        "warnings": warnings_of(results),
        "points": point_facts(results),
    }


def point_facts(results: StudyResults) -> list[dict[str, Any]]:
    """Return the points as plain values, with units in the names."""
    comparisons, ratios = compare_points(results), times_as_fast(results)

    def facts(point: StudyPoint) -> dict[str, Any]:
        found, shares = comparisons.get(point.id), point.shares
        return {
            "values": point.values,
            "cells": [cell.id for cell in point.cells],
            "disturbed_cells": [cell.id for cell in point.cells if cell.is_disturbed],
            "ranks": point.first.ranks,
            "grid": point.first.grid,
            "threads_per_rank": sorted({cell.figures.threads_per_rank for cell in point.cells}),
            "nodes": sorted({cell.figures.nodes for cell in point.cells}),
            "hosts": _values_of(point.cells, "names"),
            "processors": _values_of(point.cells, "processors"),
            "network": point.first.network,
            "seconds_per_epoch": asdict(point.seconds_per_epoch),
            "seconds_per_step": asdict(point.seconds_per_step),
            "predicted_seconds_per_epoch": point.predicted_seconds_per_epoch,
            "speed_up": found and asdict(found.speed_up),
            "speed_up_against": found and found.base.id,
            "speed_up_against_ranks": found and found.base.first.ranks,
            "efficiency": found and asdict(found.efficiency),
            "serial_fraction": found and found.serial_fraction,
            "times_as_fast": asdict(ratios[point.id].speed_up) if point.id in ratios else None,
            **{f"{part}_share": share for part, share in shares.parts.items()},
            "load_balance": shares.load_balance,
            "communication_efficiency": shares.communication_efficiency,
            "metric_name": point.first.metric_name,
            "metric": point.metric and asdict(point.metric),
            "verdict": point.first.verdict.text,
        }

    return [facts(point) for point in results.points]


def _values_of(cells: Iterable[CellResult], name: str) -> list[str]:
    return sorted({text for cell in cells for text in host_values(cell.run.header, name)})


def point_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of points: cells by title.

    It has a column of nodes where some cell ran on several, and one of predictions where there are some. A study whose
    ranks take turns in one process has no columns of times.
    """
    on_several_nodes = any(cell.figures.nodes > 1 for cell in results.cells)
    is_predicted = any(point.predicted_seconds_per_epoch is not None for point in results.points)
    comparisons, findings, ratios = compare_points(results), results.findings, times_as_fast(results)
    several_bases = len({found.base.first.ranks for found in comparisons.values()}) > 1

    def row(point: StudyPoint) -> dict[str, str]:
        found, figures = comparisons.get(point.id), [cell.figures for cell in point.cells]
        cells = {"ranks": str(point.first.ranks), "grid": point.first.grid}
        cells[THREADS] = _distinct(sorted({run.threads_per_rank for run in figures}))
        if on_several_nodes:
            cells["nodes"] = _distinct(sorted({run.nodes for run in figures}))
        cells |= _named_values(results, point)
        if results.timed:
            cells["seconds per epoch"] = marked(point.seconds_per_epoch.format(), point.is_disturbed)
            cells |= dict.fromkeys(("speed-up", "efficiency"), MISSING)
        if found is not None:
            base = found.base.first.ranks
            speed_up = "1.00" if found.base is point else found.judged.text
            speed_up += f" (against {base})" * (several_bases and base > 1)
            cells["speed-up"] = marked(speed_up, found.is_disturbed)
            # The interval of the efficiency is that of the speed-up, in another unit.
            cells["efficiency"] = marked(f"{found.efficiency.value:.2f}", found.is_disturbed)
        if ratios:
            ratio = ratios.get(point.id)
            cells[FASTER] = MISSING if ratio is None else marked(ratio.judged.text, ratio.is_disturbed)
        if is_predicted:
            cells["predicted s per epoch"] = _number(point.predicted_seconds_per_epoch, ".4g")
        cells[results.metric_name] = MISSING if point.metric is None else point.metric.format()
        cells |= findings.columns.get(point.id, {})
        return cells | ({"limited by": point.first.verdict.limit} if results.timed else {})

    return [row(point) for point in findings.points]


def _named_values(results: StudyResults, point: StudyPoint) -> dict[str, str]:
    """The values of the axes that vary, but for ranks and grid, which have columns in any case."""
    labels = [label for label in results.varying if label not in ("ranks", "grid")]
    return {label: str(point.values.get(label, MISSING)) for label in labels}


def breakdown_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of where the time of the points goes: cells by title; empty where no run has records of its steps."""
    comparisons = compare_points(results)
    rows = []
    for point in results.points:
        shares, found = point.shares, comparisons.get(point.id)
        if found is None or found.parts is None:
            continue
        rows.append(
            {"ranks": str(point.first.ranks), "grid": marked(point.first.grid, found.is_disturbed)}
            | _named_values(results, point)
            | {part: f"{share:.1%}" for part, share in found.parts.items()}
            | {
                "load balance": _number(shares.load_balance, ".3f"),
                "communication efficiency": _number(shares.communication_efficiency, ".3f"),
                "serial fraction": _number(found.serial_fraction, ".4f"),
            }
        )
    return rows


def _number(value: float | None, spec: str) -> str:
    return MISSING if value is None else f"{value:{spec}}"


def _distinct(values: Iterable[object]) -> str:
    """The distinct values in order of appearance."""
    return ", ".join(dict.fromkeys(map(str, values)))


def markdown_text(results: StudyResults, captions: Mapping[str, str]) -> str:
    """The study's name, fastest layouts, description, verdicts, warnings, tables, plots, unfinished cells, conditions.

    `captions` are those of the plots, by file name.
    """
    findings = results.findings
    lines = [f"# {results.title}", ""]
    lines += [f"**{findings.summary}**\n"] if findings.summary else []
    lines += [*(f"* {text}" for text in answers_of(results)), ""]
    lines += [results.manifest.description, ""]
    for statement, *comparisons in findings.lines:
        lines += [f"* {statement}", *(f"    * {comparison}" for comparison in comparisons)]
    lines += [""] * bool(findings.lines)
    lines += [f"**Warning:** {text}\n" for text in warnings_of(results)]
    lines += [*_table(point_rows(results)), _table_note(results), ""]
    for title, (rows, note) in _more_tables(results).items():
        lines += [f"## {title}", "", *_table(rows), note, ""]
    lines += [f"![{caption}]({name})\n" for name, caption in captions.items()]
    if results.unfinished:
        lines += [f"Not finished: {len(results.unfinished)} cells ({results.unfinished_counts})", ""]
        lines += [f"* **{status}** {text}" for status, text in results.unfinished_texts] + [""]
    lines += ["## How it was made", "", *(f"* {name}: {text}" for name, text in _conditions(results).items()), ""]
    return "\n".join(lines)


def latex_text(results: StudyResults) -> str:
    """The tables of the study, each to be put into a ``table``; the packages booktabs and graphicx are needed."""
    findings = results.findings
    notes = [*(f"Warning: {text}." for text in warnings_of(results)), _table_note(results)]
    notes = [*answers_of(results), *notes]
    tables = [f"{LATEX_NEEDS}% {results.title}: the points of the study\n", latex_table(point_rows(results), notes)]
    more = {"Verdicts": (findings.rows, findings.summary)} if findings.rows else {}
    more |= _more_tables(results)
    return "".join([*tables, *(f"\n% {title}\n{latex_table(rows, [note])}" for title, (rows, note) in more.items())])


def _more_tables(results: StudyResults) -> dict[str, tuple[Sequence[Mapping[str, str]], str]]:
    """The tables beside that of the points, and the notes below, by title."""
    tables: dict[str, tuple[Sequence[Mapping[str, str]], str]] = {}
    if compared := compare_trainings(results):
        tables["Does it cost accuracy?"] = accuracy_rows(results), accuracy_note(compared[0])
    if parts := breakdown_rows(results):
        tables["Where the time goes"] = parts, f"{BREAKDOWN} {mark_note(results.points)}".rstrip()
    return tables


def _table_note(results: StudyResults) -> str:
    times = f" Times are of training alone: {TIMES}." if results.timed else ""
    return f"{conditions_text(results)}{times} {mark_note(results.points)}".rstrip()


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [_line(rows[0]), _line(["---"] * len(rows[0])), *(_line(row.values()) for row in rows), ""]


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _conditions(results: StudyResults) -> dict[str, str]:
    headers = [cell.run.header for cell in results.cells]
    predictions = [cell.run.prediction for cell in results.cells if cell.run.prediction is not None]
    return {
        "date": results.days,
        "cells": f"{len(results.cells)} of {len(results.manifest.cells)} finished",
        "versions": _distinct(f"{name} {version}" for header in headers for name, version in header.versions.items()),
        "nodes": _distinct(header.nodes for header in headers),
        **{
            title: _distinct(text or "none" for header in headers for text in host_values(header, name)) or MISSING
            for name, (_, title) in HOSTS.items()
            if title
        },
        "machine file": _distinct(found.machine for found in predictions) or MISSING,
        "BLAS threads per rank": _distinct(header.threads_per_rank for header in headers),
        "data": _distinct(f"{h.data}, {h.train_samples:,} training samples" for h in headers),
        "epochs": _distinct(cell.run.settings.training.epochs for cell in results.cells),
        "precision": _distinct(header.dtype for header in headers),
        "times": f"training without evaluation; {TIMES}",
    }


def csv_text(results: StudyResults) -> str:
    """One line for each cell: its id, outcome, axes (``axis.width``) and figures; missing values are empty."""
    labels = list(dict.fromkeys(label for cell in results.manifest.cells for label in cell.values))
    figures = {row["id"]: row for row in _cell_figures(results)}
    outcomes = {cell.id: "diverged" if cell.diverged else "finished" for cell in results.cells}
    outcomes |= {name: state.status for name, state in results.unfinished.items()}
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
    """Figures of the finished cells by column; speed-ups are those to the base in the round of a cell."""
    comparisons = compare_points(results)
    for point in results.points:
        found = comparisons.get(point.id)
        for cell in point.cells:
            header, figures = cell.run.header, cell.figures
            last = cell.run.epochs[-1] if cell.run.epochs else None
            speed_up = found.judged.pairs.get(cell.round) if found is not None else None
            yield {
                "id": cell.id,
                **{name: getattr(figures, name) for name in FIGURES},
                "dtype": header.dtype,
                "optimizer": header.optimizer,
                "mean_staleness": header.mean_staleness,
                "train_loss": last.train_loss if last else None,
                f"{'validation' if header.validation_samples else 'test'}_loss": last.validation_loss if last else None,
                "speed_up": speed_up,
                "efficiency": speed_up and found and speed_up * found.base.first.ranks / figures.ranks,
                "communicate_share": figures.shares.communicate,
                "bubble_share": figures.shares.bubble,
                "wait_share": figures.shares.wait,
                "disturbance": None if cell.run.load is None else cell.run.disturbance,
                "verdict": figures.verdict.text,
                **results.findings.cell_columns.get(cell.id, {}),
                **{column: ", ".join(host_values(header, name)) for name, (column, _) in HOSTS.items()},
                **{f"version.{name}": version for name, version in header.versions.items()},
            }


def write_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with the columns of all rows in the order of their appearance.

    Text that a spreadsheet would take for a formula begins with an apostrophe; NaN is empty, as None is.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_value(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, float) and isnan(value):
        return None
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def latex_table(rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """A table with the rules of booktabs, no wider than a line, with notes below, for a ``table`` with a caption."""
    columns = "".join("r" if all(NUMBER.fullmatch(row[title]) for row in rows) else "l" for title in rows[0])
    lines = [FITTED, f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _latex_row(rows[0]), "\\midrule"]
    lines += [_latex_row(row.values()) for row in rows]
    lines += ["\\bottomrule", "\\end{tabular}}"]
    lines += [f"\\par\\smallskip{{\\footnotesize {note.translate(LATEX)}\\par}}" for note in notes]
    return "\n".join(lines) + "\n"


def _latex_row(texts: Iterable[str]) -> str:
    return " & ".join(text.translate(LATEX) for text in texts) + r" \\"
