"""A measured epoch: a drawing with a row for each rank and a box for each event."""

from __future__ import annotations

from math import inf

from hybridnn.comm.recorder import Event
from hybridnn.drawing.drawing import KINDS, Box, Drawing, Numbering, Row, is_computation
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.runs.trace_file import Epoch, RankTrace
from hybridnn.utils.text import MILLISECONDS, counted, format_milliseconds

COMMUNICATION_KINDS = {
    "send": "send",
    "send.wait": "wait",
    "receive.wait": "wait",
    "barrier": "wait",
    "allreduce": "reduce",
    "allreduce.wait": "reduce",
}
"""Kinds of box by name of the event; other events are "other"."""


def draw_epoch(epoch: Epoch, start: float, stop: float, what: str) -> Drawing:
    """Draw a span of an epoch, described as `what` in the title, with a row per rank.

    `start` and `stop` are in seconds of the trace's clock; the time axis counts milliseconds from `start`.
    """
    numbering = Numbering(True, epoch.layout.microbatches > 1, epoch.layout.chunks > 1)
    rows = tuple(
        Row(_row_label(epoch, rank), tuple(_box(numbering, event, start, stop) for event in _seen(trace, start, stop)))
        for rank, trace in enumerate(epoch.ranks)
    )
    stages = len(epoch.layout.stages)
    title = f"{epoch.layout.method}, {counted(stages, 'stage')}, measured in epoch {epoch.number}"
    title += f", {what}" * bool(what)
    return Drawing(title, rows, (stop - start) * MILLISECONDS, numbering.legend, "ms")


def _seen(trace: RankTrace, start: float, stop: float) -> list[Event]:
    """Events of a span that have a box of their own.

    Messages of a model group belong to their forward or backward pass, but an update shows its wait for the loss.
    """
    seen: list[Event] = []
    passes_until = -inf
    for event in trace.events:
        if event.kind == "compute" and is_computation(event.name):
            passes_until = event.stop
        elif event.start < passes_until or event.name == "receive" or event.name.endswith(".test"):
            continue
        if event.start < stop and event.stop > start:
            seen.append(event)
    return seen


def _box(numbering: Numbering, event: Event, start: float, stop: float) -> Box:
    computes = event.kind == "compute"
    kind = event.name if computes else COMMUNICATION_KINDS.get(event.name, "")
    kind = kind if kind in KINDS else "other"
    instruction = event.about if isinstance(event.about, Instruction) else None
    label = "" if instruction is None else numbering.label(instruction)
    parts = [event.name]
    if instruction is not None:
        parts = [f"{event.name} of {label}" if computes else f"{event.name} ({instruction.name} {label})"]
    if event.axis not in ("", "world"):
        parts.append(f"{event.axis} group")
    after, duration = (format_milliseconds(seconds) for seconds in (event.start - start, event.stop - event.start))
    parts.append(f"from {after} ms for {duration} ms")
    return Box(
        (max(event.start, start) - start) * MILLISECONDS,
        (min(event.stop, stop) - start) * MILLISECONDS,
        label if computes and kind != "other" else "",
        kind,
        -1 if instruction is None else instruction.minibatch,
        ", ".join(parts),
    )


def _row_label(epoch: Epoch, rank: int) -> str:
    stage, batch_rank, model_rank = epoch.ranks[rank].position
    batch, model = epoch.layout.stages[stage]
    return " ".join(
        [f"stage {stage}"]
        + ([f"batch {batch_rank}"] if batch > 1 else [])
        + ([f"model {model_rank}"] if model > 1 else [])
    )
