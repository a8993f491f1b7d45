"""Plots of cost models: scaling curves, and predicted beside measured times of runs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.drawing.figures import (
    COLORS,
    COLUMN,
    MUTED,
    column_figure,
    legend_above,
    new_figure,
    ratio_tick,
    tidy,
)
from hybridnn.runs.quantities import RunFigures, instruction_figures
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hybridnn.cost.simulation import ScalingCurve
    from hybridnn.runs.run_files import RunRecord

SPEED_UP_COLOR = COLORS[0]
SHARE_COLORS = {"computing": COLORS[0], "communication": COLORS[1], "bubble": COLORS[3]}
LINE_CHARACTERS = 48  # of a line of the title
PERCENT = "{x:.0%}"
PANEL = 1.9  # inches, height of a panel


Bar = tuple[str, float | None, float | None]  # label, measured and predicted seconds


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


# -- runs --------------------------------------------------------------------------------------------------------------


def draw_run_check(run: RunRecord, figures: RunFigures) -> Figure:
    """Draw one run: milliseconds per step, of the whole step and of every kind of instruction."""
    bars: list[Bar] = [("step", figures.seconds_per_step, figures.predicted_seconds_per_step)]
    bars += [(item.kind, item.seconds_per_step, item.predicted_seconds_per_step) for item in instruction_figures(run)]
    return _draw_bars(bars, f"{figures.network} on {counted(figures.ranks, 'rank')}, grid {figures.grid}")


def draw_runs_check(runs: Sequence[RunFigures]) -> Figure:
    """Draw several runs: milliseconds per step of each."""
    bars = [
        (
            f"{counted(run.ranks, 'rank')}, {run.grid}\n{run.network}",
            run.seconds_per_step,
            run.predicted_seconds_per_step,
        )
        for run in runs
    ]
    return _draw_bars(bars, "Steps of the runs")


def _draw_bars(bars: Sequence[Bar], title: str) -> Figure:
    figure = new_figure(COLUMN, 0.8 + 0.36 * len(bars))
    axes = figure.subplots()
    measured = [seconds for _, seconds, _ in bars]
    predicted = [seconds for _, _, seconds in bars]
    for label, color, shift, heights in (
        ("measured", COLORS[0], -0.19, measured),
        ("predicted", COLORS[1], 0.19, predicted),
    ):
        shown = [(index + shift, 1e3 * seconds) for index, seconds in enumerate(heights) if seconds is not None]
        if shown:
            positions, milliseconds = zip(*shown, strict=True)
            drawn = axes.barh(positions, milliseconds, 0.36, color=color, label=label)
            axes.bar_label(drawn, fmt="%.3g", padding=1)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.invert_yaxis()
    axes.margins(x=0.12)  # room for the numbers
    axes.set_xlabel("ms per step")
    axes.set_title(title)
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    return figure
