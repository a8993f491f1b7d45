"""Pictures of shapes and texts: as SVG, which is dark on dark pages, and with matplotlib as PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import cos, sin, tau
from typing import Any, Literal, NamedTuple

from hybridnn.drawing.figures import NAMED_COLORS, figure_bytes, new_figure

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


class Path(NamedTuple):
    """A line through points, one unit wide by default; or the area that they enclose, if it has a fill.

    `dashes` are lengths of dashes and of the gaps behind them, in widths of the line; none is a line without gaps.
    """

    points: Sequence[tuple[float, float]]
    edge: str = ""
    fill: str = "none"
    width: float = 1.0
    dashes: tuple[float, ...] = ()


class Circle(NamedTuple):
    """A circle with its centre; filled, or one with an edge that has a colour, or both."""

    x: float
    y: float
    radius: float
    fill: str = "none"
    edge: str = ""


class Text(NamedTuple):
    """A line of text on a baseline; made as long as `length`, in SVG only."""

    x: float
    y: float
    text: str
    color: str
    size: float = FONT
    anchor: Literal["start", "middle", "end"] = "start"  # what of the text is at `x`
    bold: bool = False
    length: float = 0.0


Shape = Rect | Path | Circle | Text


class ShapeGroup(NamedTuple):
    """Shapes that belong together, with a tooltip if `title` is not empty."""

    shapes: Sequence[Shape | ShapeGroup]
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """Shapes in the order in which they are drawn."""

    title: str  # what the picture shows, for programs that read it aloud
    # in the unit of the shapes
    width: float
    height: float
    shapes: Sequence[Shape | ShapeGroup]
    scale: float = 1.0  # pixels, 96 to an inch, of a unit

    def svg(self) -> str:
        """The SVG document; text can be selected."""
        view = f'viewBox="0 0 {_px(self.width)} {_px(self.height)}"'
        size = f'width="{_px(self.width * self.scale)}" height="{_px(self.height * self.scale)}" {view}'
        # All of them are equally wide: widths are estimated from them.
        font = f'font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif" font-size="{_px(FONT)}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
            f"<title>{escape(self.title, quote=False)}</title>",
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
        figure = new_figure(self.width * self.scale / PER_INCH, self.height * self.scale / PER_INCH)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        axes.set_axis_off()
        shapes = list(_flat(self.shapes))
        for order, (kind, found) in enumerate(groupby((item for item in shapes if type(item) is not Text), type)):
            axes.add_collection(_collection(kind, list(found), self.scale, order))
        for item in shapes:
            if isinstance(item, Text):
                axes.text(
                    item.x,
                    item.y,
                    item.text,
                    color=_light(item.color),
                    fontsize=item.size * self.scale / POINT,
                    fontweight="bold" if item.bold else "normal",
                    ha={"start": "left", "middle": "center", "end": "right"}[item.anchor],
                    va="baseline",
                    zorder=1e6,
                )
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
        title = f"<title>{escape(shape.title, quote=False)}</title>" if shape.title else ""
        between = "" if title else "\n"
        return f"<g>{between}{title}{between.join(map(_element, shape.shapes))}{between}</g>"
    if isinstance(shape, Rect):
        place = f'x="{_px(shape.x)}" y="{_px(shape.y)}" ' if shape.x or shape.y else ""
        size = f'width="{_px(shape.width)}" height="{_px(shape.height)}"'
        return f"<rect{_colors(shape.fill, shape.edge)} {place}{size}/>"
    if isinstance(shape, Circle):
        place = f'cx="{_px(shape.x)}" cy="{_px(shape.y)}" r="{_px(shape.radius)}"'
        return f"<circle{_colors(shape.fill, shape.edge)} {place}/>"
    if isinstance(shape, Path):
        name = "polyline" if shape.fill == "none" else "polygon"
        width = f' stroke-width="{_px(shape.width)}"' if shape.width != 1 else ""
        lengths = " ".join(_px(length * shape.width) for length in shape.dashes)
        dashes = f' stroke-dasharray="{lengths}"' if lengths else ""
        joins = ' stroke-linejoin="round"' if len(shape.points) > 2 and shape.edge else ""
        points = " ".join(f"{_px(x)},{_px(y)}" for x, y in shape.points)
        return f'<{name}{_colors(shape.fill, shape.edge)}{width}{dashes}{joins} points="{points}"/>'
    style = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    style += ' font-weight="bold"' * shape.bold
    if shape.size != FONT:
        style += f' font-size="{_px(shape.size)}"'
    if shape.length:
        style += f' textLength="{_px(shape.length)}" lengthAdjust="spacingAndGlyphs"'
    start = f'<text{_colors(shape.color)} x="{_px(shape.x)}" y="{_px(shape.y)}"{style}>'
    return f"{start}{escape(shape.text, quote=False)}</text>"


def _colors(fill: str, stroke: str = "") -> str:
    """Attributes of the colours on light pages, and the classes that change them on dark ones."""
    names = [f"hn-{fill}"] * (fill in NAMED_COLORS) + [f"hn-{stroke}-line"] * (stroke in NAMED_COLORS)
    classes = f' class="{" ".join(names)}"' if names else ""
    painted = f' fill="{_light(fill)}"' if fill else ""
    return classes + painted + (f' stroke="{_light(stroke)}"' if stroke else "")


def _light(color: str) -> str:
    return NAMED_COLORS[color][0] if color in NAMED_COLORS else color


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
    from matplotlib.collections import PolyCollection

    return PolyCollection(
        list(map(_points, shapes)),
        closed=kind is not Path,
        facecolors=[_light(shape.fill) for shape in shapes],
        edgecolors=[_light(shape.edge) or "none" for shape in shapes],
        linestyles=[(0, dashes) if (dashes := getattr(shape, "dashes", ())) else "solid" for shape in shapes],
        linewidths=[(shape.width if kind is Path else 1.0) * scale / POINT for shape in shapes],
        zorder=order,
    )


def _points(shape: Rect | Path | Circle) -> Sequence[tuple[float, float]]:
    """The points of a line, or of the border of an area."""
    if isinstance(shape, Rect):
        right, bottom = shape.x + shape.width, shape.y + shape.height
        return (shape.x, shape.y), (right, shape.y), (right, bottom), (shape.x, bottom)
    if isinstance(shape, Circle):
        angles = [tau * turn / 48 for turn in range(48)]
        return [(shape.x + shape.radius * cos(angle), shape.y + shape.radius * sin(angle)) for angle in angles]
    return shape.points
