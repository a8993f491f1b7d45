"""Pictures of drawings, for the screen or for a column of a page: SVG, with a tooltip for every box, PNG and PDF.

Planned schedules have one scale, so that pictures of several methods can be compared: a stage's forward pass is equally
wide in all of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot

from hybridnn.drawing.drawing import (
    KINDS,
    Arrow,
    Box,
    Drawing,
    axis_ticks,
    kinds_drawn,
    longest_label,
    longest_version,
    readable_duration,
)
from hybridnn.drawing.shapes import FONT, PER_INCH, Path, Picture, Rect, Shape, ShapeGroup, Text

SLOT = 32.0  # width of a stage's forward pass in planned schedules: v2+3 fits into it, and 10a into half of it
MOST_PIXELS = 6_000.0  # widest time axis; larger schedules have a smaller scale
LEAST_PIXELS = 640.0  # narrowest time axis of a drawing of messages, whose boxes have no labels
TICK_PIXELS = 60.0

ROW, GAP, EDGE = 26.0, 6.0, 14.0
VERSION_FONT, VERSION_ROW = 10.0, 11.0  # of the versions below the numbers
LINE = 15.0  # from a line of the title to the next
ARROW_GAP = 24.0  # space between rows if there are arrows
LEAST_EDGED = 6.0  # widest box of a message without an edge
LEAST_EDGED_COMPUTATION = 3.0  # and of a computation, whose colour the edge would hide
LEAST_FONT = 6.0  # of a label; it is left out where it would have to be smaller
FILL = 0.95  # share of a box that its label may have

PRINT_POINTS = 6.0  # size of the text of a picture with a given width
PRINT_EDGE, PRINT_LEAST_FONT = 4.0, 10.0  # of such a picture; 10 of 12 are 5 points

ARIAL, DEJAVU = 0.57, 0.66
"""Upper bounds of the width of a digit, in font sizes: of Arial and Helvetica, and of DejaVu Sans, matplotlib's."""


def svg_text(drawing: Drawing) -> str:
    """The picture as an SVG document."""
    return picture_bytes(drawing, "svg").decode()


def picture_bytes(drawing: Drawing, file_format: str, width: float | None = None) -> bytes:
    """The picture as ``"svg"``, ``"png"`` with 150 dots per inch, or ``"pdf"``; the `width` is in centimetres.

    With one, such as 8 for a column of a page, text has 6 points, and the labels of boxes at least 5; those that do not
    fit are left out. By default all planned schedules have one scale.
    """
    # The width of a column has no room for the wide letters of the font that browsers take where they have no other.
    character = ARIAL if file_format == "svg" and width is not None else DEJAVU
    return lay_out(drawing, character, width).encoded(file_format)


# -- places ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """Where a drawing is in its picture."""

    character: float  # width of a character, in font sizes
    left: float  # of the time axis
    top: float  # of the first row
    scale: float  # pixels per unit of time
    height: float  # of a row
    pitch: float  # from a row to the next
    least_font: float

    def x(self, time: float) -> float:
        """Place of a time."""
        return self.left + self.scale * time

    def y(self, row: int) -> float:
        """Top of a row."""
        return self.top + row * self.pitch


def lay_out(drawing: Drawing, character: float = DEJAVU, centimetres: float | None = None) -> Picture:
    """Arrange a drawing whose digits are at most `character` font sizes wide, for a width of the picture or without.

    Without one, the scale is that of all planned schedules, or wide enough for the labels of the shortest computations.
    """
    edge = EDGE if centimetres is None else PRINT_EDGE
    size = 1.0 if centimetres is None else PRINT_POINTS / 72 * PER_INCH / FONT
    given = None if centimetres is None else centimetres / 2.54 * PER_INCH / size
    letter = character * FONT
    left = edge + letter * max([len(drawing.axis_label), *(len(row.label) for row in drawing.rows)]) + 10
    scale = _pixels_per_time(drawing, letter) if given is None else (given - left - edge) / (drawing.makespan or 1.0)
    width = given or max(left + scale * drawing.makespan + edge, 480.0, 2 * edge + 1.2 * letter * len(drawing.title))
    titles = textwrap.wrap(drawing.title, int((width - 2 * edge) / letter)) if given else [drawing.title]
    height = ROW + (VERSION_ROW if drawing.versions else 0.0)
    top = edge + LINE * len(titles) + FONT + GAP - (LINE - FONT)
    pitch = height + (ARROW_GAP if drawing.arrows else GAP)
    frame = Frame(character, left, top, scale, height, pitch, LEAST_FONT if given is None else PRINT_LEAST_FONT)
    bottom = frame.y(len(drawing.rows))
    legend, legend_height = _legend(drawing, edge, bottom + 34, width, letter)
    shapes = [
        *(Text(edge, edge + FONT + LINE * number, text, "ink", bold=True) for number, text in enumerate(titles)),
        *_axis(drawing, frame, edge, bottom),
        *(shape for number in range(len(drawing.rows)) for shape in _row(drawing, frame, edge, number)),
        *(_arrow(arrow, frame) for arrow in drawing.arrows),
        *legend,
    ]
    return Picture(drawing.title, width, bottom + 34 + legend_height + edge, shapes, size)


