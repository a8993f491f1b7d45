"""A process grid as a picture: the ranks of every stage, a row for each batch part, a column for each model part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridnn.drawing.shapes import FONT, Picture, Rect, Shape, Text

CELL_WIDTH, CELL_HEIGHT, EDGE = 64.0, 26.0, 14.0
LABEL_WIDTH = 64.0  # of the names of the rows
LINE = 20.0
OWN, OWN_INK = "#7fb2ea", "#10243c"
MOST = 16  # parts of an axis that are drawn; of more, the first ones and the last


def grid_picture(stages: Sequence[tuple[int, int]], rank_at: Callable[[int, int, int], int], own: int) -> Picture:
    """Draw a grid.

    Parameters
    ----------
    stages : sequence of pairs
        Batch parts and model parts of every stage.
    rank_at : callable
        Rank at a stage, a batch part and a model part.
    own : int
        The rank that is marked.
    """
    shapes: list[Shape] = []
    x, bottom = EDGE, 0.0
    for stage in _shown(len(stages)):
        if stage is None:
            shapes.append(Text(x, EDGE + FONT, "…", "ink"))
            x += 2 * FONT + EDGE
            continue
        batch, model = _shown(stages[stage][0]), _shown(stages[stage][1])
        if len(stages) > 1:
            shapes.append(Text(x, EDGE + FONT, f"stage {stage}", "ink", bold=True))
        left, top = x + LABEL_WIDTH, EDGE + LINE * (2 if len(stages) > 1 else 1)
        for column, model_part in enumerate(model):
            text = "…" if model_part is None else f"model {model_part}"
            shapes.append(Text(left + (column + 0.5) * CELL_WIDTH, top - 6, text, "muted", centered=True))
        for row, batch_part in enumerate(batch):
            y = top + row * CELL_HEIGHT
            text = "…" if batch_part is None else f"batch {batch_part}"
            shapes.append(Text(x, y + CELL_HEIGHT / 2 + 0.36 * FONT, text, "muted"))
            for column, model_part in enumerate(model):
                if batch_part is not None and model_part is not None:
                    rank = rank_at(stage, batch_part, model_part)
                    shapes += _cell(left + column * CELL_WIDTH, y, rank, is_own=rank == own)
        x = left + len(model) * CELL_WIDTH + EDGE
        bottom = max(bottom, top + len(batch) * CELL_HEIGHT)
    shapes += [Rect(EDGE, bottom + EDGE, 14, 14, OWN, "rule"), Text(EDGE + 20, bottom + EDGE + 11, "this rank", "ink")]
    return Picture("process grid", max(x, 160.0), bottom + 14 + 2 * EDGE, shapes)


def _shown(parts: int) -> list[int | None]:
    """Numbers of the parts that are drawn; None where some are left out."""
    return list(range(parts)) if parts <= MOST else [*range(MOST - 1), None, parts - 1]


def _cell(x: float, y: float, rank: int, *, is_own: bool) -> list[Shape]:
    fill, ink = (OWN, OWN_INK) if is_own else ("idle", "ink")
    baseline = y + CELL_HEIGHT / 2 + 0.36 * FONT
    return [
        Rect(x, y, CELL_WIDTH, CELL_HEIGHT, fill, "rule"),
        Text(x + CELL_WIDTH / 2, baseline, f"rank {rank}", ink, centered=True),
    ]
