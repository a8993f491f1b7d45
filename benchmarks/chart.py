"""A bar for every ratio to a peer, with its spread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw_ratios"]

TITLES = {
    "serial": "one process, PyTorch eager",
    "batch": "batch, 2 ranks, DDP",
    "model": "model, 2 ranks, tensor parallel",
    "pipeline": "2 stages, torch pipelining",
    "gpu": "one GPU, PyTorch eager",
}
BAR_INCHES = 0.28


def draw_ratios(figures: Mapping[str, Any], path: Path) -> None:
    """Draw how many times faster than PyTorch each case is, one group of bars for each table.

    Parameters
    ----------
    figures : mapping
        What ``python -m benchmarks`` writes as JSON; rows with ``ratio``, ``ratio_min`` and ``ratio_max`` are drawn.
    path : Path
        Of the PNG.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [(TITLES[table], row) for table in TITLES if table in figures for row in figures[table] if "ratio" in row]
    if not rows:
        return
    figure = Figure(figsize=(9, 1.2 + BAR_INCHES * len(rows)), layout="constrained")
    axes = figure.subplots()
    colours = {title: f"C{number}" for number, title in enumerate(dict.fromkeys(title for title, _ in rows))}
    for place, (title, row) in enumerate(rows):
        spread = [[row["ratio"] - row["ratio_min"]], [row["ratio_max"] - row["ratio"]]]
        axes.barh(place, row["ratio"], xerr=spread, color=colours[title], ecolor="black", capsize=2)
    axes.set_yticks(range(len(rows)), [_name(row) for _, row in rows])
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times as fast as PyTorch (median and range of pairs of runs)")
    axes.legend([Patch(color=colour) for colour in colours.values()], colours, loc="lower right")
    axes.set_title(f"{figures['machine']}, {figures['date']}")
    figure.savefig(path, dpi=150)


def _name(row: Mapping[str, Any]) -> str:
    how = row.get("split") or row.get("method")
    return f"{row['case']}, batch {row['batch_size']}" + (f", {how}" if how else "")
