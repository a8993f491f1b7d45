"""Picture of a learning curve, without matplotlib, which takes longer to load than a small training takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.drawing.figures import COLORS, COLUMN, TEXT
from hybridnn.drawing.shapes import PER_INCH, POINT, Circle, Line, Picture, Polyline, Rect, Shape, Text

if TYPE_CHECKING:
    from hybridnn.training.records import EpochRecord

TRAIN_COLOR, TEST_COLOR = COLORS[0], COLORS[1]

LOG_SCALE_RATIO = 10.0  # ratio of the largest to the smallest loss from which the axis is logarithmic

SIZE = TEXT * POINT  # of text
CHARACTER = 0.64 * SIZE  # width of a digit in a wide font
GAP = 0.5 * SIZE
LINE = 1.3 * POINT  # width of a line of data
WIDTH, PANEL = COLUMN * PER_INCH, 1.8 * PER_INCH  # of the picture, and height of a panel with its title and labels
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

    Parameters
    ----------
    epochs : sequence of EpochRecord
        At least one; values that are None, not finite or beyond 1e300 are left out.
    evaluated : str
        Name of the split on which the epochs were evaluated, ``"test"`` in a run without a validation split.
    """
    last, panels = max(record.epoch for record in epochs), _panels(epochs, evaluated)
    axes = [_vertical_axis(panel) for panel in panels]
    left = max((len(label) for axis in axes for _, label in axis.ticks), default=0) * CHARACTER + 2 * GAP
    shapes = _legend(panels[0].series, left)
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        box = Rect(left, 4 * SIZE + number * PANEL, WIDTH - left - 2 * GAP, PANEL - 5.4 * SIZE, "")
        shapes += _panel(panel, axis, box, last)
    return Picture(f"Learning curve of {last} epochs", WIDTH, 2 * SIZE + len(panels) * PANEL, shapes)


def _panels(epochs: Sequence[EpochRecord], evaluated: str) -> list[Panel]:
    train = _points((record.epoch, record.train_loss) for record in epochs)
    test = _points((record.epoch, record.validation_loss) for record in epochs)
    values = [value for _, value in train + test]
    is_log = bool(values) and min(values) > 0 and max(values) >= LOG_SCALE_RATIO * min(values)
    lines = [Series("train", TRAIN_COLOR, train), Series(evaluated, TEST_COLOR, test)]
    panels = [Panel("Mean loss", [line for line in lines if line.points], is_log=is_log)]
    accuracy = _points((record.epoch, record.validation_accuracy) for record in epochs)
    metric = accuracy or _points((record.epoch, record.validation_r2) for record in epochs)
    if metric:
        title = f"{evaluated.capitalize()} {'accuracy' if accuracy else 'R²'}"
        best = max(metric, key=lambda point: point[1]) if evaluated == "validation" else None
        title += f": best {best[1]:.4f} in epoch {best[0]}" if best else ""
        panels.append(Panel(title, [Series(evaluated, TEST_COLOR, metric)], marked=best))
    return panels


def _points(pairs: Iterable[tuple[int, float | None]]) -> list[Point]:
    return [(epoch, value) for epoch, value in pairs if value is not None and abs(value) <= LARGEST]


# -- axes --------------------------------------------------------------------------------------------------------------


