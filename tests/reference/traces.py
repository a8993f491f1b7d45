"""Traces with chosen events, in milliseconds, as objects and as trace files."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.execution.point_to_point import StagePosition
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    Instruction,
    ReceiveActivations,
    ReceiveGradients,
    SendActivations,
    SendGradients,
    Update,
)
from hybridnn.runs.trace_file import Epoch, RankTrace

Widths = Sequence[tuple[int, int]]


def compute(name: str, start: float, stop: float, about: Instruction | None = None) -> Event:
    return Event("compute", name, "", start, stop, 0, about)


def communication(
    name: str, start: float, stop: float, about: Instruction | None = None, axis: str = "world", nbytes: int = 0
) -> Event:
    return Event("communication", name, axis, start, stop, nbytes, about)


def phase(number: int, start: float, stop: float) -> Event:
    return Event("phase", "training", "", start, stop, 0, number)


def places(widths: Widths) -> list[StagePosition]:
    return [
        StagePosition(k, b, m) for k, (batch, model) in enumerate(widths) for b in range(batch) for m in range(model)
    ]


def layout_of(widths: Widths, lanes: Iterable[Sequence[Event]], method: str = "pipedream", **options: Any) -> Layout:
    """A layout with as many microbatches and chunks as the events have."""
    done = [event.about for events in lanes for event in events if isinstance(event.about, Instruction)]
    microbatches, chunks = (
        1 + max((getattr(about, name) for about in done), default=0) for name in ("microbatch", "chunk")
    )
    layers = (1,) * len(widths) * chunks
    return Layout(tuple(widths), layers, method=method, microbatches=microbatches, chunks=chunks, **options)


def make_epoch(
    widths: Widths, lanes: Sequence[Sequence[Event]], spans: Sequence[tuple[float, float]], **options: Any
) -> Epoch:
    """Make an epoch from the events of the ranks, in the order of the grid; `options` are those of `layout_of`."""
    assert len(lanes) == len(places(widths))
    recorded = tuple(RankTrace(place, tuple(events)) for place, events in zip(places(widths), lanes, strict=True))
    return Epoch(1, layout_of(widths, lanes, **options), recorded, tuple(spans))


def trace_document(widths: Widths, lanes: Sequence[Sequence[Event]], **options: Any) -> dict[str, Any]:
    """Content of a trace file, from events with times in milliseconds."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"hybridnn": "1", "layout": asdict(layout_of(widths, lanes, **options)), "complete_since_us": 0.0},
        "traceEvents": [_entry(event, rank) for rank, events in enumerate(lanes) for event in events],
    }


def _entry(event: Event, rank: int) -> dict[str, Any]:
    args: dict[str, Any] = {"axis": event.axis, "bytes": event.nbytes} if event.axis else {}
    if event.kind == "phase":
        args["epoch"] = event.about
    elif isinstance(event.about, Instruction):
        about = event.about
        args["instruction"] = about.name
        args |= {"minibatch": about.minibatch, "microbatch": about.microbatch, "chunk": about.chunk}
    times = {"ts": event.start * 1000, "dur": (event.stop - event.start) * 1000}
    return {"ph": "X", "name": event.name, "cat": event.kind, "pid": 0, "tid": rank, **times, "args": args}


def two_stages() -> list[list[Event]]:
    """Events of two stages in two epochs that begin at 0 and 1000 ms, with ten minibatches of 12 ms each.

    Stage 0: forward 2, send 1, wait 6 (of which 2 after the send), backward 2, update 1.
    Stage 1: wait 4 (of which 2 after the send), forward 2, backward 2, send 1, idle 3.
    """
    first: list[Event] = [phase(1, 0, 120), phase(2, 1000, 1120)]
    second = list(first)
    for start, number in ((begin + 12 * number, number) for begin in (0, 1000) for number in range(10)):
        first += [
            compute("forward", start, start + 2, Forward(number)),
            communication("send", start + 2, start + 3, SendActivations(number), nbytes=100),
            communication("receive.wait", start + 3, start + 9, ReceiveGradients(number)),
            compute("backward", start + 9, start + 11, Backward(number)),
            compute("update", start + 11, start + 12, Update(number)),
        ]
        second += [
            communication("receive.wait", start, start + 4, ReceiveActivations(number)),
            compute("forward", start + 4, start + 6, Forward(number)),
            compute("loss", start + 6, start + 6.5, Backward(number)),
            compute("backward", start + 6.5, start + 7, Backward(number)),
            communication("send", start + 7, start + 8, SendGradients(number)),
        ]
    return [first, second]
