"""Plots of cost models: scaling curves of a simulation, the fits of a calibration, and maps of the best grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.cost.calibration.fit import FittedOperation
from hybridnn.cost.grid_map import GridMap
from hybridnn.cost.simulation import ScalingCurve
from hybridnn.utils.figures import COLORS, MUTED, figure_bytes, new_figure, tidy, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SPEED_UP_COLOR = COLORS[0]
SHARE_COLORS = {"computing": "#2b8259", "communication": "#f0a030", "bubble": "#d3e6fa"}
GROUP_COLORS = *COLORS[:-1], MUTED
TITLES = {
    "send": "message, one way",
    "iallreduce": "all-reduce without blocking",
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "broadcast": "broadcast",
}
LINE_POINTS = 200


# -- scaling curves --------------------------------------------------------------------------------------------------


def draw_scaling(curve: ScalingCurve, title: str) -> Figure:
    """Draw a scaling curve: speed-up against ranks, and a breakdown of the ranks' time."""
    figure = new_figure(9.6, 3.9)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=10)
    _draw_speed_up(left, curve)
    _draw_shares(right, curve)
    return figure


def _draw_speed_up(axes: Axes, curve: ScalingCurve) -> None:
    ranks = [point.ranks for point in curve.points]
    axes.plot(ranks, ranks, color=MUTED, linestyle="--", linewidth=1.0, label="ideal")
    speed_ups = [point.speed_up for point in curve.points]
    axes.plot(ranks, speed_ups, color=SPEED_UP_COLOR, linewidth=1.8, marker="o", markersize=3.5, label="simulated")
    for point in curve.points[1:]:
        axes.annotate(
            f"{point.efficiency:.0%}",
            (point.ranks, point.speed_up),
            xytext=(0, -11),
            textcoords="offset points",
            fontsize=7,
            color=MUTED,
            ha="center",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    minibatch = "one minibatch for all" if curve.kind == "strong" else "minibatch grows with ranks"
    axes.set_title(f"{curve.kind.capitalize()} scaling: {minibatch}", fontsize=10)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples per second, over one rank's")
    axes.legend(frameon=False)
    tidy(axes)


def _draw_shares(axes: Axes, curve: ScalingCurve) -> None:
    positions = range(len(curve.points))
    communication = np.array([point.communication_share for point in curve.points])
    bubble = np.array([point.bubble_share for point in curve.points])
    shares = {"computing": 1 - communication - bubble, "communication": communication, "bubble": bubble}
    bottom = np.zeros(len(curve.points))
    for name, color in SHARE_COLORS.items():
        axes.bar(positions, shares[name], bottom=bottom, color=color, label=name, width=0.8)
        bottom = bottom + shares[name]
    axes.set_xticks(list(positions), [str(point.ranks) for point in curve.points])
    axes.set_title("Where the ranks' time goes", fontsize=10)
    axes.set_xlabel("ranks")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda share, position: f"{share:.0%}")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(SHARE_COLORS))
    tidy(axes, grid=False)


# -- fits of a calibration -------------------------------------------------------------------------------------------


def draw_fits(fits: Sequence[FittedOperation], path: Path) -> None:
    """Draw one panel for each operation, seconds against bytes on logarithmic axes, as a PNG.

    Fitted samples are filled circles, held-out ones are hollow; lines are the fits, one colour for each group of ranks,
    dashed if it spans nodes. Barriers, which have no size, are left out.

    Raises
    ------
    EnvironmentProblem
        If `path` cannot be written.
    """
    operations = list(dict.fromkeys(fit.operation for fit in fits if fit.operation != "barrier"))
    groups = list(dict.fromkeys((fit.cost.ranks, fit.cost.spans_nodes) for fit in fits))
    columns = min(len(operations), 3)
    rows = -(-len(operations) // columns)
    figure = new_figure(4.4 * columns, 3.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes, operation in zip(panels, operations, strict=False):
        for fit in fits:
            if fit.operation == operation:
                number = groups.index((fit.cost.ranks, fit.cost.spans_nodes))
                _draw_fit(axes, fit, GROUP_COLORS[number % len(GROUP_COLORS)])
        axes.set_title(TITLES.get(operation, operation))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("bytes")
        axes.set_ylabel("seconds")
        axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    for axes in panels[len(operations) :]:
        axes.set_axis_off()
    write_png(figure, path)


def _draw_fit(axes: Axes, fit: FittedOperation, color: str) -> None:
    for held_out in (False, True):
        points = [(sample.nbytes, sample.seconds) for sample in fit.samples if sample.held_out == held_out]
        if points:
            face = "none" if held_out else color
            axes.plot(*zip(*points, strict=True), "o", color=color, markerfacecolor=face, markersize=4, alpha=0.8)
    sizes = [sample.nbytes for sample in fit.samples]
    # One line per segment, because a fit may step between two; a size on the border belongs to the first of them.
    ends = [segment.up_to_bytes or max(sizes) for segment in fit.cost.segments]
    starts = [min(sizes), *(end + 1 for end in ends[:-1])]
    label = f"{fit.cost.ranks} ranks{', several nodes' if fit.cost.spans_nodes else ''}"
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        end = max(end, start)
        xs = np.unique(np.geomspace(start, end, LINE_POINTS).astype(np.int64))
        xs = xs[(xs >= start) & (xs <= end)]
        style = "--" if fit.cost.spans_nodes else "-"
        seconds = [fit.seconds(int(x)) for x in xs]
        axes.plot(xs, seconds, style, color=color, linewidth=1.4, label=label if number == 0 else None)


# -- maps of the best grid -------------------------------------------------------------------------------------------


def grid_map_picture(maps: Sequence[GridMap], file_format: str) -> bytes:
    """Draw maps of the best grid side by side, one cell for each width and minibatch.

    The colour is the share of the batch axis in lg P: dark for batch, light for model parallelism.

    Parameters
    ----------
    file_format : str
        One of `hybridnn.utils.figures.FORMATS`.
    """
    figure = new_figure(1.2 + 0.8 * len(maps) * len(maps[0].batches), 1.6 + 0.45 * len(maps[0].widths))
    panels = figure.subplots(1, len(maps), squeeze=False).reshape(-1)
    for axes, found in zip(panels, maps, strict=True):
        _draw_grid_map(axes, found)
    return figure_bytes(figure, file_format)


def _draw_grid_map(axes: Axes, found: GridMap) -> None:
    shares = np.array([[np.nan if grid is None else found.batch_share(grid) for grid in row] for row in found.grids])
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.4, aspect="auto", origin="lower")
    for row, names in enumerate(found.names()):
        for column, name in enumerate(names):
            axes.text(column, row, name, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(found.batches)), [f"{batch:,}" for batch in found.batches])
    axes.set_yticks(range(len(found.widths)), [f"{width:,}" for width in found.widths])
    axes.set_xlabel("minibatch")
    axes.set_ylabel("width")
    axes.set_title(found.title, fontsize=9)
    tidy(axes, grid=False)
