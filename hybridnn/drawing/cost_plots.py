"""Plots of cost models: scaling curves, and fits of a calibration."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.drawing.figures import (
    COLORS,
    MUTED,
    column_figure,
    legend_above,
    ratio_tick,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hybridnn.cost.calibration.fit import FittedOperation
    from hybridnn.cost.simulation import ScalingCurve

SPEED_UP_COLOR = COLORS[0]
SHARE_COLORS = {"computing": COLORS[0], "communication": COLORS[1], "bubble": COLORS[3]}
GROUP_COLORS = *COLORS[:-1], MUTED
TITLES = {
    "send": "message, one way",
    "iallreduce": "all-reduce without blocking",
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "broadcast": "broadcast",
}
LINE_POINTS = 200
LINE_CHARACTERS = 48  # of a line of the title
PERCENT = "{x:.0%}"
PANEL = 1.9  # inches, height of a panel


# -- scaling curves --------------------------------------------------------------------------------------------------


def draw_scaling(curve: ScalingCurve, title: str) -> Figure:
    """Draw a scaling curve: speed-up and efficiency against ranks, and a breakdown of the ranks' time."""
    figure, (speed_up, efficiency, shares) = column_figure(PANEL, 0.7 * PANEL, 1.2 * PANEL)
    ranks = [point.ranks for point in curve.points]
    line: dict[str, Any] = {"color": SPEED_UP_COLOR, "linewidth": 1.3, "marker": "o", "markersize": 2.5}
    speed_up.plot(ranks, ranks, color=MUTED, linestyle="--", linewidth=1.0, label="ideal")
    speed_up.plot(ranks, [point.speed_up for point in curve.points], label="simulated", **line)
    speed_up.set_yscale("log", base=2)
    speed_up.yaxis.set_major_formatter(ratio_tick)
    minibatch = "one minibatch for all" if curve.kind == "strong" else "minibatch grows with ranks"
    text = textwrap.fill(title, LINE_CHARACTERS)
    speed_up.set_title(f"{text}\n{curve.kind.capitalize()} scaling: {minibatch}")
    speed_up.set_ylabel("speed-up over one rank")
    efficiencies = [point.efficiency for point in curve.points]
    efficiency.axhline(1, color=MUTED, linestyle="--", linewidth=1.0)
    efficiency.plot(ranks, efficiencies, **line)
    efficiency.set_ylim(0, 1.1 * max(1.0, *efficiencies))
    efficiency.yaxis.set_major_formatter(PERCENT)
    efficiency.set_ylabel("speed-up per rank")
    for axes in (speed_up, efficiency):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("ranks")
        tidy(axes)
    _draw_shares(shares, curve)
    legend_above(figure, [*speed_up.get_legend_handles_labels()[0], *shares.get_legend_handles_labels()[0]])
    return figure


def _draw_shares(axes: Axes, curve: ScalingCurve) -> None:
    positions = range(len(curve.points))
    communication = np.array([point.communication_share for point in curve.points])
    bubble = np.array([point.bubble_share for point in curve.points])
    shares = {"computing": 1 - communication - bubble, "communication": communication, "bubble": bubble}
    bottom = np.zeros(len(curve.points))
    for name, color in SHARE_COLORS.items():
        axes.bar(positions, shares[name], bottom=bottom, color=color, label=name, width=0.8)
        bottom = bottom + shares[name]
    labels = [str(point.ranks) for point in curve.points]
    axes.set_xticks(list(positions), labels, rotation=90 if len(labels) > 8 else 0)
    axes.set_title("Where the ranks' time goes")
    axes.set_xlabel("ranks")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PERCENT)
    tidy(axes, grid=False)


# -- fits of a calibration -------------------------------------------------------------------------------------------


def draw_fits(fits: Sequence[FittedOperation]) -> Figure:
    """Draw one panel for each operation, time against size on logarithmic axes.

    Fitted samples are filled circles, held-out ones are hollow; lines are the fits, one colour for each group of ranks,
    dashed if it spans nodes. Barriers, which have no size, are left out.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, LogLocator

    operations = list(dict.fromkeys(fit.operation for fit in fits if fit.operation != "barrier"))
    groups = list(dict.fromkeys((fit.cost.ranks, fit.cost.spans_nodes) for fit in fits))
    figure, panels = column_figure(*[PANEL] * len(operations))
    for axes, operation in zip(panels, operations, strict=True):
        for fit in fits:
            if fit.operation == operation:
                number = groups.index((fit.cost.ranks, fit.cost.spans_nodes))
                _draw_fit(axes, fit, GROUP_COLORS[number % len(GROUP_COLORS)])
        axes.set_title(TITLES.get(operation, operation))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        axes.set_xlabel("size")
        axes.set_ylabel("time")
        tidy(axes)
    lines = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    for label, held_out in (("sizes of the fit", False), ("held-out sizes", True)):
        lines[label] = Line2D([], [], color=MUTED, **_sample_style(MUTED, held_out))
    legend_above(figure, lines.values(), list(lines))
    return figure


def _sample_style(color: str, held_out: bool) -> dict[str, Any]:
    face = "none" if held_out else color
    return {"marker": "o", "linestyle": "none", "markersize": 3, "alpha": 0.8, "markerfacecolor": face}


def _draw_fit(axes: Axes, fit: FittedOperation, color: str) -> None:
    for held_out in (False, True):
        points = [(sample.nbytes, sample.seconds) for sample in fit.samples if sample.held_out == held_out]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, **_sample_style(color, held_out))
    sizes = [sample.nbytes for sample in fit.samples]
    # One line per segment, because a fit may step between two; a size on the border belongs to the first of them.
    ends = [segment.up_to_bytes or max(sizes) for segment in fit.cost.segments]
    starts = [min(sizes), *(end + 1 for end in ends[:-1])]
    group = f"{fit.cost.ranks} ranks{', several nodes' if fit.cost.spans_nodes else ''}"
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        end = max(end, start)
        xs = np.unique(np.geomspace(start, end, LINE_POINTS).astype(np.int64))
        xs = xs[(xs >= start) & (xs <= end)]
        style = "--" if fit.cost.spans_nodes else "-"
        seconds = [fit.seconds(int(x)) for x in xs]
        axes.plot(xs, seconds, style, color=color, linewidth=1.2, label=group if number == 0 else None)
