"""PNG and PDF renderer of drawings, with matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hybridnn.pipeline.drawing.drawing import (
    KINDS,
    Box,
    Drawing,
    Row,
    axis_ticks,
    kinds_drawn,
    longest_label,
    longest_version,
    readable_duration,
)
from hybridnn.utils.figures import figure_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DPI = 150
FONT = 8.0
CHARACTER = 0.62 * FONT / 72  # width of a character in inches
ROW_INCHES, LEGEND_INCHES = 0.27, 1.15  # height of a row, and width of an entry of the legend
VERSION_FONT, VERSION_INCHES = 6.0, 0.13  # of the versions below the numbers
MOST_INCHES = 60.0  # widest time axis: 9,000 pixels; beyond it, boxes have no number

MUTED, IDLE, RULE = "#5f6b7a", "#ffffff", "#d7dce2"


def picture_bytes(drawing: Drawing, file_format: str) -> bytes:
    """Draw as ``"png"``, 150 dots per inch, or ``"pdf"``; wide enough for the labels of the shortest computation."""
    # A figure without pyplot: no display, no global state.
    from matplotlib.figure import Figure

    scale = _inches_per_time(drawing)
    span = scale * (drawing.makespan or 1.0)
    left = 0.3 + CHARACTER * max((len(row.label) for row in drawing.rows), default=0)
    least = max(5.0, CHARACTER * len(_legend_text(drawing)) + 0.2)
    width, rows = (
        max(left + span + 0.2, least),
        (ROW_INCHES + VERSION_INCHES * bool(drawing.versions)) * len(drawing.rows),
    )
    columns = int(width / LEGEND_INCHES)
    bottom = 0.7 + 0.2 * math.ceil((len(kinds_drawn(drawing)) + 1) / columns)
    height = bottom + rows + 0.4
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    axes = figure.add_axes((left / width, bottom / height, span / width, rows / height))
    for number, row in enumerate(drawing.rows):
        _draw_row(axes, number, row, drawing.makespan, scale)
    _label_axes(axes, drawing, span)
    figure.text(0.1 / width, 1 - 0.25 / height, drawing.title, fontsize=FONT + 1, fontweight="bold")
    figure.text(0.1 / width, 0.1 / height, _legend_text(drawing), fontsize=FONT)
    _add_legend(figure, drawing, columns)
    return figure_bytes(figure, file_format)


def _legend_text(drawing: Drawing) -> str:
    return "; ".join(filter(None, (drawing.numbering, drawing.versions)))


def _inches_per_time(drawing: Drawing) -> float:
    characters = max(longest_label(drawing), longest_version(drawing) * VERSION_FONT / FONT)
    wanted = (CHARACTER * characters + 0.1) / readable_duration(drawing)
    return min(wanted, MOST_INCHES / (drawing.makespan or 1.0))


def _draw_row(axes: Axes, number: int, row: Row, makespan: float, scale: float) -> None:
    axes.broken_barh([(0, makespan)], (number - 0.42, 0.84), facecolors=IDLE, edgecolors=RULE, linewidth=0.8)
    for kind in KINDS.values():
        boxes = [box for box in row.boxes if box.kind == kind.name]
        spans = [(box.start, box.end - box.start) for box in boxes]
        # A white edge separates boxes of one colour; it would hide the short ones of a measured run.
        edge = "white" if kind.computes else "none"
        axes.broken_barh(spans, (number - 0.42, 0.84), facecolors=kind.fill, edgecolors=edge, linewidth=0.6)
        for box in boxes:
            _write(axes, number, box, scale * (box.end - box.start))


def _write(axes: Axes, number: int, box: Box, inches: float) -> None:
    """The number of a box, and below it its version, where they fit."""
    center = (box.start + box.end) / 2
    style: dict[str, Any] = {"color": KINDS[box.kind].ink, "ha": "center", "va": "center"}
    if box.label and CHARACTER * len(box.label) <= inches:
        axes.text(center, number - 0.16 * bool(box.version), box.label, fontsize=FONT, **style)
    if box.version and CHARACTER * len(box.version) * VERSION_FONT / FONT <= inches:
        axes.text(center, number + 0.22, box.version, fontsize=VERSION_FONT, **style)


def _label_axes(axes: Axes, drawing: Drawing, span: float) -> None:
    axes.set_xlim(0, drawing.makespan or 1.0)
    axes.set_ylim(len(drawing.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(drawing.rows)), [row.label for row in drawing.rows], fontsize=FONT)
    ticks = axis_ticks(drawing.makespan, max(2, int(span / 0.5)))
    axes.set_xticks([time for time, _ in ticks], [label for _, label in ticks], fontsize=FONT, color=MUTED)
    axes.set_xlabel(drawing.axis_label, fontsize=FONT, color=MUTED)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _add_legend(figure: Figure, drawing: Drawing, columns: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=kind.fill, label=kind.name) for kind in kinds_drawn(drawing)]
    handles.append(Patch(facecolor=IDLE, edgecolor=RULE, label="idle"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 0.22 / figure.get_figheight()),
        ncols=columns,
        frameon=False,
        fontsize=FONT,
        handlelength=1.2,
        columnspacing=1.2,
    )
