"""Learning curves of a study: medians over the cells of a point, over epochs and over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from hybridnn.drawing.figures import COLORS, PANEL, Plots, column_figure, draw_lines, legend_above, plain_ticks, tidy
from hybridnn.runs.run_files import Moment
from hybridnn.study.results import StudyPoint, StudyResults, point_name
from hybridnn.study.scaling import same_training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 16
LOG_SCALE_RATIO = 50.0  # times that span at least this factor are drawn on a logarithmic axis

LEAST_R2 = -0.2
"""Lower end of the axis of R²: smaller values, before the network has learned, would hide the rest of the plot."""

MEASURES: dict[str, Callable[[Moment], float | None]] = {
    "test accuracy": lambda moment: moment.accuracy,
    "test R²": lambda moment: moment.r2,
    "training loss": lambda moment: moment.train_loss,
}


@dataclass(frozen=True)
class MedianCurve:
    """One measure of a point after each evaluation, in epochs from the start: medians over its cells.

    `seconds` are the training time until then, without evaluation.
    """

    name: str
    epochs: tuple[float, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]
    diverged: int = 0  # cells whose training diverged


def curves_of(results: StudyResults, measure: str) -> list[MedianCurve]:
    """Curves of the points that have the measure, for each training its fastest layout, in the order of the study.

    The points are those that the tables show.
    """
    fastest = [
        min(points, key=lambda point: (not point.is_timed, point.seconds_per_epoch.value))
        for points in same_training(results.findings.points)
    ]
    curves = [_curve(results, point, MEASURES[measure]) for point in fastest]
    return [curve for curve in curves if curve.epochs]


def draw_curves(results: StudyResults, measures: Iterable[str], name: str) -> Plots:
    """Draw the first measure that the cells have, over epochs and, in a study of times, over seconds.

    The plots are called `name` and `name`-time; there are none if no run has two moments.
    """
    found = ((measure, curves_of(results, measure)) for measure in measures)
    measure, curves = next(((name, curves) for name, curves in found if curves), ("", []))
    if not any(len(curve.epochs) > 1 for curve in curves):
        return {}
    shown = curves[:MOST_CURVES]
    more = f" Shown are {MOST_CURVES} of {len(curves)}." if len(curves) > MOST_CURVES else ""
    title = f"{measure[0].upper()}{measure[1:]} against"
    if not results.is_timed:
        return {name: (f"{title} epochs.{more}", _draw_epochs(shown, measure))}
    grids = "for each training on its fastest grid"
    return {
        name: (f"{title} epochs, {grids}.{more}", _draw_epochs(shown, measure)),
        f"{name}-time": (f"{title} time, {grids}.{more}", _draw_times(shown, measure)),
    }


def _draw_epochs(curves: Sequence[MedianCurve], measure: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = column_figure(PANEL)
    draw_lines(axes, [(curve.name, curve.epochs, curve.values) for curve in curves], "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if any(curve.diverged for curve in curves):
        _mark_diverged(axes, curves)
    _finish_curves(figure, axes, curves, measure)
    return figure


def _draw_times(curves: Sequence[MedianCurve], measure: str) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    draw_lines(axes, [(curve.name, curve.seconds, curve.values) for curve in curves], "seconds of training")
    moments = [seconds for curve in curves for seconds in curve.seconds]
    if max(moments) > LOG_SCALE_RATIO * min(moments):
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    _finish_curves(figure, axes, curves, measure)
    return figure


def _finish_curves(figure: Figure, axes: Axes, curves: Sequence[MedianCurve], measure: str) -> None:
    axes.set_ylabel(f"{measure}, mean per sample" if "loss" in measure else measure)
    tidy(axes)
    if measure == "test R²" and min(min(curve.values) for curve in curves) < LEAST_R2:
        axes.set_ylim(LEAST_R2, 1.02)
    legend_above(figure, *axes.get_legend_handles_labels())


def _curve(results: StudyResults, point: StudyPoint, value: Callable[[Moment], float | None]) -> MedianCurve:
    runs = [cell.run.moments for cell in point.cells]
    longest, rows = max(runs, key=len), []
    for number, moment in enumerate(longest):
        moments = [run[number] for run in runs if number < len(run)]
        measured = [known for known in map(value, moments) if known is not None and math.isfinite(known)]
        if measured:
            rows.append((moment.epochs, median(moment.seconds for moment in moments), median(measured)))
    epochs, seconds, values = zip(*rows, strict=True) if rows else ((), (), ())
    diverged = sum(cell.diverged for cell in point.cells)
    count = f", {diverged} of {len(point.cells)} diverged" if diverged else ""
    return MedianCurve(point_name(results, point) + count, epochs, seconds, values, diverged)


def _mark_diverged(axes: Axes, curves: Sequence[MedianCurve]) -> None:
    """Draw a cross at the end of the curves of which a training diverged."""
    for number, curve in enumerate(curves):
        if curve.diverged:
            color = COLORS[number % len(COLORS)]
            axes.plot(curve.epochs[-1:], curve.values[-1:], "x", color=color, markersize=9, markeredgewidth=2)