def _pixels_per_time(drawing: Drawing, letter: float) -> float:
    end = drawing.makespan or 1.0
    if drawing.slot:
        return min(SLOT / drawing.slot, MOST_PIXELS / end)
    characters = max(longest_label(drawing), longest_version(drawing) * VERSION_FONT / FONT)
    wanted = (letter * characters + 14) / readable_duration(drawing)
    if drawing.arrows or not any(kind.computes for kind in kinds_drawn(drawing)):
        wanted = max(wanted, LEAST_PIXELS / end)
    return min(wanted, MOST_PIXELS / end)


def _axis(drawing: Drawing, frame: Frame, edge: float, bottom: float) -> Iterator[Shape]:
    """Time axis below the rows, with a vertical line at every tick."""
    yield Text(edge, bottom + FONT, drawing.axis_label, "muted")
    most = max(2, int(frame.scale * drawing.makespan / TICK_PIXELS))
    for time, label in axis_ticks(drawing.makespan, most):
        x = frame.x(time)
        yield Path([(x, frame.top - 3), (x, bottom)], "rule")
        most_right = frame.x(drawing.makespan) + edge - frame.character * FONT * len(label) / 2
        yield Text(min(x, most_right), bottom + FONT, label, "muted", anchor="middle")


def _row(drawing: Drawing, frame: Frame, edge: float, number: int) -> Iterator[Shape | ShapeGroup]:
    row, y = drawing.rows[number], frame.y(number)
    yield Text(edge, _baseline(y, frame.height), row.label, "ink")
    yield Rect(frame.left, y, frame.scale * drawing.makespan, frame.height, "idle", "rule")
    yield ShapeGroup([_box(box, frame, y) for box in row.boxes])


def _box(box: Box, frame: Frame, y: float) -> ShapeGroup:
    kind = KINDS[box.kind]
    x, width = frame.x(box.start), frame.scale * (box.end - box.start)
    # An edge in the colour of the page separates boxes of one colour; it would hide the short ones of a measured run.
    edge = "paper" if width > (LEAST_EDGED_COMPUTATION if kind.computes else LEAST_EDGED) else ""
    shapes: list[Shape] = [Rect(x, y, width, frame.height, kind.fill, edge)]
    baseline = _baseline(y, ROW if box.version else frame.height)
    for text, largest, place in ((box.label, FONT, baseline), (box.version, VERSION_FONT, y + frame.height - 5)):
        size = min(largest, FILL * width / (frame.character * len(text))) if text else 0.0
        if size >= frame.least_font:
            is_tight = DEJAVU * size * len(text) > FILL * width  # for the font that browsers take without Arial
            length = FILL * width if is_tight else 0.0
            shapes.append(Text(x + width / 2, place, text, kind.ink, size, anchor="middle", length=length))
    return ShapeGroup(shapes, box.detail or kind.name)


def _arrow(arrow: Arrow, frame: Frame) -> ShapeGroup:
    """A line with an arrowhead from the edge of one row to that of another."""
    down = arrow.target > arrow.source
    x1, x2 = frame.x(arrow.start), frame.x(arrow.end)
    y1 = frame.y(arrow.source) + (frame.height if down else 0.0)
    y2 = frame.y(arrow.target) + (0.0 if down else frame.height)
    length = hypot(x2 - x1, y2 - y1) or 1.0
    along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
    sides = [(x2 - 7 * along[0] + side * 3 * across[0], y2 - 7 * along[1] + side * 3 * across[1]) for side in (1, -1)]
    line = Path([(x1, y1), (x2, y2)], "ink", dashes=() if arrow.arrives else (4.0, 3.0))
    return ShapeGroup([line, Path([(x2, y2), *sides], fill="ink")])


def _legend(drawing: Drawing, edge: float, top: float, width: float, letter: float) -> tuple[list[Shape], float]:
    """Shapes of the legend, and its height."""
    entries = [(kind.fill, kind.name) for kind in kinds_drawn(drawing)] + [("idle", "idle")]
    entries += [("", text) for text in "; ".join((drawing.numbering, drawing.versions)).split("; ") if text]
    shapes: list[Shape] = []
    x, y = edge, top
    for fill, text in entries:
        swatch = 20.0 if fill else 0.0
        needed = swatch + letter * len(text) + 16
        if x > edge and x + needed - 16 > width:
            x, y = edge, y + 20
        if fill:
            shapes.append(Rect(x, y, 14, 14, fill, "rule"))
        shapes.append(Text(x + swatch, y + 11, text, "ink"))
        x += needed
    return shapes, y - top + 14


def _baseline(y: float, height: float) -> float:
    """Baseline of text in the middle of a row."""
    return y + height / 2 + 0.36 * FONT
