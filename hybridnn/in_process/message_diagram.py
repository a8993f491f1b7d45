"""Diagram of the calls of ranks: a row for each rank, an arrow for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hybridnn.drawing.drawing import Arrow, Box, Drawing, Row
from hybridnn.in_process.records import Instant, Message

MAX_CALLS = 400  # most calls of a picture: the last ones

KINDS = {"send": "send", "receive": "wait"}


def draw_calls(size: int, messages: Sequence[Message]) -> Drawing:
    """Draw the calls of `size` ranks, in the order in which they ended.

    The time axis is the virtual clock where any call took time on it, and otherwise counts calls.
    """
    shown = messages[-MAX_CALLS:]
    by_clock = any(message.ended.seconds > 0 for message in shown)

    def absolute(instant: Instant) -> float:
        return 1e6 * instant.seconds if by_clock else float(instant.call)

    first = min((absolute(message.begun) for message in shown), default=0.0)

    def time(instant: Instant) -> float:
        return absolute(instant) - first

    def box(message: Message) -> Box:
        label = "" if message.name in KINDS else message.name
        kind = KINDS.get(message.name, "reduce")
        return Box(time(message.waited), time(message.ended), label, kind, detail=_detail(message))

    waits = [message for message in shown if time(message.ended) > time(message.waited)]
    rows = tuple(Row(f"rank {rank}", tuple(box(item) for item in waits if item.rank == rank)) for rank in range(size))
    makespan = max((time(message.ended) for message in shown), default=0.0)
    since = f"{first:,.6g} µs" if by_clock else f"call {first:.0f}"
    left_out = f", the last {len(shown)} of {len(messages)}, from {since} on" if len(shown) < len(messages) else ""
    return Drawing(
        f"{size} ranks: {len(shown)} calls{left_out}",
        rows,
        makespan,
        "" if by_clock else "time: communication calls of all ranks",
        "µs" if by_clock else "",
        tuple(_arrows(shown, makespan, time)),
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


def _detail(message: Message) -> str:
    peer = f" {'from' if message.name == 'receive' else 'to'} rank {message.peer}" if message.name in KINDS else ""
    return f"{message.name}{peer}, {message.nbytes:,} bytes, at {message.site}"
