"""Figures of matplotlib in one style, for a column of a page, as PNG, SVG and PDF; SVG is dark on dark pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hybridnn.errors import SettingError
from hybridnn.utils.text import user_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

NAMED_COLORS = {
    "paper": ("#ffffff", "#11161c"),
    "ink": ("#1a1f26", "#e6eaf0"),
    "muted": ("#5f6b7a", "#a3aebc"),
    "idle": ("#ffffff", "#1c242d"),
    "rule": ("#d7dce2", "#3a4551"),
}
"""Colours of pages, texts and lines by name: on light and on dark pages."""

INK, MUTED, GRID = (NAMED_COLORS[name][0] for name in ("ink", "muted", "rule"))

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6633dd", INK)
"""Colours of lines, points and bars: those of Okabe and Ito (2008), which colour-blind readers can tell apart, but
yellow, and violet."""

PART_STYLES: dict[str, dict[str, Any]] = {
    name: {"facecolor": color, "hatch": hatch, "edgecolor": NAMED_COLORS["paper"][0], "linewidth": 0.5}
    for name, color, hatch in (
        ("compute", COLORS[0], ""),
        ("smaller products", COLORS[4], ""),
        ("overhead", MUTED, "...."),
        ("communicate", COLORS[1], "/////"),
        ("bubble", COLORS[3], "xxxx"),
        ("wait", COLORS[5], "\\" * 5),
    )
}
"""Bars of the parts of the ranks' time, from the bottom: they differ in grey too, by lightness or hatches."""

ON_LIGHT, ON_DARK = "#10161d", "#ffffff"
"""Colours of texts on coloured cells, which are the same on light and dark pages."""

COLUMN, TWO_COLUMNS = 3.3, 6.9
"""Widths of a figure in inches, one column of a page and two: 8.4 and 17.5 centimetres."""

RESOLUTION = 300  # pixels per inch of a PNG in print

PANEL = 2.3
"""Height of a figure of one plot in inches."""

TEXT = 7.0
"""Size of all text in points; at least 6 remain where a column has 8 centimetres."""

PATTERNS = ((5, 4), (1.5, 4), (4, 2.5, 1.5, 2.5), (9, 7), (1, 7), (6, 9), (1, 11))
DASHES = ("-", *((0, dashes) for dashes in PATTERNS))
"""Of the lines of a plot, in their order: the lines below one that lies on them can be seen through its gaps."""

Plots = dict[str, tuple[str, "Figure"]]
"""Captions and figures by name; a figure has one panel, as wide as a column of a page."""

CHARACTER = 0.6 * TEXT / 72  # mean width of a character in inches
LEGEND_LINE = 0.45  # inches of an entry of a legend beside its text
LEGEND_ROW = 1.5 * TEXT / 72  # inches of a row of a legend
LEGEND_SHARE = 0.2  # of the height of a figure, which is as much higher as its legend needs more
BARS_INCHES = 2.6  # width of the bars of a figure
MOST_MARKED = 15  # points of a curve that are drawn as dots as well


def new_figure(width: float, height: float) -> Figure:
    """A figure with a size in inches, without pyplot: no display, no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def column_figure(*heights: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure of panels one below the other, with their heights in inches; each is to be made `tidy` at the end."""
    figure = new_figure(COLUMN, sum(heights))
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    return figure, list(panels[:, 0])


def tidy(axes: Axes, *, grid: bool = True) -> None:
    """Draw a light grid behind the data, and no frame at the top and right.

    In a figure for a column of a page, all text that is there gets one size; wider ones are for screens.
    """
    from matplotlib.text import Text

    if grid:
        axes.grid(which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, which="both")
    if axes.figure.bbox.width <= 2 * COLUMN * axes.figure.dpi:
        axes.tick_params(which="both", labelsize=TEXT)
        for text in axes.findobj(Text):
            text.set_fontsize(TEXT)


def legend_above(figure: Figure, handles: Iterable[Any], labels: Sequence[str] | None = None) -> None:
    """Explain lines and colours above the panels, where they hide nothing; by default by their own labels.

    Long labels are wrapped. Where they need many rows, the figure becomes higher, not its panels lower.
    """
    handles = list(handles)
    labels = [str(handle.get_label()) for handle in handles] if labels is None else labels
    if handles:
        width, height = figure.get_figwidth(), figure.get_figheight()
        labels = [fill(label, int((width - LEGEND_LINE) / CHARACTER), break_on_hyphens=False) for label in labels]
        longest = CHARACTER * max(len(line) for label in labels for line in label.split("\n")) + LEGEND_LINE
        columns = min(len(labels), max(1, int(width / longest)))
        rows = ceil(sum(label.count("\n") + 1 for label in labels) / columns)
        figure.set_figheight(height + max(0.0, rows * LEGEND_ROW - LEGEND_SHARE * height))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=TEXT)


def plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with numbers as they are: the exponents of powers would be too small."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(Plain(minor_thresholds=(1, 0.4)))


def ratio_tick(value: float, position: float = 0.0) -> str:
    """Label of a ratio on a logarithmic axis: ``4``, or ``1/4``."""
    return f"{value:g}" if value >= 1 or value <= 0 else f"1/{1 / value:g}"


