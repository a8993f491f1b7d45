"""The learning curve of a training, as a picture and as a figure of matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hybridnn.drawing.figures import COLORS, MUTED, column_figure, legend_above, plain_ticks, tidy
from hybridnn.drawing.line_plot import LARGEST, MOST_DOTS, Panel, Series, line_plot
from hybridnn.drawing.shapes import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hybridnn.training.records import EpochRecord

TRAIN_COLOR, TEST_COLOR = COLORS[0], COLORS[1]

LOG_SCALE_RATIO = 10.0  # ratio of the largest to the smallest loss from which the axis is logarithmic

PANEL = 1.8  # inches, height of a panel

Points = list[tuple[float, float]]


def learning_curve(epochs: Sequence[EpochRecord], evaluated: str = "test") -> Picture:
    """Training and test loss, and the test accuracy or R² if there is one; without matplotlib.

    Parameters
    ----------
    epochs : sequence of EpochRecord
        At least one; values that are None, not finite or beyond 1e300 are left out.
    evaluated : str
        Name of the split on which the epochs were evaluated, such as ``"validation"``.
    """
    last = max(record.epoch for record in epochs)
    return line_plot(f"Learning curve of {last} epochs", _panels(epochs, evaluated), last, PANEL)


def learning_curve_figure(epochs: Sequence[EpochRecord], evaluated: str = "test") -> Figure:
    """`learning_curve` as a figure of matplotlib, whose axes a program can change."""
    panels = _panels(epochs, evaluated)
    figure, all_axes = column_figure(*[PANEL] * len(panels))
    for panel, axes in zip(panels, all_axes, strict=True):
        _draw(axes, panel, max(record.epoch for record in epochs))
    legend_above(figure, all_axes[0].get_lines())
    return figure


def _panels(epochs: Sequence[EpochRecord], evaluated: str) -> list[Panel]:
    train = _points((record.epoch, record.train_loss) for record in epochs)
    test = _points((record.epoch, record.test_loss) for record in epochs)
    values = [value for _, value in train + test]
    is_log = bool(values) and min(values) > 0 and max(values) >= LOG_SCALE_RATIO * min(values)
    lines = [Series("train", TRAIN_COLOR, train), Series(evaluated, TEST_COLOR, test)]
    panels = [Panel("Mean loss", "epoch", [line for line in lines if line.points], is_log=is_log)]
    accuracy = _points((record.epoch, record.test_accuracy) for record in epochs)
    metric = accuracy or _points((record.epoch, record.test_r2) for record in epochs)
    if metric:
        best = max(metric, key=lambda point: point[1])
        text = f"{best[1]:.2%}" if accuracy else f"{best[1]:.4f}"
        title = f"{evaluated.capitalize()} {'accuracy' if accuracy else 'R²'}: best {text} in epoch {best[0]}"
        line = Series(evaluated, TEST_COLOR, metric)
        panels.append(Panel(title, "epoch", [line], is_percent=bool(accuracy), marked=best))
    return panels


def _points(pairs: Iterable[tuple[int, float | None]]) -> Points:
    return [(epoch, value) for epoch, value in pairs if value is not None and abs(value) <= LARGEST]


def _draw(axes: Axes, panel: Panel, last_epoch: int) -> None:
    """Draw a panel with matplotlib."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for label, color, points in panel.series:
        xs, ys = zip(*points, strict=True)
        dots = 2.5 if len(points) <= MOST_DOTS else 0
        axes.plot(xs, ys, color=color, label=label, linewidth=1.3, marker="o", markersize=dots)
    if panel.marked is not None:
        axes.plot(*panel.marked, marker="o", markersize=6, markerfacecolor="none", color=MUTED, linestyle="none")
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    if panel.is_log:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
    if panel.is_percent:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    margin = max(0.5, 0.03 * last_epoch)
    axes.set_xlim(1 - margin, last_epoch + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    tidy(axes)
