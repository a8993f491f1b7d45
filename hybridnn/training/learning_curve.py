"""The learning curve of a training as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from hybridnn.utils.figures import COLORS, MUTED, column_figure, legend_above, plain_ticks, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN_COLOR, TEST_COLOR = COLORS[0], COLORS[1]

LOG_SCALE_RATIO = 10.0  # ratio of the largest to the smallest loss from which the axis is logarithmic

PANEL = 1.8  # inches, height of a panel

Points = list[tuple[int, float]]


class EvaluatedEpoch(Protocol):
    """What the curve needs of an `EpochRecord`."""

    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def train_loss(self) -> float: ...  # noqa: D102
    @property
    def test_loss(self) -> float | None: ...  # noqa: D102
    @property
    def test_accuracy(self) -> float | None: ...  # noqa: D102
    @property
    def test_r2(self) -> float | None: ...  # noqa: D102


def learning_curve(epochs: Sequence[EvaluatedEpoch], evaluated: str = "test") -> Figure:
    """Training and test loss, and the test accuracy or R² if there is one.

    Parameters
    ----------
    epochs : sequence of EpochRecord
        At least one; values that are None or not finite are left out.
    evaluated : str
        Name of the split on which the epochs were evaluated, such as ``"validation"``.
    """
    accuracy = _points((record.epoch, record.test_accuracy) for record in epochs)
    metric = accuracy or _points((record.epoch, record.test_r2) for record in epochs)
    figure, panels = column_figure(*[PANEL] * (2 if metric else 1))
    _draw_losses(panels[0], epochs, evaluated)
    if metric:
        _draw_metric(panels[1], metric, evaluated, is_accuracy=bool(accuracy))
    for axes in panels:
        _format_axes(axes, max(record.epoch for record in epochs))
    legend_above(figure, panels[0].get_lines())
    return figure


def _points(pairs: Iterable[tuple[int, float | None]]) -> Points:
    return [(epoch, value) for epoch, value in pairs if value is not None and math.isfinite(value)]


def _draw_losses(axes: Axes, epochs: Sequence[EvaluatedEpoch], evaluated: str) -> None:
    train = _points((record.epoch, record.train_loss) for record in epochs)
    test = _points((record.epoch, record.test_loss) for record in epochs)
    axes.set_title("Loss")
    axes.set_ylabel("mean loss")
    for points, label, color in ((train, "train", TRAIN_COLOR), (test, evaluated, TEST_COLOR)):
        if points:
            _line(axes, points, color, label)
    values = [value for _, value in train + test]
    if values and min(values) > 0 and max(values) >= LOG_SCALE_RATIO * min(values):
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)


def _draw_metric(axes: Axes, points: Points, evaluated: str, *, is_accuracy: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    _line(axes, points, TEST_COLOR, evaluated)
    best_epoch, best = max(points, key=lambda point: point[1])
    axes.plot(best_epoch, best, marker="o", markersize=6, markerfacecolor="none", color=MUTED, linestyle="none")
    text = f"{best:.2%}" if is_accuracy else f"{best:.4f}"
    axes.set_title(f"{evaluated.capitalize()} {'accuracy' if is_accuracy else 'R²'}: best {text} in epoch {best_epoch}")
    axes.set_ylabel("accuracy" if is_accuracy else "R²")
    if is_accuracy:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))


def _line(axes: Axes, points: Points, color: str, label: str) -> None:
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color=color, label=label, linewidth=1.3, marker="o", markersize=2.5 if len(points) <= 40 else 0)


def _format_axes(axes: Axes, last_epoch: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    margin = max(0.5, 0.03 * last_epoch)
    axes.set_xlim(1 - margin, last_epoch + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    tidy(axes)
