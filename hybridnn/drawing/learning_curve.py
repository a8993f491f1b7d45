"""Pictures of learning curves, without matplotlib, which takes longer to load than a small training takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor, log10
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.drawing.figures import COLORS, COLUMN, DASHES, TEXT, lies_on
from hybridnn.drawing.shapes import PER_INCH, POINT, Circle, Line, Picture, Polyline, Rect, Shape, Text

if TYPE_CHECKING:
    from hybridnn.training.records import EpochRecord

TRAIN_COLOR, TEST_COLOR = COLORS[0], COLORS[1]

LOG_SCALE_RATIO = 10.0  # ratio of the largest to the smallest loss from which the axis is logarithmic

SIZE = TEXT * POINT  # of text
CHARACTER = 0.64 * SIZE  # width of a digit in a wide font
GAP = 0.5 * SIZE
LINE = 1.3 * POINT  # width of a line of data
LEGEND_LINE = 1.4 * SIZE  # from a line of the legend to the next
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
    dashing: int = 0  # index of its `DASHES`


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
    return _picture(f"Learning curve of {last} epochs", panels, panels[0].series, last)


class RunCurves(NamedTuple):
    """The epochs of a run whose curves are drawn beside those of others."""

    label: str
    epochs: Sequence[EpochRecord]
    evaluated: str  # name of the split on which the epochs were evaluated


def compared_curves(runs: Sequence[RunCurves]) -> Picture:
    """Losses on the validation or test samples, and accuracies or R² if there are any, with a line for each run.

    A curve that lies on that of an earlier run is dashed, with rings for its points, so that both are seen.

    Parameters
    ----------
    runs : sequence of RunCurves
        At least one with epochs. Values are left out as in `learning_curve`.
    """
    losses = [_points((record.epoch, record.validation_loss) for record in run.epochs) for run in runs]
    metrics = [_points((record.epoch, record.metric) for record in run.epochs) for run in runs]
    hidden = [
        sum(lies_on(losses[n], losses[m]) or lies_on(metrics[n], metrics[m]) for m in range(n))
        for n in range(len(runs))
    ]

    def lines(points: Sequence[list[Point]]) -> list[Series]:
        return [
            Series(run.label, COLORS[n % len(COLORS)], points[n], (hidden[n] + n // len(COLORS)) % len(DASHES))
            for n, run in enumerate(runs)
        ]

    evaluated = " or ".join(dict.fromkeys(run.evaluated for run in runs)).capitalize()
    names = " or ".join(
        dict.fromkeys(record.metric_name for run in runs for record in run.epochs if record.metric is not None)
    )
    panels = [Panel(f"{evaluated} loss, mean per sample", lines(losses), is_log=_is_log(losses))]
    if any(metrics):
        panels.append(Panel(f"{evaluated} {names}", lines(metrics)))
    last = max(record.epoch for run in runs for record in run.epochs)
    return _picture(f"Learning curves of {len(runs)} runs", panels, panels[0].series, last)


def _picture(title: str, panels: Sequence[Panel], explained: Sequence[Series], last: int) -> Picture:
    """Panels one below the other, over epochs up to the `last`, with a legend above them."""
    axes = [_vertical_axis(panel) for panel in panels]
    left = max((len(label) for axis in axes for _, label in axis.ticks), default=0) * CHARACTER + 2 * GAP
    shapes, lines = _legend(explained, left)
    top = (lines - 1) * LEGEND_LINE
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        box = Rect(left, top + 4 * SIZE + number * PANEL, WIDTH - left - 2 * GAP, PANEL - 5.4 * SIZE, "")
        shapes += _panel(panel, axis, box, last)
    return Picture(title, WIDTH, top + 2 * SIZE + len(panels) * PANEL, shapes)


def _is_log(curves: Iterable[Sequence[Point]]) -> bool:
    """Whether values span so much that their axis is logarithmic."""
    values = [value for points in curves for _, value in points]
    return bool(values) and min(values) > 0 and max(values) >= LOG_SCALE_RATIO * min(values)


def _panels(epochs: Sequence[EpochRecord], evaluated: str) -> list[Panel]:
    train = _points((record.epoch, record.train_loss) for record in epochs)
    test = _points((record.epoch, record.validation_loss) for record in epochs)
    lines = [Series("train", TRAIN_COLOR, train), Series(evaluated, TEST_COLOR, test)]
    panels = [Panel("Mean loss", [line for line in lines if line.points], is_log=_is_log((train, test)))]
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


def _legend(series: Sequence[Series], left: float) -> tuple[list[Shape], int]:
    """Shapes of the legend, and its lines: entries side by side while there is room, long ones in several lines."""
    shapes: list[Shape] = []
    x, line = left, 0
    longest = int((WIDTH - left - 2 * SIZE - 2 * GAP) / CHARACTER)
    for entry in series:
        texts = wrap(entry.label, longest, break_on_hyphens=False)
        width = 2 * SIZE + 3 * GAP + CHARACTER * max(map(len, texts))
        if x > left and x + width - 2 * GAP > WIDTH:
            x, line = left, line + 1
        y = 1.2 * SIZE + line * LEGEND_LINE
        shapes.append(Polyline(((x, y), (x + 2 * SIZE, y)), entry.color, LINE, DASHES[entry.dashing]))
        for number, text in enumerate(texts):
            shapes.append(Text(x + 2 * SIZE + GAP, y + 0.3 * SIZE + number * LEGEND_LINE, text, "ink", SIZE))
        x, line = x + width, line + len(texts) - 1
    return shapes, line + 1


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
        shapes.append(Polyline(points, series.color, LINE, DASHES[series.dashing]))
        if len(points) > MOST_DOTS:
            continue
        radius = (1.25 + 1.5 * series.dashing) * POINT
        shapes += [
            Circle(x, y, radius, edge=series.color) if series.dashing else Circle(x, y, radius, series.color)
            for x, y in points
        ]
    if panel.marked is not None:
        shapes.append(Circle(*place(panel.marked), 3 * POINT, edge="muted"))
    return shapes
