"""A measured epoch: a drawing with a row for each rank and a box for each event, and a page that plays it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from hybridnn.comm.recorder import Event
from hybridnn.drawing.animation import Animation, ScheduleProgress, Span, animate
from hybridnn.drawing.drawing import KINDS, Box, Drawing, Numbering, Row, is_computation
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Instruction, ReduceGradients
from hybridnn.pipeline.schedules.schedule import Message, Schedule
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

TRACED = tuple(kind for kind in COMPUTATIONS if kind is not ReduceGradients)  # computations with an event each


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


# -- animation ---------------------------------------------------------------------------------------------------------


def animate_epoch(epoch: Epoch, drawing: Drawing, start: float) -> Animation:
    """Animate a drawing of an epoch, which begins at `start`, in seconds of the trace's clock.

    A stage of several ranks is shown as its first one does it; the chart has all of them. What a stage reads and stores
    is not measured. It is known where the ranks computed exactly what the method's schedule
    says, in its order, which is compared; the weights with which the epoch begins are version 0.
    """
    rows = [
        next(rank for rank, trace in enumerate(epoch.ranks) if trace.position == (stage, 0, 0))
        for stage in range(len(epoch.layout.stages))
    ]
    layout = epoch.layout
    schedule = layout.schedule(len(epoch.minibatches), messages=False)
    numbering = Numbering(True, layout.microbatches > 1, layout.chunks > 1)
    computed = [_computed(epoch, schedule, stage, rank, start) for stage, rank in enumerate(rows)]
    sent = _sent(epoch, schedule, rows, start)
    progress = ScheduleProgress(computed, sent, (), epoch.minibatches[0], since=" of the epoch")
    return animate(drawing, schedule, numbering, rows, progress)


def _computed(epoch: Epoch, schedule: Schedule, stage: int, rank: int, start: float) -> dict[int, Span]:
    """Times of a stage's computations by position in its list; empty where they are others, or in another order."""
    first = epoch.minibatches[0]
    events = [
        (event, event.about.of_minibatch(event.about.minibatch - first))
        for event in epoch.ranks[rank].events
        if event.kind == "compute"
        and isinstance(event.about, TRACED)
        and event.name == event.about.name  # not the loss, which is noted for the backward pass
    ]
    planned = [(at, item) for at, item in enumerate(schedule.orders[stage]) if isinstance(item, TRACED)]
    if [about for _, about in events] != [item for _, item in planned]:
        return {}
    return {
        position: ((event.start - start) * MILLISECONDS, (event.stop - start) * MILLISECONDS)
        for (position, _), (event, _) in zip(planned, events, strict=True)
    }


def _sent(epoch: Epoch, schedule: Schedule, rows: Sequence[int], start: float) -> dict[Message, Span]:
    """Messages from the beginning of the send to the end of the receiver's wait for it."""
    sends: dict[Message, float] = {}
    waits: dict[Message, float] = {}
    for stage, rank in enumerate(rows):
        for name, message, begin, end in _carried(epoch, schedule, stage, rank):
            if name == "send":
                sends.setdefault(message, (begin - start) * MILLISECONDS)
            elif name == "receive.wait":
                waits[message] = (end - start) * MILLISECONDS
    return {message: (sends[message], waits[message]) for message in sends.keys() & waits.keys()}


def _carried(epoch: Epoch, schedule: Schedule, stage: int, rank: int) -> Iterator[tuple[str, Message, float, float]]:
    """Name, message, start and end of a rank's communication events that are about messages between stages."""
    for event in epoch.ranks[rank].events:
        if event.kind != "communication" or not isinstance(event.about, Instruction):
            continue
        about = event.about.of_minibatch(event.about.minibatch - epoch.minibatches[0])
        message = schedule.flow.carried(stage, about)
        if message is not None:
            yield event.name, message, event.start, event.stop
