"""Report of a study: CSV, Markdown, plots, and a self-contained page of HTML."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from hybridnn.study.report.plots import draw_plots
from hybridnn.study.report.results import StudyResults
from hybridnn.study.report.scaling import warnings_of
from hybridnn.study.report.tables import csv_text, markdown_text, point_rows
from hybridnn.utils.files import write_atomically

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
"""


def page_html(results: StudyResults, plots: Mapping[str, tuple[str, bytes]]) -> str:
    """Make the page: plots, warnings, table, unfinished cells, and the conditions of the measurement.

    Parameters
    ----------
    plots : mapping of str to (str, bytes)
        Caption and PNG of each plot, by file name; the page embeds them.
    """
    manifest = results.manifest
    title = escape(manifest.name + ", reduced" * manifest.reduced)
    body = [f"<h1>{title}</h1>", f"<p>{escape(manifest.description)}</p>"]
    body += [_figure(caption, png) for caption, png in plots.values()]
    titles, rows = point_rows(results)
    body += ["<h2>Results</h2>"]
    body += [f'<p class="warning">Warning: {escape(text)}</p>' for text in warnings_of(results)]
    body += [_table(titles, rows)]
    if results.unfinished:
        counts = escape(results.unfinished_counts)
        body.append(f"<h2>Not finished: {len(results.unfinished)} cells ({counts})</h2>{_unfinished(results)}")
    body += ["<h2>How it was made</h2>", _conditions(results)]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    lines = "\n".join(body)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{lines}\n</body></html>\n'


def _figure(caption: str, png: bytes) -> str:
    data = b64encode(png).decode("ascii")
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _unfinished(results: StudyResults) -> str:
    rows = "".join(
        f'<tr><th class="{cell.state.status.replace(" ", "-")}">{escape(cell.state.status)}</th>'
        f"<td>{escape(cell.id)}</td><td>{escape(cell.state.reason)}</td></tr>\n"
        for cell in results.unfinished
    )
    return f'<table class="facts">{rows}</table>'


def _conditions(results: StudyResults) -> str:
    headers = [cell.run.header for cell in results.cells]
    versions = {f"{name} {version}": None for header in headers for name, version in header.versions.items()}
    days = results.first_day if results.first_day == results.last_day else f"{results.first_day} to {results.last_day}"
    cells = f"{len(results.cells)} of {len(results.manifest.cells)} finished"
    threads = _distinct(header.threads_per_rank for header in headers)
    facts = {
        "date": days,
        "cells": cells,
        "versions": ", ".join(versions),
        "nodes": _distinct(header.nodes for header in headers),
        "BLAS threads per rank": threads,
        "data": _distinct(f"{h.data}, {h.train_samples:,} training samples" for h in headers),
        "epochs": _distinct(cell.run.settings.training.epochs for cell in results.cells),
        "precision": _distinct(header.dtype for header in headers),
        "times": "training without evaluation; the median of a run's epochs, without the first if there are more",
    }
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in facts.items())
    return f'<table class="facts">{rows}</table>'


def _distinct(values: Iterable[object]) -> str:
    """The distinct values in order of appearance."""
    return ", ".join(dict.fromkeys(map(str, values)))


def write_report(results: StudyResults, folder: Path) -> list[Path]:
    """Write ``results.csv``, ``tables.md``, a PNG per plot and ``index.html`` into `folder`.

    Returns
    -------
    list of Path
        The files, the page last.

    Raises
    ------
    EnvironmentProblem
        If a file cannot be written.
    """
    plots = draw_plots(results)
    contents: dict[str, str | bytes] = {"results.csv": csv_text(results), "tables.md": markdown_text(results)}
    contents |= {name: png for name, (_, png) in plots.items()}
    contents["index.html"] = page_html(results, plots)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]
