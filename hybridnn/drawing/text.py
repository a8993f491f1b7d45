"""Text renderer of drawings: a letter for the kind of every box, and its number; dots where a stage is idle.

A drawing wider than the page continues below in further bands, up to a few of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from hybridnn.drawing.drawing import KINDS, Box, Drawing, axis_ticks, kinds_drawn, longest_label, readable_duration

IDLE = "."
MOST_BANDS = 4  # most bands of a drawing that is wider than the page; the rest is left out
SCREEN_LINES = 24  # most lines of the bands of a whole drawing, if they are more than one
TICK_COLUMNS = 8  # fewest columns between two ticks of the time axis


Cell = tuple[str, str]  # text and its style


@dataclass(frozen=True)
class _Scale:
    """Columns of text per unit of time, of a band, and of the drawing."""

    columns_per_time: float
    band: int
    total: int
    is_whole: bool = False  # whether it is smaller than labels need, for the drawing to fit a screen

    def column(self, time: float) -> int:
        # Half up, and not to even, so that equal boxes are equally wide.
        return math.floor(time * self.columns_per_time + 0.5)


def text_lines(drawing: Drawing, width: int = 100, *, whole: bool = False) -> list[Text]:
    """Render as lines, at a scale at which the label of the shortest kind of computation is readable.

    Lines are no longer than `width` columns unless a single box is. After `MOST_BANDS` bands the rest is left out, and
    a line says so. The `whole` drawing has a smaller scale where its bands would be more than fit a screen.
    """
    margin = max([len(drawing.axis_label), *(len(row.label) for row in drawing.rows)]) + 2
    scale = _scale(drawing, width - margin)
    if whole:
        scale = _whole(scale, drawing, width - margin)
    columns = min(scale.total, scale.band * MOST_BANDS)
    rows = [(row.label, _cells(row.boxes, scale, columns)) for row in drawing.rows]
    lines = [Text(drawing.title), Text()]
    for start in range(0, columns, scale.band):
        end = min(start + scale.band, columns)
        lines.append(Text(drawing.axis_label.ljust(margin) + _axis(scale, columns, start, end)))
        lines += [Text.assemble(label.ljust(margin), *_joined(cells[start:end])) for label, cells in rows]
        lines.append(Text())
    if columns < scale.total:
        shown = columns / scale.columns_per_time
        lines += [Text(f"shown up to time {shown:.6g} of {drawing.makespan:.6g}"), Text()]
    return [*lines, *_legend(drawing, width)]


def _scale(drawing: Drawing, available: int) -> _Scale:
    cell = 1 + longest_label(drawing) + 1  # a letter, the label, and a gap to the next box
    columns_per_time = cell / readable_duration(drawing)
    total = math.ceil(round(drawing.makespan * columns_per_time, 6))
    # Bands end at the end of a box, if all durations are multiples of the shortest.
    cells, most_cells = math.ceil(total / cell), max(1, available // cell)
    bands = max(1, math.ceil(cells / most_cells))
    per_band = math.ceil(cells / bands) if bands <= MOST_BANDS else most_cells
    return _Scale(columns_per_time, max(1, per_band) * cell, total)


def _whole(scale: _Scale, drawing: Drawing, available: int) -> _Scale:
    """The scale, or a smaller one at which the bands fit a screen."""
    lines = len(drawing.rows) + 2  # of a band, with its axis and a blank line
    columns = max(1, available) * min(MOST_BANDS, max(1, SCREEN_LINES // lines))
    bands = math.ceil(scale.total / scale.band)
    if bands * lines <= SCREEN_LINES and bands <= MOST_BANDS:
        return scale
    return _Scale(columns / drawing.makespan, max(1, available), columns, is_whole=True)


def _cells(boxes: Sequence[Box], scale: _Scale, columns: int) -> list[Cell]:
    """Cells of a row; in a whole drawing, a computation that is too short for a column has that of its neighbour."""

    def is_short(box: Box) -> bool:
        return scale.is_whole and KINDS[box.kind].computes and scale.column(box.start) == scale.column(box.end)

    cells = [(IDLE, "")] * columns
    for box in sorted(boxes, key=is_short):
        start, end = scale.column(box.start), scale.column(box.end)
        if is_short(box):
            start = min(start, columns - 1)
            end = start + 1
        shown = _box_cells(box, end - start, columns - start)
        cells[start : start + len(shown)] = shown
    return cells


def _box_cells(box: Box, width: int, most: int) -> list[Cell]:
    """Letter, label if it fits, a bar for the rest, and a gap to the next box: the first `most` columns."""
    kind = KINDS[box.kind]
    text = kind.letter + box.label
    shown = text if len(text) < width else kind.letter
    bar = shown.ljust(min(width - 1, most), "=")[: max(0, min(width, most))]
    cells = [(character, kind.style) for character in bar]
    return [*cells, (" ", "")] if 1 < width <= most else cells


def _joined(cells: Sequence[Cell]) -> list[Cell]:
    """Join adjacent cells of one style."""
    return [("".join(text for text, _ in group), style) for style, group in groupby(cells, lambda cell: cell[1])]


def _axis(scale: _Scale, columns: int, start: int, end: int) -> str:
    """Ticks of the band from column `start` to `end`, each from the column of its time on."""
    text = ""
    for time, label in axis_ticks(columns / scale.columns_per_time, max(2, columns // TICK_COLUMNS)):
        column = scale.column(time) - start
        if (column == 0 or column > len(text)) and column + len(label) <= end - start:
            text = text.ljust(column) + label
    return text


def _legend(drawing: Drawing, width: int) -> list[Text]:
    entries = [Text.assemble((kind.letter, kind.style), f" {kind.name}   ") for kind in kinds_drawn(drawing)]
    lines = [Text()]
    for entry in (*entries, Text(f"{IDLE} idle   "), Text(drawing.numbering)):
        if lines[-1] and len(lines[-1]) + len(entry) > width:
            lines.append(Text())
        lines[-1].append(entry)
    return lines
