"""Pictures of learning curves; that of one run without matplotlib, which takes longer to load than a small training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.drawing.drawing import round_ticks
from hybridnn.drawing.figures import COLORS, COLUMN, PANEL, TEXT, column_figure, draw_lines, legend_above, plain_ticks
from hybridnn.drawing.shapes import PER_INCH, POINT, Circle, Path, Picture, Rect, Shape, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hybridnn.training.records import EpochRecord

LOG_SCALE_RATIO = 10.0  # ratio of the largest to the smallest loss from which the axis is logarithmic

SIZE = TEXT * POINT  # of text
CHARACTER = 0.64 * SIZE  # width of a digit in a wide font
GAP = 0.5 * SIZE
LINE = 1.3 * POINT  # width of a line of data
WIDTH, HEIGHT = COLUMN * PER_INCH, 1.8 * PER_INCH  # of the picture, and of a panel with its title and labels
MOST_DOTS = 40  # points of a line with dots
TICKS = 6  # on an axis, at most; of decades twice as many
SMALLEST, LARGEST, MOST_DECADES = 1e-290, 1e300, 300
"""Larger values are not drawn, and smaller differences are none: steps between ticks would over- or underflow."""

Point = tuple[float, float]  # an epoch, and a value


class Series(NamedTuple):
    """A line through points, with its entry of the legend."""

    label: str
    color: str
    points: Sequence[Point]


class Panel(NamedTuple):
    """A plot of lines over the epochs."""

    title: str
    series: Sequence[Series]
    is_log: bool = False  # whether the vertical axis is logarithmic
    marked: Point | None = None  # a point with a ring around it


def learning_curve(epochs: Sequence[EpochRecord], evaluated: str = "validation") -> Picture:
    """Training and validation loss, and the validation accuracy or R² if there is one, in panels one below the other.

    `evaluated` is the name of the split on which the epochs, at least one, were evaluated, ``"test"`` in a run without
    a validation split. Values that are None, not finite or beyond 1e300 are left out.
    """
    last, panels = max(record.epoch for record in epochs), _panels(epochs, evaluated)
    axes = [_vertical_axis(panel) for panel in panels]
    left = max((len(label) for axis in axes for _, label in axis.ticks), default=0) * CHARACTER + 2 * GAP
    shapes = _legend(panels[0].series, left)
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        box = Rect(left, 4 * SIZE + number * HEIGHT, WIDTH - left - 2 * GAP, HEIGHT - 5.4 * SIZE, "")
        shapes += _panel(panel, axis, box, last)
    return Picture(f"Learning curve of {last} epochs", WIDTH, 2 * SIZE + len(panels) * HEIGHT, shapes)


class RunCurves(NamedTuple):
    """The epochs of a run whose curves are drawn beside those of others."""

    label: str
    epochs: Sequence[EpochRecord]
    evaluated: str  # name of the split on which the epochs were evaluated


def compared_curves(runs: Sequence[RunCurves]) -> Figure:
    """Losses on the validation or test samples, and accuracies or R² if there are any, with a line for each run.

    At least one of the runs has epochs. Values are left out as in `learning_curve`.
    """
    from matplotlib.ticker import MaxNLocator

    losses = [_points((record.epoch, record.validation_loss) for record in run.epochs) for run in runs]
    metrics = [_points((record.epoch, record.metric) for record in run.epochs) for run in runs]
    evaluated = " or ".join(dict.fromkeys(run.evaluated for run in runs)).capitalize()
    names = dict.fromkeys(record.metric_name for run in runs for record in run.epochs if record.metric is not None)
    plots = {f"{evaluated} loss, mean per sample": losses}
    if any(metrics):
        plots[f"{evaluated} {' or '.join(names)}"] = metrics
    figure, panels = column_figure(*[PANEL] * len(plots))
    for axes, (title, curves) in zip(panels, plots.items(), strict=True):
        axes.set_title(title)
        if curves is losses and _is_log(losses):
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        lines = [
            (run.label, [epoch for epoch, _ in points], [value for _, value in points])
            for run, points in zip(runs, curves, strict=True)
        ]
        draw_lines(axes, lines, "epoch")
    legend_above(figure, panels[0].get_lines())
    return figure


def _is_log(curves: Iterable[Sequence[Point]]) -> bool:
    """Whether values span so much that their axis is logarithmic."""
    values = [value for points in curves for _, value in points]
    return bool(values) and min(values) > 0 and max(values) >= LOG_SCALE_RATIO * min(values)


def _panels(epochs: Sequence[EpochRecord], evaluated: str) -> list[Panel]:
    train = _points((record.epoch, record.train_loss) for record in epochs)
    test = _points((record.epoch, record.validation_loss) for record in epochs)
    lines = [Series("train", COLORS[0], train), Series(evaluated, COLORS[1], test)]
    panels = [Panel("Mean loss", [line for line in lines if line.points], is_log=_is_log((train, test)))]
    accuracy = _points((record.epoch, record.validation_accuracy) for record in epochs)
    metric = accuracy or _points((record.epoch, record.validation_r2) for record in epochs)
    if metric:
        title = f"{evaluated.capitalize()} {'accuracy' if accuracy else 'R²'}"
        best = max(metric, key=lambda point: point[1]) if evaluated == "validation" else None
        title += f": best {best[1]:.4f} in epoch {best[0]}" if best else ""
        panels.append(Panel(title, [Series(evaluated, COLORS[1], metric)], marked=best))
    return panels


def _points(pairs: Iterable[tuple[int, float | None]]) -> list[Point]:
    return [(epoch, value) for epoch, value in pairs if value is not None and abs(value) <= LARGEST]


# -- axes --------------------------------------------------------------------------------------------------------------


class _Axis(NamedTuple):
    """A vertical scale, linear or of logarithms: its ends, and the values with labels."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool

    def place(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        return ((log10(value) if self.is_log else value) - self.low) / (self.high - self.low)


def _vertical_axis(panel: Panel) -> _Axis:
    values = [value for series in panel.series for _, value in series.points] or [0.0, 1.0]
    ends = (log10(min(values)), log10(max(values))) if panel.is_log else (min(values), max(values))
    low, high = _widened(*ends)
    ticks = logarithmic_ticks(low, high) if panel.is_log else round_ticks(low, high, TICKS)
    return _Axis(low, high, [(tick, f"{tick:.9g}") for tick in ticks], panel.is_log)


def _widened(low: float, high: float) -> tuple[float, float]:
    """An interval with a margin, that of values which differ in their last digits only, or of one, in their size."""
    largest = max(abs(low), abs(high))
    margin = 0.06 * (high - low) if high - low > 1e-9 * largest else 0.05 * largest
    margin = margin if margin > SMALLEST else 1.0
    return low - margin, high + margin


def logarithmic_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between 10**low and 10**high; with 3 times them, or 2 and 5 times, where they would be few."""
    decades = range(max(floor(low), -MOST_DECADES), min(ceil(high), MOST_DECADES) + 1)
    every = ceil(len(decades) / (2 * TICKS))
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [factor * 10.0**power for power in decades if power % every == 0 for factor in factors]
        inside = [tick for tick in ticks if low <= log10(tick) <= high]
        if len(inside) > 3:
            break
    return inside


# -- shapes ------------------------------------------------------------------------------------------------------------


def _legend(series: Sequence[Series], x: float) -> list[Shape]:
    shapes: list[Shape] = []
    for entry in series:
        shapes.append(Path([(x, 1.2 * SIZE), (x + 2 * SIZE, 1.2 * SIZE)], entry.color, width=LINE))
        shapes.append(Text(x + 2 * SIZE + GAP, 1.5 * SIZE, entry.label, "ink", SIZE))
        x += 2 * SIZE + 3 * GAP + CHARACTER * len(entry.label)
    return shapes


def _panel(panel: Panel, axis: _Axis, box: Rect, last: int) -> list[Shape]:
    """The shapes of a panel whose axes enclose `box`."""
    bottom, right = box.y + box.height, box.x + box.width
    margin = max(0.5, 0.03 * last)
    first, length = 1 - margin, last - 1 + 2 * margin

    def place(point: Point) -> Point:
        return box.x + (point[0] - first) / length * box.width, bottom - axis.place(point[1]) * box.height

    def centered(x: float, y: float, text: str, color: str = "ink") -> Text:
        return Text(x, y, text, color, SIZE, "middle")

    middle = box.x + box.width / 2
    shapes: list[Shape] = [centered(middle, box.y - SIZE, panel.title), centered(middle, bottom + 2.6 * SIZE, "epoch")]
    for value, label in axis.ticks:
        y = bottom - axis.place(value) * box.height
        shapes.append(Path([(box.x, y), (right, y)], "rule"))
        shapes.append(Text(box.x - GAP, y + 0.35 * SIZE, label, "muted", SIZE, "end"))
    for epoch in round_ticks(1, max(last, 2), TICKS, whole=True):
        if epoch <= last:
            x = box.x + (epoch - first) / length * box.width
            shapes.append(Path([(x, box.y), (x, bottom)], "rule"))
            shapes.append(centered(x, bottom + 1.3 * SIZE, f"{epoch:.0f}", "muted"))
    shapes.append(Path([(box.x, box.y), (box.x, bottom), (right, bottom)], "muted"))
    for series in panel.series:
        points = list(map(place, series.points))
        shapes.append(Path(points, series.color, width=LINE))
        shapes += [Circle(x, y, 1.25 * POINT, series.color) for x, y in points if len(points) <= MOST_DOTS]
    if panel.marked is not None:
        shapes.append(Circle(*place(panel.marked), 3 * POINT, edge="muted"))
    return shapes
