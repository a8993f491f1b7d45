"""Accuracy, R² or loss of a study's cells, against epochs and against time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

from hybridnn.study.plot_style import COLORS, new_figure, png_bytes, tidy
from hybridnn.study.report.groups import LAYOUT, point_name
from hybridnn.study.report.results import StudyPoint, StudyResults
from hybridnn.training.records import EpochRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_CURVES = 8
LOG_SCALE_RATIO = 50.0
"""Times that span at least this factor are drawn on a logarithmic axis."""

LEAST_R2 = -0.2
"""Below it R² says no more than that the network has not learned yet, and hides the rest of the plot."""

MEASURES: dict[str, Callable[[EpochRecord], float | None]] = {
    "test accuracy": lambda record: record.test_accuracy,
    "test R²": lambda record: record.test_r2,
    "training loss": lambda record: record.train_loss,
}


@dataclass(frozen=True)
class MedianCurve:
    """One measure of a point after each epoch: medians over its cells.

    Attributes
    ----------
    name : str
    epochs : tuple of int
        From 1; those that were evaluated.
    seconds : tuple of float
        Training time until then, evaluation excluded.
    values : tuple of float
    """

    name: str
    epochs: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]


def curves_of(results: StudyResults, measure: str) -> list[MedianCurve]:
    """Curves of the points that have the measure, for each network the fastest layout, in the order of the study."""
    fastest: dict[tuple[tuple[str, str], ...], StudyPoint] = {}
    for point in results.points:
        key = tuple((label, str(value)) for label, value in point.values if label not in LAYOUT)
        if key not in fastest or point.seconds_per_epoch.median < fastest[key].seconds_per_epoch.median:
            fastest[key] = point
    curves = [_curve(results, point, MEASURES[measure]) for point in fastest.values()]
    return [curve for curve in curves if curve.epochs]


def draw_curves(results: StudyResults) -> tuple[str, bytes] | None:
    """Draw the first measure that the cells have; None if no run has two epochs. Returns a caption and the PNG."""
    found = ((measure, curves_of(results, measure)) for measure in MEASURES)
    measure, curves = next(((name, curves) for name, curves in found if curves), ("", []))
    if not any(len(curve.epochs) > 1 for curve in curves):
        return None
    from matplotlib.ticker import MaxNLocator

    shown = curves[:MOST_CURVES]
    figure = new_figure(10.5, 4.0)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, [(curve.name, curve.epochs, curve.values) for curve in shown], "epoch")
    _draw(right, [(curve.name, curve.seconds, curve.values) for curve in shown], "seconds of training")
    left.set_ylabel(measure)
    left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    moments = [seconds for curve in shown for seconds in curve.seconds]
    if max(moments) > LOG_SCALE_RATIO * min(moments):
        right.set_xscale("log")
    if measure == "test R²" and min(min(curve.values) for curve in shown) < LEAST_R2:
        left.set_ylim(LEAST_R2, 1.02)
    left.legend(frameon=False, fontsize=7)
    more = f" Shown are {MOST_CURVES} of {len(curves)}." if len(curves) > MOST_CURVES else ""
    return f"{measure[0].upper()}{measure[1:]} against epochs and time, for each network on its fastest grid.{more}", (
        png_bytes(figure)
    )


def _curve(results: StudyResults, point: StudyPoint, value: Callable[[EpochRecord], float | None]) -> MedianCurve:
    runs = [cell.run.epochs for cell in point.cells]
    times = [list(accumulate(e.compute_seconds + e.communication_seconds for e in epochs)) for epochs in runs]
    rows = []
    for number, epoch in enumerate(runs[0]):
        found = [value(epochs[number]) for epochs in runs if number < len(epochs)]
        measured = [known for known in found if known is not None and math.isfinite(known)]
        passed = [seconds[number] for seconds in times if number < len(seconds)]
        if measured:
            rows.append((epoch.epoch, median(passed), median(measured)))
    epochs, seconds, values = zip(*rows, strict=True) if rows else ((), (), ())
    return MedianCurve(point_name(results, point), epochs, seconds, values)


def _draw(axes: Axes, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], label: str) -> None:
    for number, (name, xs, ys) in enumerate(curves):
        axes.plot(xs, ys, color=COLORS[number % len(COLORS)], label=name, linewidth=1.6, marker="o", markersize=3)
    axes.set_xlabel(label)
    tidy(axes)
