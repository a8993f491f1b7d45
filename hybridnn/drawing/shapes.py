"""Pictures of shapes and texts: as SVG, which is dark on dark pages, and with matplotlib as PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import cos, sin, tau
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridnn.drawing.figures import NAMED_COLORS, figure_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FONT = 12.0  # size of text that has no other
PER_INCH = 96.0
POINT = PER_INCH / 72


class Rect(NamedTuple):
    """A filled rectangle, with an edge if that has a colour."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = ""


class Line(NamedTuple):
    """A line from a point to another."""

    x1: float
    y1: float
    x2: float
    y2: float
    color: str
    dashed: bool = False


class Polyline(NamedTuple):
    """A line through points, one unit wide by default.

    `dashes` are lengths of dashes and of the gaps behind them, in widths of the line; none is a line without gaps.
    """

    points: tuple[tuple[float, float], ...]
    color: str
    width: float = 1.0
    dashes: tuple[float, ...] = ()


class Circle(NamedTuple):
    """A circle with its centre; filled, or one with an edge that has a colour, or both."""

    x: float
    y: float
    radius: float
    fill: str = "none"
    edge: str = ""


class Polygon(NamedTuple):
    """A filled polygon."""

    points: tuple[tuple[float, float], ...]
    fill: str


class Text(NamedTuple):
    """A line of text on a baseline, which begins or ends at `x` or is centred there.

    Made as long as `length`, in SVG only.
    """

    x: float
    y: float
    text: str
    color: str
    size: float = FONT
    centered: bool = False
    bold: bool = False
    length: float = 0.0
    ends: bool = False  # at `x`


Shape = Rect | Line | Polyline | Circle | Polygon | Text


class ShapeGroup(NamedTuple):
    """Shapes that belong together, with a tooltip if `title` is not empty."""

    shapes: Sequence[Shape | ShapeGroup]
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """Shapes in the order in which they are drawn.

    Attributes
    ----------
    title : str
        What the picture shows, for programs that read it aloud.
    width, height : float
        In the unit of the shapes.
    shapes : sequence of shapes and groups
    scale : float
        Pixels, 96 to an inch, of a unit.
    """

    title: str
    width: float
    height: float
    shapes: Sequence[Shape | ShapeGroup]
    scale: float = 1.0

    def svg(self) -> str:
        """The SVG document; text can be selected."""
        view = f'viewBox="0 0 {_px(self.width)} {_px(self.height)}"'
        size = f'width="{_px(self.width * self.scale)}" height="{_px(self.height * self.scale)}" {view}'
        # All of them are equally wide: widths are estimated from them.
        font = f'font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif" font-size="{_px(FONT)}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
            f"<title>{_text(self.title)}</title>",
            _dark_style(),
            *map(_element, (Rect(0, 0, self.width, self.height, "paper"), *self.shapes)),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _repr_svg_(self) -> str:
        return self.svg()

    def encoded(self, file_format: str) -> bytes:
        """The picture as ``"svg"``, ``"png"`` with 150 dots per inch, or ``"pdf"``."""
        if file_format == "svg":
            return self.svg().encode()
        # A figure without pyplot: no display, no global state.
        from matplotlib.figure import Figure

        inches = self.width * self.scale / PER_INCH, self.height * self.scale / PER_INCH
        figure = Figure(figsize=inches, dpi=150, facecolor=_light("paper"))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        axes.set_axis_off()
        shapes = list(_flat(self.shapes))
        for order, (kind, found) in enumerate(groupby((item for item in shapes if type(item) is not Text), type)):
            axes.add_collection(_collection(kind, list(found), self.scale, order))
        for item in shapes:
            if isinstance(item, Text):
                _write(axes, item, self.scale)
        return figure_bytes(figure, file_format, figure.dpi)


def _dark_style() -> str:
    """Colours where the reader prefers dark pages, which replace the attributes; programs that make PDF ignore them."""
    rules = " ".join(
        f".hn-{name} {{ fill: {dark} }} .hn-{name}-line {{ stroke: {dark} }}"
        for name, (_, dark) in NAMED_COLORS.items()
    )
    return f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>"


