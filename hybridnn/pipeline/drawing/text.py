"""Text renderer of drawings: a letter for the kind of every box, and its number; dots where a stage is idle.

Lines consist of spans, each with its kind of box, so that a terminal can colour them. A drawing wider than the page
continues below in further bands, up to a few of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from hybridnn.pipeline.drawing.drawing import (
    KINDS,
    Box,
    Drawing,
    axis_ticks,
    kinds_drawn,
    longest_label,
    readable_duration,
)

IDLE = "."
MOST_BANDS = 4
"""Most bands of a drawing that is wider than the page; the rest is left out."""

TICK_COLUMNS = 8
"""Fewest columns between two ticks of the time axis."""


class TextSpan(NamedTuple):
    """Text of one kind of box, by its name in `KINDS`; of none if that is empty."""

    text: str
    kind: str = ""


Line = tuple[TextSpan, ...]


@dataclass(frozen=True)
class _Scale:
    """Columns of text per unit of time, of a band, and of the drawing."""

    columns_per_time: float
    band: int
    total: int

    def column(self, time: float) -> int:
        # Half up, and not to even, so that equal boxes are equally wide.
        return math.floor(time * self.columns_per_time + 0.5)


def text_lines(drawing: Drawing, width: int = 100, most_bands: int = MOST_BANDS) -> tuple[Line, ...]:
    """Render as text, at a scale at which the label of the shortest kind of computation is readable.

    Lines are no longer than `width` columns unless a single box is. After `most_bands` bands the rest is left out, and
    a line says so.
    """
    margin = max([len(drawing.axis_label), *(len(row.label) for row in drawing.rows)]) + 2
    scale = _scale(drawing, width - margin, most_bands)
    columns = min(scale.total, scale.band * most_bands)
    rows = [(row.label, _cells(row.boxes, scale, columns)) for row in drawing.rows]
    lines: list[Line] = [(TextSpan(drawing.title),), ()]
    for start in range(0, columns, scale.band):
        end = min(start + scale.band, columns)
        lines.append((TextSpan(drawing.axis_label.ljust(margin) + _axis(scale, columns, start, end)),))
        lines += [(TextSpan(label.ljust(margin)), *_joined(cells[start:end])) for label, cells in rows]
        lines.append(())
    if columns < scale.total:
        shown = columns / scale.columns_per_time
        lines += [(TextSpan(f"shown up to time {shown:.6g} of {drawing.makespan:.6g}"),), ()]
    return (*lines, *_legend(drawing, width))


def plain_text(lines: Sequence[Line]) -> str:
    """Join lines, without colours and trailing blanks."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def _scale(drawing: Drawing, available: int, most_bands: int) -> _Scale:
    cell = 1 + longest_label(drawing) + 1  # a letter, the label, and a gap to the next box
    columns_per_time = cell / readable_duration(drawing)
    total = math.ceil(round(drawing.makespan * columns_per_time, 6))
    # Bands end at the end of a box, if all durations are multiples of the shortest.
    cells, most_cells = math.ceil(total / cell), max(1, available // cell)
    bands = max(1, math.ceil(cells / most_cells))
    per_band = math.ceil(cells / bands) if bands <= most_bands else most_cells
    return _Scale(columns_per_time, max(1, per_band) * cell, total)


def _cells(boxes: Sequence[Box], scale: _Scale, columns: int) -> list[TextSpan]:
    """One span per column."""
    cells = [TextSpan(IDLE)] * columns
    for box in boxes:
        start, end = scale.column(box.start), scale.column(box.end)
        shown = _box_cells(box, end - start, columns - start)
        cells[start : start + len(shown)] = shown
    return cells


def _box_cells(box: Box, width: int, most: int) -> list[TextSpan]:
    """Letter, label if it fits, a bar for the rest, and a gap to the next box: the first `most` columns."""
    letter = KINDS[box.kind].letter
    text = letter + box.label
    shown = text if len(text) < width else letter
    bar = shown.ljust(min(width - 1, most), "=")[: max(0, min(width, most))]
    cells = [TextSpan(character, box.kind) for character in bar]
    return [*cells, TextSpan(" ")] if 1 < width <= most else cells


def _joined(cells: Sequence[TextSpan]) -> list[TextSpan]:
    """Join adjacent spans of one kind."""
    return [
        TextSpan("".join(cell.text for cell in cells), kind) for kind, cells in groupby(cells, lambda cell: cell.kind)
    ]


def _axis(scale: _Scale, columns: int, start: int, end: int) -> str:
    """Ticks of the band from column `start` to `end`, each from the column of its time on."""
    text = ""
    for time, label in axis_ticks(columns / scale.columns_per_time, max(2, columns // TICK_COLUMNS)):
        column = scale.column(time) - start
        if (column == 0 or column > len(text)) and column + len(label) <= end - start:
            text = text.ljust(column) + label
    return text


def _legend(drawing: Drawing, width: int) -> list[Line]:
    entries: list[Line] = [
        (TextSpan(kind.letter, kind.name), TextSpan(f" {kind.name}   ")) for kind in kinds_drawn(drawing)
    ]
    entries += [(TextSpan(f"{IDLE} idle   "),), (TextSpan(drawing.numbering),)]
    lines: list[Line] = []
    current: Line = ()
    for entry in entries:
        if current and _length(current) + _length(entry) > width:
            lines.append(current)
            current = ()
        current += entry
    return [*lines, current]


def _length(line: Line) -> int:
    return sum(len(piece.text) for piece in line)
