"""The picture of a calibration: measured seconds by size, and the fits over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.cost.calibration.fit import FittedOperation
from hybridnn.errors import EnvironmentProblem

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLORS = "#2a6fbb", "#d9822b", "#3a8f5c", "#a8485b", "#7a5fb0", "#4fa3a5", "#8a6d3b", "#5f6b7a"
MUTED = "#5f6b7a"
TITLES = {"send": "message, one way", "iallreduce": "all-reduce without blocking", "allreduce": "all-reduce"}
TITLES |= {"allgather": "all-gather", "broadcast": "broadcast"}
LINE_POINTS = 200


def draw_fits(fits: Sequence[FittedOperation], path: Path) -> None:
    """Draw one panel for each operation, on logarithmic axes, as a PNG.

    Samples that were fitted are dots, those that were held out are hollow; lines are the fits, one colour for each
    group of ranks, dashed where it spans nodes. Barriers, which have no size, are left out.

    Raises
    ------
    EnvironmentProblem
        If `path` cannot be written.
    """
    # A figure without pyplot: no display, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    operations = list(dict.fromkeys(fit.operation for fit in fits if fit.operation != "barrier"))
    groups = list(dict.fromkeys((fit.cost.ranks, fit.cost.spans_nodes) for fit in fits))
    columns = min(len(operations), 3)
    rows = -(-len(operations) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.6 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes, operation in zip(panels, operations, strict=False):
        for fit in fits:
            if fit.operation == operation:
                _draw(axes, fit, COLORS[groups.index((fit.cost.ranks, fit.cost.spans_nodes)) % len(COLORS)])
        _tidy(axes, TITLES.get(operation, operation))
    for axes in panels[len(operations) :]:
        axes.set_axis_off()
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}") from error


def _draw(axes: Axes, fit: FittedOperation, color: str) -> None:
    for held_out in (False, True):
        points = [(sample.nbytes, sample.seconds) for sample in fit.samples if sample.held_out == held_out]
        if points:
            face = "none" if held_out else color
            axes.plot(*zip(*points, strict=True), "o", color=color, markerfacecolor=face, markersize=4, alpha=0.8)
    sizes = [sample.nbytes for sample in fit.samples]
    # Each segment on its own, because a fit may step where one ends.
    ends = [segment.up_to_bytes or max(sizes) for segment in fit.cost.segments]
    starts = [min(sizes), *ends[:-1]]
    label = f"{fit.cost.ranks} ranks{', several nodes' if fit.cost.spans_nodes else ''}"
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        # The end of a segment is its own, its start is that of the one before.
        first = start if number == 0 else start + 1
        xs = np.unique(np.geomspace(first, max(end, first), LINE_POINTS).astype(np.int64))
        xs = xs[(xs >= first) & (xs <= max(end, first))]
        ys = [fit.seconds(int(x)) for x in xs]
        style = "--" if fit.cost.spans_nodes else "-"
        axes.plot(xs, ys, style, color=color, linewidth=1.4, label=label if number == 0 else None)


def _tidy(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("seconds")
    axes.grid(which="major", color="#d7dce2", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, which="both")
    axes.legend(frameon=False, fontsize=8)
