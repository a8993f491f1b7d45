"""Writes the report of a study: CSV, Markdown, plots and the page."""

from __future__ import annotations

from pathlib import Path

from hybridnn.study.report.page import page_html
from hybridnn.study.report.plots import draw_plots
from hybridnn.study.report.results import Results
from hybridnn.study.report.tables import csv_text, markdown_text
from hybridnn.whole_files import write_whole

__all__ = ["write_report"]


def write_report(results: Results, folder: Path) -> list[Path]:
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
        write_whole(folder / name, content)
    return [folder / name for name in contents]
