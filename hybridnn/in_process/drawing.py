"""What ranks sent one another, drawn as schedules are: a row for each rank, an arrow for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hybridnn.errors import SettingError
from hybridnn.in_process.records import Instant, Message
from hybridnn.pipeline.drawing.drawing import Arrow, Box, Drawing, Row
from hybridnn.pipeline.drawing.svg import svg_text

MOST_CALLS = 400
"""Calls of a picture: the last ones."""

KINDS = {"send": "send", "receive": "wait"}


def draw(size: int, messages: Sequence[Message]) -> Drawing:
    """Draw the calls of all ranks.

    The time axis is the virtual clock where it went on, and otherwise counts calls.

    Parameters
    ----------
    size : int
        Ranks.
    messages : sequence of Message
        In the order in which they ended.
    """
    shown = messages[-MOST_CALLS:]
    by_clock = any(message.ended.seconds > 0 for message in shown)

    def time(instant: Instant) -> float:
        return 1e6 * instant.seconds if by_clock else float(instant.call)

    first = min((time(message.begun) for message in shown), default=0.0)
    rows = tuple(
        Row(
            f"rank {rank}",
            tuple(
                Box(
                    time(one.waited) - first,
                    time(one.ended) - first,
                    "" if one.name in KINDS else one.name,
                    KINDS.get(one.name, "reduce"),
                    detail=_text(one),
                )
                for one in shown
                if one.rank == rank and time(one.ended) > time(one.waited)
            ),
        )
        for rank in range(size)
    )
    makespan = max((time(message.ended) for message in shown), default=0.0) - first
    arrows = tuple(_arrows(shown, makespan, lambda instant: time(instant) - first))
    since = f"{first:,.6g} µs" if by_clock else f"call {first:.0f}"
    left_out = f", the last {len(shown)} of {len(messages)}, from {since} on" if len(shown) < len(messages) else ""
    return Drawing(
        f"{size} ranks: {len(shown)} calls{left_out}",
        rows,
        makespan,
        "" if by_clock else "time: communication calls of all ranks",
        "µs" if by_clock else "",
        arrows,
    )


def _arrows(shown: Sequence[Message], end: float, time: Callable[[Instant], float]) -> Iterator[Arrow]:
    """From every send to its receive; to the end of the picture where there is none."""
    receives = {message.number: message for message in shown if message.name == "receive" and message.number >= 0}
    for send in shown:
        if send.name != "send":
            continue
        receive = receives.get(send.number)
        if receive is not None:
            yield Arrow(send.rank, send.peer, time(send.begun), time(receive.ended))
        elif not send.arrived:
            yield Arrow(send.rank, send.peer, time(send.begun), end, arrives=False)


def _text(message: Message) -> str:
    """The sentence of a box."""
    peer = f" {'from' if message.name == 'receive' else 'to'} rank {message.peer}" if message.name in KINDS else ""
    return f"{message.name}{peer}, {message.nbytes:,} bytes, at {message.site}"


def write_svg(drawing: Drawing, path: str | Path) -> None:
    """Write a drawing to a file.

    Raises
    ------
    SettingError
        If it cannot be written, or its name is not that of an SVG picture.
    """
    if Path(path).suffix.lower() != ".svg":
        raise SettingError("picture", str(path), "the picture is SVG: a name that ends with .svg")
    try:
        Path(path).write_text(svg_text(drawing), encoding="utf-8")
    except OSError as error:
        raise SettingError("picture", str(path), f"cannot be written: {error.strerror}") from error
