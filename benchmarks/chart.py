"""Chart of the ratios with their ranges, the shares of the machine's limits, and the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw_chart"]

Row = Mapping[str, Any]

BAR_INCHES = 0.28
PANEL_INCHES = 5.0

LEAST_MEGABYTES = 0.1
"""Lower limit of the logarithmic axis of memory."""

ABOVE = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2, "frameon": False, "fontsize": "small"}
"""Position of legends above the axes."""


def draw_chart(figures: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """Draw a bar for each row with a ratio, in one group for each part, and panels for shares and memory.

    Parameters
    ----------
    figures : mapping
        JSON of ``python -m benchmarks``: ``machine``, ``date``, and the rows of each part with ``ratio``,
        ``ratio_min`` and ``ratio_max``, ``products_share`` and ``update_share``, ``our_grown_bytes`` and
        ``their_grown_bytes``.
    titles : mapping
        Labels of the parts.
    path : Path
        Path of the PNG.
    """
    from matplotlib.figure import Figure

    groups = {name: [row for row in figures[name] if "ratio" in row] for name in titles if name in figures}
    rows = [row for group in groups.values() for row in group]
    if not rows:
        return
    panels: list[Callable[[Any, Sequence[Row]], None]] = [
        panel
        for needed, panel in (("products_share", _draw_shares), ("our_grown_bytes", _draw_memory))
        if any(needed in row for row in rows)
    ]
    size = 4 + PANEL_INCHES * (1 + len(panels)), 1.2 + BAR_INCHES * len(rows)
    figure = Figure(figsize=size, layout="constrained")
    first, *others = figure.subplots(1, 1 + len(panels), sharey=True, squeeze=False)[0]
    _draw_ratios(first, {titles[name]: group for name, group in groups.items() if group})
    first.set_yticks(range(len(rows)), [_name(row) for row in rows])
    first.invert_yaxis()
    for axes, panel in zip(others, panels, strict=True):
        panel(axes, rows)
    figure.suptitle(f"{figures['machine']}, {figures['date']}")
    figure.savefig(path, dpi=150)


def _draw_ratios(axes: Any, groups: Mapping[str, Sequence[Row]]) -> None:
    from matplotlib.patches import Patch

    place = 0
    for number, rows in enumerate(groups.values()):
        for row in rows:
            spread = [[row["ratio"] - row["ratio_min"]], [row["ratio_max"] - row["ratio"]]]
            axes.barh(place, row["ratio"], xerr=spread, color=f"C{number}", ecolor="black", capsize=2)
            place += 1
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times as fast (median and range of pairs of runs)")
    axes.legend([Patch(color=f"C{number}") for number in range(len(groups))], groups, **ABOVE)


def _draw_shares(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the share of a step that the limits of the machine explain: products, and bytes of the update."""
    known = [(place, row) for place, row in enumerate(rows) if "products_share" in row]
    places, products = [place for place, _ in known], [row["products_share"] for _, row in known]
    axes.barh(places, products, color="0.35", label="products")
    update = [row.get("update_share", 0) for _, row in known]
    axes.barh(places, update, left=products, color="0.7", label="bytes of the update")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("share of a step at the machine's limits")
    axes.legend(**ABOVE)


def _draw_memory(axes: Any, rows: Sequence[Row]) -> None:
    """Draw two thin bars for each row, for hybridnn and for PyTorch."""
    known = [(place, row) for place, row in enumerate(rows) if "our_grown_bytes" in row]
    for shift, whose, label, colour in ((-0.2, "our", "ours", "C2"), (0.2, "their", "PyTorch's", "0.6")):
        megabytes = [row[f"{whose}_grown_bytes"] / 1e6 for _, row in known]
        axes.barh([place + shift for place, _ in known], megabytes, 0.4, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_xlim(left=LEAST_MEGABYTES)
    axes.set_xlabel("MB by which a rank grows at most")
    axes.legend(**ABOVE)


def _name(row: Row) -> str:
    return f"{row['case']}, batch {row['batch_size']}" + (f", {row['way']}" if row.get("way") else "")
