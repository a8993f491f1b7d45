"""Traces made by hand: events in whole milliseconds, and the file that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.instructions import Instruction
from hybridnn.pipeline.recorded import Epoch, Lane
from hybridnn.pipeline.routes import Place

__all__ = ["communication", "compute", "epoch_of", "file_of"]

Widths = Sequence[tuple[int, int]]


def compute(name: str, start: float, stop: float, about: Instruction | None = None) -> Event:
    return Event("compute", name, "", start, stop, 0, about)


def communication(
    name: str, start: float, stop: float, about: Instruction | None = None, axis: str = "world", nbytes: int = 0
) -> Event:
    return Event("communication", name, axis, start, stop, nbytes, about)


def places(widths: Widths) -> list[Place]:
    return [Place(k, b, m) for k, (batch, model) in enumerate(widths) for b in range(batch) for m in range(model)]


def epoch_of(
    widths: Widths, lanes: Sequence[Sequence[Event]], spans: Sequence[tuple[float, float]], method: str = ""
) -> Epoch:
    """An epoch of ranks in the order of the grid."""
    assert len(lanes) == len(places(widths))
    recorded = tuple(Lane(place, tuple(events)) for place, events in zip(places(widths), lanes, strict=True))
    return Epoch(1, method, tuple(widths), recorded, tuple(spans))


def file_of(widths: Widths, lanes: Sequence[Sequence[Event]], method: str = "") -> dict[str, Any]:
    """The content of a trace file whose events have times in milliseconds."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "hybridnn": "1",
            "method": method,
            "stages": [list(width) for width in widths],
            "complete_since_us": 0.0,
        },
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
