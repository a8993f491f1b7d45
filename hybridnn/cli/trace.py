"""`hybridnn trace`: where the time of a run went, and what its schedule looked like on the clock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.pictures import PictureFormat, choose_format, write_file, write_picture, write_text
from hybridnn.errors import DataError, SettingError

if TYPE_CHECKING:
    from hybridnn.cli.trace_view import TimeWindow
    from hybridnn.runs.trace.recorded import Epoch, Trace


def trace(
    run: Annotated[Path, typer.Argument(help="A run folder, or its trace.json.", metavar="RUN", show_default=False)],
    epoch: Annotated[
        int | None,
        typer.Option(help="Number of the epoch, from 1; without, the last.", metavar="N", show_default=False),
    ] = None,
    begin: Annotated[
        float | None,
        typer.Option("--from", help="Show the epoch from this second on.", metavar="S", show_default=False),
    ] = None,
    end: Annotated[
        float | None, typer.Option("--to", help="Show the epoch up to this second.", metavar="S", show_default=False)
    ] = None,
    minibatches: Annotated[
        str | None,
        typer.Option(
            help="Show the time of these minibatches, from 1; without, the first few are drawn and all are counted.",
            metavar="A-B",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        PictureFormat | None,
        typer.Option("--format", help="By default what the file's name says, or text. JSON counts from 0."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file for the result.", metavar="FILE")] = None,
) -> None:
    """Break down where the time of a traced epoch went, and draw what every rank did."""
    from hybridnn.cli.trace_view import print_trace, trace_facts
    from hybridnn.runs.trace.measured import draw_epoch
    from hybridnn.runs.trace.trace_file import read_trace
    from hybridnn.utils.text import to_json

    picture = choose_format(output_format, out)
    measured = _choose_epoch(run, read_trace(run), epoch)
    window = _choose_window(measured, begin, end, minibatches)
    drawing = draw_epoch(measured, window.start, window.stop, window.words)
    if picture is PictureFormat.text:
        write_text(lambda console: print_trace(console, measured, drawing, window), out)
    elif picture is PictureFormat.json:
        write_file(to_json(trace_facts(measured, drawing, window), indent=2) + "\n", out)
    else:
        write_picture(drawing, picture, out)


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


def _choose_window(epoch: Epoch, begin: float | None, end: float | None, minibatches: str | None) -> TimeWindow:
    """Return the span of time that the user named, or that of the first few minibatches."""
    from hybridnn.cli.trace_view import TimeWindow
    from hybridnn.runs.trace.measured import readable_minibatches, span_of_minibatches

    if minibatches is not None:
        if begin is not None or end is not None:
            raise SettingError("--minibatches", minibatches, "not together with --from and --to")
        wanted = _range(minibatches, epoch.minibatches)
        return TimeWindow(*span_of_minibatches(epoch, wanted), _words(wanted, epoch), chosen=True)
    if begin is None and end is None:
        wanted = readable_minibatches(epoch)
        return TimeWindow(*span_of_minibatches(epoch, wanted), _words(wanted, epoch), chosen=False)
    length = epoch.stop - epoch.start
    begin = 0.0 if begin is None else begin
    if not 0 <= begin < length:
        raise SettingError("--from", begin, f"from 0 to {length:.6g}, where the epoch ends")
    end = length if end is None else end
    if not begin < end:
        raise SettingError("--to", end, f"above {begin:g}, where the drawing begins")
    end = min(end, length)
    return TimeWindow(epoch.start + begin, epoch.start + end, f"{begin:g} s to {end:.6g} s", chosen=True)


def _range(text: str, known: range) -> range:
    """Minibatches from 0, as the user counts them from 1."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip(), re.ASCII)
    wanted = range(int(match[1]) - 1, int(match[2] or match[1])) if match else range(0)
    if not wanted or wanted[0] not in known or wanted[-1] not in known:
        raise SettingError("--minibatches", text, f"a range within {known[0] + 1}-{known[-1] + 1}")
    return wanted


def _words(minibatches: range, epoch: Epoch) -> str:
    first, last = minibatches[0] + 1, minibatches[-1] + 1
    which = f"minibatch {first}" if first == last else f"minibatches {first} to {last}"
    return f"{which} of {epoch.minibatches[-1] + 1}"