def draw_parts(axes: Axes, bars: Mapping[str, Mapping[str, float]]) -> None:
    """Draw bars of the parts of the ranks' time by their labels, which are upright where they need more room."""
    bottoms = [0.0] * len(bars)
    for part, style in PART_STYLES.items():
        heights = [shares[part] for shares in bars.values()]
        if any(heights):
            axes.bar(range(len(bars)), heights, 0.7, bottom=bottoms, label=part, **style)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    longest = max(len(line) for label in bars for line in label.split("\n"))
    is_level = longest * CHARACTER * len(bars) < BARS_INCHES
    axes.set_xticks(range(len(bars)), list(bars), rotation=0 if is_level else 90)
    axes.set_ylabel("share of the ranks' time")
    axes.yaxis.set_major_formatter("{x:.0%}")


def line_style(number: int) -> dict[str, Any]:
    """Colour and dashes of a line by its number; of two lines they are never the same."""
    count = len(COLORS)
    return {"color": COLORS[number % count], "linestyle": DASHES[(number + number // count) % count], "linewidth": 1.2}


def draw_lines(axes: Axes, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], label: str) -> None:
    """Draw curves of a name, xs and ys, over an axis with a label; each with dashes of its own."""
    for number, (name, xs, ys) in enumerate(curves):
        marker = "o" if len(xs) <= MOST_MARKED else ""
        axes.plot(xs, ys, label=name, marker=marker, markersize=2.5, **line_style(number))
    axes.set_xlabel(label)
    tidy(axes)


# -- files ------------------------------------------------------------------------------------------------------------


def figure_bytes(figure: Figure, file_format: str, resolution: float = RESOLUTION) -> bytes:
    """A figure in one of `FORMATS`; equal figures give equal bytes, and text stays text.

    The resolution is that of PNG, in pixels per inch. A SVG names one font for each text, not a list of them, and has
    no indentation: it is a third smaller. On pages for readers who prefer them dark, paper, texts and lines have other
    colours.
    """
    from matplotlib import rc_context

    dates: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer, dpi = BytesIO(), resolution if file_format == "png" else "figure"
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hybridnn", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=dates.get(file_format))
    return for_dark_pages(_with_stable_ids(buffer.getvalue())) if file_format == "svg" else buffer.getvalue()


ID = re.compile(rb"\b([a-zA-Z])[0-9a-f]{10}\b")
"""An identifier in an SVG of matplotlib: a letter, and a digest of numbers whose last bits differ from run to run."""


def _with_stable_ids(svg: bytes) -> bytes:
    """The SVG with identifiers that depend on nothing but its content, so that two in one page differ."""
    digest = sha256(ID.sub(rb"\1", svg)).hexdigest()[:8].encode()
    numbers: dict[bytes, int] = {}
    return ID.sub(lambda found: b"%b%b-%d" % (found[1], digest, numbers.setdefault(found[0], len(numbers))), svg)


def for_dark_pages(svg: bytes) -> bytes:
    """An SVG of matplotlib without indentation, with colours for dark pages."""
    svg = re.sub(rb"\n +", b"\n", svg)
    svg = svg.replace(b"<svg ", b'<svg class="hn-figure" ', 1)
    return svg.replace(b"</style>", b"\n" + _dark_rules().encode() + b"</style>", 1)


def _dark_rules() -> str:
    """Rules for the attributes that matplotlib writes; black texts and shapes have none, and inherit their colour.

    White texts stay white: they are on coloured cells.
    """
    ink, paper = NAMED_COLORS["ink"][1], NAMED_COLORS["paper"][1]
    lines = [NAMED_COLORS[name] for name in ("paper", "ink", "muted", "rule")]
    rules = [f".hn-figure {{ fill: {ink} }}"]
    rules += [_rule("stroke", light, dark) for light, dark in [("#000000", ink), *lines]]
    rules += [_rule("fill", light, dark) for light, dark in lines[1:]]
    rules.append(_rule("fill", NAMED_COLORS["paper"][0], paper, "path"))
    return "@media (prefers-color-scheme: dark) { " + " ".join(rules) + " }"


def _rule(attribute: str, light: str, dark: str, element: str = "") -> str:
    # With single quotes, because notebooks write the document anew and would replace double ones by entities.
    return f".hn-figure {element}[style*='{attribute}: {light}'] {{ {attribute}: {dark} !important }}"


def require_format(path: Path, option: str = "picture") -> str:
    """The format of a file's name; `SettingError` if it is none of `FORMATS`."""
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in FORMATS:
        raise SettingError(option, str(path), f"a name that ends with .{', .'.join(FORMATS)}")
    return file_format


def write_picture(path: Path | str, encoded: Callable[[str], bytes], option: str = "picture") -> None:
    """Write what `encoded` returns for the format of the file's name.

    Raises `SettingError` of the `option` if the format is none of `FORMATS`, or the file cannot be written.
    """
    path = user_path(path)
    content = encoded(require_format(path, option))
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SettingError(option, str(path), f"cannot be written: {error.strerror}") from None
