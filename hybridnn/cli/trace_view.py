"""What a user sees of a traced epoch: the drawing and the breakdown, or the facts that become JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hybridnn.cli.pictures import print_drawing
from hybridnn.runs.trace.breakdown import Breakdown, break_down, mean_of, sum_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.pipeline.drawing.drawing import Drawing
    from hybridnn.runs.trace.recorded import Epoch


TITLES = ("computing", "transfer", "idle: data\nunder way", "idle: work\nnot done", "other")
"""Of the parts of a `Breakdown`."""

EXPLANATION = """\
transfer             begins to send and to receive, and collectives once all have come
idle: data under way transfer-induced: what the rank waits for has been sent
idle: work not done  imbalance-induced: it has not been computed, or other ranks have yet to come
other                loading and copying, and what lies between the instructions"""


class TimeWindow(NamedTuple):
    """The span of an epoch that is drawn.

    Attributes
    ----------
    start, stop : float
        Seconds of the trace's clock.
    words : str
        The span in words.
    chosen : bool
        Whether the user asked for it; then the breakdown is of it too, else of the whole epoch.
    """

    start: float
    stop: float
    words: str
    chosen: bool


def print_trace(console: Console, epoch: Epoch, drawing: Drawing, window: TimeWindow) -> None:
    """Print the drawing and the breakdown."""
    print_drawing(console, drawing)
    console.print()
    breakdowns = _breakdowns(epoch, window)
    if not epoch.is_complete:
        console.print(
            f"the beginning of epoch {epoch.number} is not in the trace, which keeps the last events of a run"
        )
    what = f"{window.words}, " if window.chosen else ""
    console.print(f"seconds of epoch {epoch.number}, {what}which took {breakdowns[0].span:.4f}, and their shares")
    console.print(_table(epoch, breakdowns))
    console.print(EXPLANATION)


def trace_facts(epoch: Epoch, drawing: Drawing, window: TimeWindow) -> dict[str, Any]:
    """Everything about a traced epoch, with minibatches, ranks and stages from 0 and times in seconds.

    Only the boxes of the drawing have its unit, and begin at its start.
    """
    breakdowns = _breakdowns(epoch, window)
    return {
        "method": epoch.method,
        "epoch": epoch.number,
        "seconds": epoch.stop - epoch.start,
        "whole": epoch.is_complete,
        "minibatches": list(epoch.minibatches),
        "microbatches": epoch.microbatches,
        "chunks": epoch.chunks,
        "breakdown": {
            "seconds": breakdowns[0].span,
            "ranks": [
                {"rank": rank, **lane.position._asdict(), **_parts(item)}
                for rank, (lane, item) in enumerate(zip(epoch.ranks, breakdowns, strict=True))
            ],
            "stages": [{"stage": number, **_parts(item)} for number, item in enumerate(_by_stage(epoch, breakdowns))],
            "total": _parts(sum_of(breakdowns)),
        },
        "drawing": {
            "from": window.start - epoch.start,
            "to": window.stop - epoch.start,
            "unit": drawing.unit,
            "rows": [
                {"rank": rank, "label": row.label, "boxes": [vars(box) for box in row.boxes]}
                for rank, row in enumerate(drawing.rows)
            ],
        },
    }


def _breakdowns(epoch: Epoch, window: TimeWindow) -> tuple[Breakdown, ...]:
    return break_down(epoch, window.start, window.stop) if window.chosen else break_down(epoch)


def _by_stage(epoch: Epoch, breakdowns: tuple[Breakdown, ...]) -> list[Breakdown]:
    """Mean over the ranks of every stage."""
    return [
        mean_of([item for lane, item in zip(epoch.ranks, breakdowns, strict=True) if lane.position.stage == stage])
        for stage in range(len(epoch.stages))
    ]


def _parts(item: Breakdown) -> dict[str, Any]:
    return {"seconds": item.parts, "shares": _shares(item)}


def _shares(item: Breakdown) -> dict[str, float]:
    return {name: seconds / item.span if item.span else 0.0 for name, seconds in item.parts.items()}


def _table(epoch: Epoch, breakdowns: tuple[Breakdown, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    means = any(batch * model > 1 for batch, model in epoch.stages)
    table = Table(box=SIMPLE_HEAD, show_footer=True)
    total = sum_of(breakdowns)
    cells = [_cells(item) for item in (*_by_stage(epoch, breakdowns), total)]
    table.add_column("stage\n(mean)" if means else "stage", "total", justify="right", vertical="bottom", no_wrap=True)
    for title, footer in zip(TITLES, cells.pop(), strict=True):
        table.add_column(title, footer, justify="right", vertical="bottom", no_wrap=True)
    for stage, row in enumerate(cells):
        table.add_row(str(stage), *row)
    return table


def _cells(item: Breakdown) -> list[str]:
    shares = _shares(item)
    return [f"{seconds:.4f} {shares[name]:6.1%}" for name, seconds in item.parts.items()]
