"""What all plots of studies look like: figures without pyplot, colours, and tidy axes."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLORS = ("#2a6fbb", "#d9822b", "#3a8f5c", "#a23b72", "#7a5cc2", "#c94f3d", "#1b8a9e", "#8a6d1d")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MUTED, GRID = "#5f6b7a", "#d7dce2"


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of so many inches: no display, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """Draw a figure as PNG."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def tidy(axes: Axes) -> None:
    """Light grid behind the data, and no frame at the top and right."""
    axes.grid(which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, which="both")


def rank_axis(axes: Axes, ranks: Sequence[int]) -> None:
    """Logarithmic axis of ranks with a tick, in whole numbers, for each that occurs."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(ranks)), [str(count) for count in sorted(set(ranks))])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
