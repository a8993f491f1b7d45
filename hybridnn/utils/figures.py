"""Figures of matplotlib in one style, as PNG, SVG and PDF."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from hybridnn.errors import EnvironmentProblem, SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

MUTED, GRID = "#5f6b7a", "#d7dce2"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5cc2", "#1a1f26")
"""Colours of lines and points: those of Okabe and Ito (2008), which colour-blind readers can tell apart, but yellow."""


def new_figure(width: float, height: float) -> Figure:
    """A figure with a size in inches, without pyplot: no display, no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def tidy(axes: Axes, *, grid: bool = True) -> None:
    """Draw a light grid behind the data, and no frame at the top and right."""
    if grid:
        axes.grid(which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, which="both")


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """A figure in one of `FORMATS`; equal figures give equal bytes, and text stays text.

    A SVG names one font for each text, not a list of them, and has no indentation: it is a third smaller.
    """
    from matplotlib import rc_context

    dates: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hybridnn", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(buffer, format=file_format, metadata=dates.get(file_format))
    return re.sub(rb"\n +", b"\n", buffer.getvalue()) if file_format == "svg" else buffer.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """A figure as PNG."""
    return figure_bytes(figure, "png")


def require_format(path: Path) -> str:
    """The format of a file's name; `SettingError` if it is none of `FORMATS`."""
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in FORMATS:
        raise SettingError("picture", str(path), f"a name that ends with .{', .'.join(FORMATS)}")
    return file_format


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's name; `SettingError` if that is none of `FORMATS`, or it fails."""
    file_format = require_format(path)
    try:
        path.write_bytes(figure_bytes(figure, file_format))
    except OSError as error:
        raise SettingError("picture", str(path), f"cannot be written: {error.strerror}") from None


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; raises `EnvironmentProblem` if `path` cannot be written."""
    try:
        path.write_bytes(png_bytes(figure))
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}") from error
