"""Chart of ratios with their ranges: how many times as fast as the peer, by network.

python -m benchmarks.chart RESULTS.json CHART.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hybridnn.drawing.figures import COLORS, COLUMN, MUTED, figure_bytes, legend_above, new_figure, tidy, write_picture

Row = Mapping[str, Any]

PEERS = "serial", "batch", "model", "pipeline"
"""Parts that are compared with PyTorch, which have one chart if there are several parts."""

MOST_CHARACTERS = 16  # of the name of a network
MARKERS = "osD^vPX*"
ROW_INCHES, LINE_INCHES = 0.3, 0.13
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


class Series(NamedTuple):
    """Ratios of one way, each with its network."""

    label: str
    rows: list[Row]


def draw_chart(figures: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """Draw a point with its range for each row with a ratio: a line for each network, a colour for each way.

    Parameters
    ----------
    figures : mapping
        JSON of ``python -m benchmarks``: ``machine``, ``date``, and the rows of each part with ``case``,
        ``batch_size``, ``ratio``, ``ratio_min``, ``ratio_max`` and perhaps ``way``.
    titles : mapping
        Labels of the parts.
    path : Path
        A .png, .svg or .pdf file.
    """
    series = _series(figures, titles)
    networks = list(dict.fromkeys(_network(row) for one in series for row in one.rows))
    if not networks:
        return
    height = 1.0 + 1.35 * LINE_INCHES * len(series) + ROW_INCHES * len(networks)
    figure = new_figure(COLUMN, height)
    axes = figure.subplots()
    for number, one in enumerate(series):
        _draw_series(axes, networks, one, number, len(series))
    axes.axvline(1, color=MUTED, linewidth=0.8)
    axes.set_xscale("log")
    ends = axes.get_xlim()
    axes.set_xticks([tick for tick in TICKS if ends[0] <= tick <= ends[1]])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_yticks(range(len(networks)), networks)
    axes.set_ylim(len(networks) - 0.5, -0.5)
    axes.set_xlabel(f"times as fast (median and range)\n{figures['machine']}, {figures['date']}")
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    write_picture(path, partial(figure_bytes, figure))


def _series(figures: Mapping[str, Any], titles: Mapping[str, str]) -> list[Series]:
    """One series for each part, or for each way of a part."""
    parts = [name for name in titles if any("ratio" in row for row in figures.get(name, ()))]
    peers = [name for name in parts if name in PEERS]
    found: dict[tuple[str, str], Series] = {}
    for part in peers or parts:
        for row in figures[part]:
            if "ratio" in row:
                way = str(row.get("way") or "")
                label = titles[part] + (f", {way}" if way else "")
                found.setdefault((part, way), Series(label, [])).rows.append(row)
    return list(found.values())


def _draw_series(axes: Any, networks: Sequence[str], series: Series, number: int, count: int) -> None:
    """The points of one way, a little above or below the middle of the network's line."""
    shift = 0.7 * ((number + 0.5) / count - 0.5)
    places = [networks.index(_network(row)) + shift for row in series.rows]
    ratios = [row["ratio"] for row in series.rows]
    below = [row["ratio"] - row["ratio_min"] for row in series.rows]
    above = [row["ratio_max"] - row["ratio"] for row in series.rows]
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    style: dict[str, Any] = {"color": color, "marker": marker, "markersize": 3.5, "linestyle": "none"}
    axes.errorbar(ratios, places, xerr=[below, above], elinewidth=1.2, label=series.label, **style)


def _network(row: Row) -> str:
    """Name of the network, without its hidden layers if it is long, and the minibatch."""
    name = row["case"]
    if len(name) > MOST_CHARACTERS:
        first, *_, last = name.split("-")
        name = f"{first}-…-{last}"
    return f"{name}\nbatch {row['batch_size']}"


def main() -> None:
    """Draw the chart of stored results."""
    from benchmarks.parts import PARTS

    source, target = map(Path, sys.argv[1:])
    figures = json.loads(source.read_text(encoding="utf-8"))
    draw_chart(figures, {name: part.bars for name, part in PARTS.items()}, target)


if __name__ == "__main__":
    main()