class _Axis(NamedTuple):
    """A scale: where a value is, from 0 to 1, and the values with labels."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def _vertical_axis(panel: Panel) -> _Axis:
    values = [value for series in panel.series for _, value in series.points] or [0.0, 1.0]
    if panel.is_log:
        low, high = _widened(log10(min(values)), log10(max(values)))
        ticks = logarithmic_ticks(low, high)
        return _Axis(lambda value: (log10(value) - low) / (high - low), [(tick, f"{tick:g}") for tick in ticks])
    low, high = _widened(min(values), max(values))
    ticks = linear_ticks(low, high)
    return _Axis(lambda value: (value - low) / (high - low), list(zip(ticks, _labels(ticks), strict=True)))


def _widened(low: float, high: float) -> tuple[float, float]:
    """An interval with a margin, that of values which differ in their last digits only, or of one, in their size."""
    largest = max(abs(low), abs(high))
    margin = 0.06 * (high - low) if high - low > 1e-9 * largest else 0.05 * largest
    margin = margin if margin > SMALLEST else 1.0
    return low - margin, high + margin


def linear_ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """At most `TICKS` multiples of 1, 2 or 5 times a power of ten between two numbers; `whole` ones if required."""
    step = 10.0 ** floor(log10((high - low) / TICKS))
    while floor(high / step) - ceil(low / step) + 1 > TICKS or (whole and step < 1):
        # 1, 2, 5, 10: the first digit of a step decides what follows.
        step *= 2.5 if round(step / 10 ** floor(log10(step) + 1e-9)) == 2 else 2
    return [number * step for number in range(ceil(low / step), floor(high / step) + 1)]


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


def _labels(ticks: Sequence[float]) -> list[str]:
    """Numbers with as many decimals as the finest needs."""
    largest = max(map(abs, ticks), default=0.0)
    if largest and not 1e-4 <= largest < 1e6:
        return [f"{tick:.3g}" for tick in ticks]
    decimals = next((n for n in range(8) if all(abs(round(t, n) - t) < 1e-9 * largest for t in ticks)), 8)
    return [f"{tick:.{decimals}f}" for tick in ticks]


# -- shapes ------------------------------------------------------------------------------------------------------------


def _legend(series: Sequence[Series], left: float) -> list[Shape]:
    shapes: list[Shape] = []
    x = left
    for entry in series:
        shapes.append(Polyline(((x, 1.2 * SIZE), (x + 2 * SIZE, 1.2 * SIZE)), entry.color, LINE))
        shapes.append(Text(x + 2 * SIZE + GAP, 1.5 * SIZE, entry.label, "ink", SIZE))
        x += 2 * SIZE + 3 * GAP + CHARACTER * len(entry.label)
    return shapes


def _panel(panel: Panel, axis: _Axis, box: Rect, last: int) -> list[Shape]:
    """The shapes of a panel whose axes enclose `box`."""
    bottom, right = box.y + box.height, box.x + box.width
    margin = max(0.5, 0.03 * last)
    first, length = 1 - margin, last - 1 + 2 * margin

    def across(x: float) -> float:
        return box.x + (x - first) / length * box.width

    def place(point: Point) -> Point:
        return across(point[0]), bottom - axis.place(point[1]) * box.height

    shapes: list[Shape] = [Text(box.x + box.width / 2, box.y - SIZE, panel.title, "ink", SIZE, centered=True)]
    for value, label in axis.ticks:
        y = bottom - axis.place(value) * box.height
        shapes += [
            Line(box.x, y, right, y, "rule"),
            Text(box.x - GAP, y + 0.35 * SIZE, label, "muted", SIZE, ends=True),
        ]
    for number in linear_ticks(1, max(last, 2), whole=True):
        if number > last:
            continue
        x = across(number)
        shapes.append(Line(x, box.y, x, bottom, "rule"))
        shapes.append(Text(x, bottom + 1.3 * SIZE, f"{number:.0f}", "muted", SIZE, centered=True))
    shapes += [Line(box.x, box.y, box.x, bottom, "muted"), Line(box.x, bottom, right, bottom, "muted")]
    shapes.append(Text(box.x + box.width / 2, bottom + 2.6 * SIZE, "epoch", "ink", SIZE, centered=True))
    for series in panel.series:
        points = tuple(map(place, series.points))
        shapes.append(Polyline(points, series.color, LINE))
        if len(points) <= MOST_DOTS:
            shapes += [Circle(x, y, 1.25 * POINT, series.color) for x, y in points]
    if panel.marked is not None:
        shapes.append(Circle(*place(panel.marked), 3 * POINT, edge="muted"))
    return shapes
