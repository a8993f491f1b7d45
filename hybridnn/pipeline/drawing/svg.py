"""SVG renderer of drawings, with selectable text and a tooltip for every box."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from math import hypot
from pathlib import Path
from xml.sax.saxutils import escape

from hybridnn.errors import SettingError
from hybridnn.pipeline.drawing.drawing import (
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

FONT = 12
CHARACTER = 0.62 * FONT  # upper bound of the width of a digit in sans-serif fonts

ROW, GAP, EDGE = 26.0, 6.0, 14.0
VERSION_FONT, VERSION_ROW = 9, 11.0  # of the versions below the numbers
ARROW_GAP = 24.0  # space between rows if there are arrows
LEAST_PIXELS = 640.0  # narrowest time axis of a drawing of messages, whose boxes have no labels
LEAST_EDGED = 6.0  # widest box of a message without an edge

TICK_PIXELS = 60.0
MOST_PIXELS = 20_000.0  # widest time axis; beyond it, boxes have no number

PAPER, INK, MUTED, IDLE, RULE = "#ffffff", "#1a1f26", "#5f6b7a", "#ffffff", "#d7dce2"
DARK = {
    ".hn-paper": "fill: #11161c",
    ".hn-ink": "fill: #e6eaf0",
    ".hn-muted": "fill: #a3aebc",
    ".hn-idle": "fill: #1c242d",
    ".hn-rule": "stroke: #3a4551",
    ".hn-edge": "stroke: #11161c",
    ".hn-line": "stroke: #e6eaf0",
}
"""Colours where the reader prefers dark pages, which replace the attributes; programs that make PDF ignore them."""


class SvgPicture:
    """Base class of objects with a drawing, which notebooks show."""

    @property
    @abstractmethod
    def drawing(self) -> Drawing:
        """What the picture shows."""

    def draw(self, path: str | Path) -> None:
        """Write the picture as an SVG file.

        Raises
        ------
        SettingError
            If it cannot be written, or its name does not end with .svg.
        """
        if Path(path).suffix.lower() != ".svg":
            raise SettingError("picture", str(path), "the picture is SVG: a name that ends with .svg")
        try:
            Path(path).write_text(svg_text(self.drawing), encoding="utf-8")
        except OSError as error:
            raise SettingError("picture", str(path), f"cannot be written: {error.strerror}") from error

    def _repr_svg_(self) -> str:
        return svg_text(self.drawing)


def svg_text(drawing: Drawing) -> str:
    """Render as an SVG document, wide enough for the labels of the shortest kind of computation.

    The background is white, or dark where the reader prefers dark pages.
    """
    left = EDGE + CHARACTER * max([len(drawing.axis_label), *(len(row.label) for row in drawing.rows)]) + 10
    scale = _pixels_per_time(drawing)
    span = scale * drawing.makespan
    top = EDGE + 2 * FONT + GAP
    row = ROW + (VERSION_ROW if drawing.versions else 0.0)
    pitch = row + (ARROW_GAP if drawing.arrows else GAP)
    bottom = top + len(drawing.rows) * pitch
    width = max(left + span + EDGE, 480.0, 2 * EDGE + 1.2 * CHARACTER * len(drawing.title))
    legend, legend_height = _legend(drawing, bottom + 34, width)
    height = bottom + 34 + legend_height + EDGE
    body = [
        _heading(drawing.title),
        *_axis(drawing, left, scale, top, bottom),
        *_rows(drawing, left, scale, top, pitch, row),
        *(_arrow(arrow, left, scale, top, pitch, row) for arrow in drawing.arrows),
        *legend,
    ]
    size = f'width="{_px(width)}" height="{_px(height)}" viewBox="0 0 {_px(width)} {_px(height)}"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
            f"<title>{escape(drawing.title)}</title>",
            _dark_style(),
            f'<rect class="hn-paper" width="{_px(width)}" height="{_px(height)}" fill="{PAPER}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _dark_style() -> str:
    rules = " ".join(f"{name} {{ {rule} }}" for name, rule in DARK.items())
    return f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>"


def _pixels_per_time(drawing: Drawing) -> float:
    characters = max(longest_label(drawing), longest_version(drawing) * VERSION_FONT / FONT)
    wanted = (CHARACTER * characters + 14) / readable_duration(drawing)
    if drawing.arrows or not any(kind.computes for kind in kinds_drawn(drawing)):
        wanted = max(wanted, LEAST_PIXELS / (drawing.makespan or 1.0))
    return min(wanted, MOST_PIXELS / (drawing.makespan or 1.0))


def _heading(title: str) -> str:
    place = f'x="{_px(EDGE)}" y="{_px(EDGE + FONT)}"'
    return f'<text class="hn-ink" {place} font-weight="bold" fill="{INK}">{escape(title)}</text>'


def _axis(drawing: Drawing, left: float, scale: float, top: float, bottom: float) -> Iterator[str]:
    """Time axis below the rows, with a vertical line at every tick."""
    style = f'class="hn-muted" fill="{MUTED}"'
    yield f'<text {style} x="{_px(EDGE)}" y="{_px(bottom + FONT)}">{escape(drawing.axis_label)}</text>'
    for time, label in axis_ticks(drawing.makespan, max(2, int(scale * drawing.makespan / TICK_PIXELS))):
        x = _px(left + scale * time)
        yield f'<line class="hn-rule" x1="{x}" y1="{_px(top - 3)}" x2="{x}" y2="{_px(bottom)}" stroke="{RULE}"/>'
        yield f'<text {style} x="{x}" y="{_px(bottom + FONT)}" text-anchor="middle">{escape(label)}</text>'


def _rows(drawing: Drawing, left: float, scale: float, top: float, pitch: float, height: float) -> Iterator[str]:
    for number, row in enumerate(drawing.rows):
        y = top + number * pitch
        place = f'x="{_px(EDGE)}" y="{_px(_baseline(y, height))}"'
        yield f'<text class="hn-ink" {place} fill="{INK}">{escape(row.label)}</text>'
        background = f'x="{_px(left)}" y="{_px(y)}" width="{_px(scale * drawing.makespan)}" height="{_px(height)}"'
        yield f'<rect class="hn-idle hn-rule" {background} fill="{IDLE}" stroke="{RULE}"/>'
        yield '<g text-anchor="middle">'
        for box in row.boxes:
            yield _box(box, left, scale, y, height)
        yield "</g>"


def _box(box: Box, left: float, scale: float, y: float, height: float) -> str:
    kind = KINDS[box.kind]
    x, width = left + scale * box.start, scale * (box.end - box.start)
    # An edge in the colour of the page separates boxes of one colour; it would hide the short ones of a measured run.
    edge = f' class="hn-edge" stroke="{PAPER}"' if kind.computes or width > LEAST_EDGED else ""
    rect = f'<rect x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}" fill="{kind.fill}"{edge}/>'
    title = f"<title>{escape(box.detail or kind.name)}</title>"
    label = ""
    if box.label and CHARACTER * len(box.label) <= width:
        middle = f'x="{_px(x + width / 2)}" y="{_px(_baseline(y, ROW if box.version else height))}"'
        label = f'<text {middle} fill="{kind.ink}">{escape(box.label)}</text>'
    if box.version and CHARACTER * len(box.version) * VERSION_FONT / FONT <= width:
        middle = f'x="{_px(x + width / 2)}" y="{_px(y + height - 5)}" font-size="{VERSION_FONT}"'
        label += f'<text {middle} fill="{kind.ink}">{escape(box.version)}</text>'
    return f"<g>{title}{rect}{label}</g>"


def _arrow(arrow: Arrow, left: float, scale: float, top: float, pitch: float, height: float) -> str:
    """A line with an arrowhead from the edge of one row to that of another."""
    down = arrow.target > arrow.source
    x1, x2 = left + scale * arrow.start, left + scale * arrow.end
    y1 = top + arrow.source * pitch + (height if down else 0.0)
    y2 = top + arrow.target * pitch + (0.0 if down else height)
    length = hypot(x2 - x1, y2 - y1) or 1.0
    along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
    head = [(x2, y2)] + [
        (x2 - 7 * along[0] + side * 3 * across[0], y2 - 7 * along[1] + side * 3 * across[1]) for side in (1, -1)
    ]
    points = " ".join(f"{_px(x)},{_px(y)}" for x, y in head)
    dashes = "" if arrow.arrives else ' stroke-dasharray="4 3"'
    ends = f'x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}"'
    line = f'<line class="hn-line" {ends} stroke="{INK}"{dashes}/>'
    return f'<g>{line}<polygon class="hn-ink" points="{points}" fill="{INK}"/></g>'


def _legend(drawing: Drawing, top: float, width: float) -> tuple[list[str], float]:
    """Elements of the legend, and its height."""
    entries = [(kind.fill, kind.name) for kind in kinds_drawn(drawing)] + [(IDLE, "idle")]
    entries += [("", text) for text in (drawing.numbering, *filter(None, drawing.versions.split("; ")))]
    elements: list[str] = []
    x, y = EDGE, top
    for fill, text in entries:
        swatch = 20.0 if fill else 0.0
        needed = swatch + CHARACTER * len(text) + 16
        if x > EDGE and x + needed > width:
            x, y = EDGE, y + 20
        if fill:
            style = f'class="hn-rule{" hn-idle" if fill == IDLE else ""}" fill="{fill}" stroke="{RULE}"'
            elements.append(f'<rect {style} x="{_px(x)}" y="{_px(y)}" width="14" height="14"/>')
        place = f'x="{_px(x + swatch)}" y="{_px(y + 11)}"'
        elements.append(f'<text class="hn-ink" {place} fill="{INK}">{escape(text)}</text>')
        x += needed
    return elements, y - top + 14


def _baseline(y: float, height: float) -> float:
    """Baseline of text in the middle of a row."""
    return y + height / 2 + 0.36 * FONT


def _px(value: float) -> str:
    """Format a length in pixels, to a thousandth."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