def _element(shape: Shape | ShapeGroup) -> str:
    if isinstance(shape, ShapeGroup):
        title = f"<title>{_text(shape.title)}</title>" if shape.title else ""
        between = "" if title else "\n"
        return f"<g>{between}{title}{between.join(map(_element, shape.shapes))}{between}</g>"
    if isinstance(shape, Rect):
        place = f'x="{_px(shape.x)}" y="{_px(shape.y)}" ' if shape.x or shape.y else ""
        size = f'width="{_px(shape.width)}" height="{_px(shape.height)}"'
        return f"<rect{_colors(shape.fill, shape.edge)} {place}{size}/>"
    if isinstance(shape, Line):
        ends = f'x1="{_px(shape.x1)}" y1="{_px(shape.y1)}" x2="{_px(shape.x2)}" y2="{_px(shape.y2)}"'
        dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
        return f"<line{_colors('', shape.color)} {ends}{dashes}/>"
    if isinstance(shape, Circle):
        place = f'cx="{_px(shape.x)}" cy="{_px(shape.y)}" r="{_px(shape.radius)}"'
        return f"<circle{_colors(shape.fill, shape.edge)} {place}/>"
    if isinstance(shape, Polyline):
        points = " ".join(f"{_px(x)},{_px(y)}" for x, y in shape.points)
        width = f' stroke-width="{_px(shape.width)}"' if shape.width != 1 else ""
        lengths = " ".join(_px(length * shape.width) for length in shape.dashes)
        dashes = f' stroke-dasharray="{lengths}"' if lengths else ""
        return f'<polyline{_colors("none", shape.color)}{width}{dashes} stroke-linejoin="round" points="{points}"/>'
    if isinstance(shape, Polygon):
        points = " ".join(f"{_px(x)},{_px(y)}" for x, y in shape.points)
        return f'<polygon{_colors(shape.fill)} points="{points}"/>'
    style = (
        ' text-anchor="middle"' * shape.centered
        + ' text-anchor="end"' * shape.ends
        + ' font-weight="bold"' * shape.bold
    )
    if shape.size != FONT:
        style += f' font-size="{_px(shape.size)}"'
    if shape.length:
        style += f' textLength="{_px(shape.length)}" lengthAdjust="spacingAndGlyphs"'
    return f'<text{_colors(shape.color)} x="{_px(shape.x)}" y="{_px(shape.y)}"{style}>{_text(shape.text)}</text>'


def _colors(fill: str, stroke: str = "") -> str:
    """Attributes of the colours on light pages, and the classes that change them on dark ones."""
    names = [f"hn-{fill}"] * (fill in NAMED_COLORS) + [f"hn-{stroke}-line"] * (stroke in NAMED_COLORS)
    classes = f' class="{" ".join(names)}"' if names else ""
    painted = f' fill="{_light(fill)}"' if fill else ""
    return classes + painted + (f' stroke="{_light(stroke)}"' if stroke else "")


def _light(color: str) -> str:
    return NAMED_COLORS[color][0] if color in NAMED_COLORS else color


def _text(text: str) -> str:
    return escape(text, quote=False)


def _px(value: float) -> str:
    """Format a length, to a thousandth."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


# -- matplotlib ------------------------------------------------------------------------------------------------------


def _flat(shapes: Iterable[Shape | ShapeGroup]) -> Iterator[Shape]:
    for shape in shapes:
        if isinstance(shape, ShapeGroup):
            yield from _flat(shape.shapes)
        else:
            yield shape


def _collection(kind: type, shapes: list[Any], scale: float, order: int) -> Any:
    """Shapes of one kind as one artist of matplotlib."""
    from matplotlib.collections import LineCollection, PolyCollection

    width = scale / POINT  # a line is one unit wide
    paths = list(map(_path, shapes))
    if kind in (Line, Polyline):
        colors = [_light(line.color) for line in shapes]
        dashes = [(0, lengths) if (lengths := _dashes(line)) else "solid" for line in shapes]
        widths = [width * getattr(line, "width", 1.0) for line in shapes]
        return LineCollection(paths, colors=colors, linestyles=dashes, linewidths=widths, zorder=order)
    fills = [_light(shape.fill) for shape in shapes]
    edges = [_light(getattr(shape, "edge", "")) or "none" for shape in shapes]
    return PolyCollection(paths, facecolors=fills, edgecolors=edges, linewidths=width, zorder=order)


def _dashes(line: Line | Polyline) -> tuple[float, ...]:
    """Lengths of dashes and gaps, in widths of the line."""
    if isinstance(line, Polyline):
        return line.dashes
    return (4.0, 3.0) if line.dashed else ()


def _path(shape: Shape) -> Sequence[tuple[float, float]]:
    """The points of a line, or of the border of an area."""
    if isinstance(shape, Line):
        return (shape.x1, shape.y1), (shape.x2, shape.y2)
    if isinstance(shape, Rect):
        right, bottom = shape.x + shape.width, shape.y + shape.height
        return (shape.x, shape.y), (right, shape.y), (right, bottom), (shape.x, bottom)
    if isinstance(shape, Circle):
        angles = [tau * turn / 48 for turn in range(48)]
        return [(shape.x + shape.radius * cos(angle), shape.y + shape.radius * sin(angle)) for angle in angles]
    assert isinstance(shape, Polyline | Polygon)
    return shape.points


def _write(axes: Axes, item: Text, scale: float) -> None:
    axes.text(
        item.x,
        item.y,
        item.text,
        color=_light(item.color),
        fontsize=item.size * scale / POINT,
        fontweight="bold" if item.bold else "normal",
        ha="center" if item.centered else "right" if item.ends else "left",
        va="baseline",
        zorder=1e6,
    )
