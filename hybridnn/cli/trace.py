"""`hybridnn trace`: drawing of a traced epoch, and the breakdown of its time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import OutputPicture, PictureFile, option
from hybridnn.cli.output import choose_format, new_table, print_drawing, require_width, write_result
from hybridnn.errors import DataError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from hybridnn.drawing.drawing import Drawing
    from hybridnn.runs.trace_breakdown import Breakdown
    from hybridnn.runs.trace_file import Epoch, Trace


PAGE = 17.0  # centimetres, width of the text of a page

EXPLANATION = """\
communicate  sending and receiving, and collectives that all ranks have reached
bubble       idle time that the schedule itself costs
wait         for messages and slower ranks
overhead     loading and copying, and what lies between the instructions"""


def trace(
    run: Annotated[Path, typer.Argument(help="A run folder, or its trace.json.", metavar="RUN")],
    epoch: Annotated[int | None, option("Number of the epoch, from 1 (default: the last).", "N")] = None,
    minibatches: Annotated[
        str | None,
        option(
            "Show the time of these minibatches, numbered as the steps of the run (default: the first few are drawn "
            "and all are counted).",
            "A-B",
        ),
    ] = None,
    width: Annotated[
        float | None,
        option(f"Width of the picture, such as 8.4 for a column; by default {PAGE:g}, of a page.", "CM"),
    ] = None,
    output_format: OutputPicture = None,
    out: PictureFile = None,
) -> None:
    """Break down where the time of a traced epoch went, and draw what every rank did."""
    from hybridnn.drawing.run_pictures import draw_epoch
    from hybridnn.runs.trace_breakdown import break_down
    from hybridnn.runs.trace_file import read_trace

    picture = choose_format(output_format, out)
    require_width(width, picture)
    measured = _choose_epoch(run, read_trace(run), epoch)
    start, stop, text = _choose_window(measured, minibatches)
    drawing = draw_epoch(measured, start, stop, text)
    # of the span that is drawn if the user has chosen it, else of the whole epoch
    breakdowns = break_down(measured) if minibatches is None else break_down(measured, start, stop)
    chosen = "" if minibatches is None else f"{text}, "
    write_result(
        picture,
        out,
        lambda console: _print_trace(console, measured, drawing, chosen, breakdowns),
        lambda: _facts(measured, drawing, start, stop, breakdowns),
        lambda: drawing,
        PAGE if width is None else width,
    )


def _choose_epoch(run: Path, trace: Trace, number: int | None) -> Epoch:
    if not trace.epochs:
        raise DataError(f"{run}: the trace holds nothing of an epoch that every rank has")
    if number is None:
        number = trace.epochs[-1]
    if number not in trace.epochs:
        raise SettingError("--epoch", number, "the trace holds " + ", ".join(map(str, trace.epochs)))
    measured = trace.epoch(number)
    if not measured.minibatches:
        raise DataError(f"{run}: the trace holds no minibatch of epoch {number}")
    return measured


def _choose_window(epoch: Epoch, text: str | None) -> tuple[float, float, str]:
    """Start, stop and name of the minibatches that the user chose, by numbers from 1, or of the first few."""
    from hybridnn.runs.trace_breakdown import readable_minibatches, span_of_minibatches

    wanted, allowed = readable_minibatches(epoch), epoch.minibatches
    if text is not None:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip(), re.ASCII)
        wanted = range(int(match[1]) - 1, int(match[2] or match[1])) if match else range(0)
        if not wanted or wanted[0] not in allowed or wanted[-1] not in allowed:
            raise SettingError("--minibatches", text, f"a range within {allowed[0] + 1}-{allowed[-1] + 1}")
    first, last = wanted[0] + 1, wanted[-1] + 1
    which = f"minibatch {first}" if first == last else f"minibatches {first} to {last}"
    return *span_of_minibatches(epoch, wanted), f"{which} of {allowed[-1] + 1}"


def _print_trace(
    console: Console, epoch: Epoch, drawing: Drawing, chosen: str, breakdowns: Sequence[Breakdown]
) -> None:
    print_drawing(console, drawing, whole=True)
    console.print()
    if not epoch.is_complete:
        console.print(
            f"the beginning of epoch {epoch.number} is not in the trace, which keeps the last events of a run"
        )
    console.print(f"seconds of epoch {epoch.number}, {chosen}which took {breakdowns[0].span:.4f}, and their shares")
    console.print(_table(epoch, breakdowns))
    console.print(EXPLANATION)


def _facts(
    epoch: Epoch, drawing: Drawing, start: float, stop: float, breakdowns: Sequence[Breakdown]
) -> dict[str, Any]:
    """All figures of a traced epoch, with minibatches, ranks and stages from 0 and times in seconds.

    Times of the drawing's boxes have its unit, from its start.
    """
    from hybridnn.runs.trace_breakdown import mean_of, sum_of

    lanes = list(zip(epoch.ranks, breakdowns, strict=True))
    return {
        "method": epoch.layout.method,
        "epoch": epoch.number,
        "seconds": epoch.stop - epoch.start,
        "whole": epoch.is_complete,
        "minibatches": list(epoch.minibatches),
        "microbatches": epoch.layout.microbatches,
        "chunks": epoch.layout.chunks,
        "breakdown": {
            "seconds": breakdowns[0].span,
            "ranks": [
                {"rank": rank, **lane.position._asdict(), **_parts(item)} for rank, (lane, item) in enumerate(lanes)
            ],
            "stages": [
                {"stage": stage, **_parts(mean_of([item for lane, item in lanes if lane.position.stage == stage]))}
                for stage in range(len(epoch.layout.stages))
            ],
            "total": _parts(sum_of(breakdowns)),
        },
        "drawing": {
            "from": start - epoch.start,
            "to": stop - epoch.start,
            "unit": drawing.unit,
            "rows": [
                {"rank": rank, "label": row.label, "boxes": [vars(box) for box in row.boxes]}
                for rank, row in enumerate(drawing.rows)
            ],
        },
    }


def _parts(item: Breakdown) -> dict[str, Any]:
    shares = {name: seconds / item.span if item.span else 0.0 for name, seconds in item.parts.items()}
    return {"seconds": item.parts, "shares": shares}


def _table(epoch: Epoch, breakdowns: Sequence[Breakdown]) -> Table:
    """One row per stage, the mean over its ranks, and the total over all ranks."""
    from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble

    has_means = any(batch * model > 1 for batch, model in epoch.layout.stages)
    bubble = schedule_bubble(epoch.layout, len(epoch.minibatches))
    activities, span = [item.activities(bubble) for item in breakdowns], breakdowns[0].span
    stages = [lane.position.stage for lane in epoch.ranks]

    def cells(title: str, stage: int | None) -> tuple[str, ...]:
        """The total of all ranks, or the mean over those of a stage."""
        chosen = [own for own, number in zip(activities, stages, strict=True) if stage in (None, number)]
        total = {name: sum(own[name] for own in chosen) for name in chosen[0]}
        scale, time = (1.0, span * len(chosen)) if stage is None else (1 / len(chosen), span)
        parts = [seconds * scale for seconds in total.values()]
        return title, *(f"{part:.4f} {part / time if time else 0.0:6.1%}" for part in parts)

    rows = [cells(str(stage), stage) for stage in range(len(epoch.layout.stages))]
    titles = ("stage\n(mean)" if has_means else "stage", *activities[0])
    return new_table((), titles, rows, footers=cells("total", None))
