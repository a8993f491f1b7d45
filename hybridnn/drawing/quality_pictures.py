"""Pictures of the quality of predictions: the confusion matrix of classes, and errors of targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hybridnn.drawing.figures import (
    CHARACTER,
    COLORS,
    COLUMN,
    GRID,
    MUTED,
    ON_DARK,
    ON_LIGHT,
    TEXT,
    legend_above,
    new_figure,
    tidy,
)
from hybridnn.runs.quality import ClassReport, RegressionReport
from hybridnn.utils.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELLED = 20  # classes whose counts are written into a picture
MOST_LEVEL_CHARACTERS = 4  # of a class name that is written level below a picture
MOST_POINTS = 5_000  # samples that a picture shows, evenly spaced
POINT_COLOR = COLORS[0]


def quality_figure(report: ClassReport | RegressionReport) -> Figure:
    """The confusion matrix of classes, or the errors of targets."""
    return _confusion_figure(report) if isinstance(report, ClassReport) else _errors_figure(report)


def _confusion_figure(report: ClassReport) -> Figure:
    """The confusion matrix: the share of every true class, with the counts."""
    classes = len(report.confusion)
    cell = (len(f"{report.confusion.max():,}") + 0.5) * CHARACTER if classes <= MOST_LABELLED else 0.0
    size = min(max(COLUMN, cell * classes + 1.4), 9.0)
    figure = new_figure(size, 0.9 * size)
    axes = figure.subplots()
    shares = report.confusion / np.maximum(report.support, 1)[:, None]
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
    bar = figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if classes <= MOST_LABELLED:
        shown = [printable(name, 12) for name in report.names]
        longest = max(map(len, shown))
        axes.set_xticks(range(classes), shown, rotation=90 if longest > MOST_LEVEL_CHARACTERS else 0)
        axes.set_yticks(range(classes), shown)
        for (true, predicted), count in np.ndenumerate(report.confusion):
            if count:
                ink = ON_DARK if shares[true, predicted] < 0.6 else ON_LIGHT
                axes.text(predicted, true, f"{count:,}", ha="center", va="center", color=ink, fontsize=TEXT)
    tidy(axes, grid=False)
    tidy(bar.ax, grid=False)
    return figure


def _errors_figure(report: RegressionReport) -> Figure:
    """Predicted against true values, and residuals, a row for each target."""
    figure = new_figure(COLUMN, 1.7 * len(report.names))
    step = max(1, -(-len(report.true) // MOST_POINTS))
    for row, (panels, name) in enumerate(
        zip(figure.subplots(len(report.names), 2, squeeze=False), report.names, strict=True)
    ):
        true, predicted = report.true[::step, row], report.predicted[::step, row]
        low, high = min(true.min(), predicted.min()), max(true.max(), predicted.max())
        panels[0].plot((low, high), (low, high), color=MUTED, linewidth=1, label="predicted = true")
        panels[1].axhline(0, color=GRID)
        shown = {f"predicted {name}": predicted, "predicted - true": predicted - true}
        for axes, (label, values) in zip(panels, shown.items(), strict=True):
            axes.plot(true, values, ".", color=POINT_COLOR, markersize=2)
            axes.set_xlabel(f"true {name}")
            axes.set_ylabel(label)
            tidy(axes)
    legend_above(figure, figure.axes[0].get_lines()[:1])
    return figure
