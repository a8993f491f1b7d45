"""A measured epoch as a page that plays it.

The weights that a stage reads and what it stores are not measured. They are known where the ranks computed exactly what
the method's schedule says, in its order, which is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridnn.drawing.animation import Animation, ScheduleProgress, Span, animate
from hybridnn.drawing.drawing import Drawing, Numbering
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Message, Schedule
from hybridnn.runs.trace_file import Epoch
from hybridnn.utils.text import MILLISECONDS

_TRACED = (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)  # computations with an event each


def animate_epoch(epoch: Epoch, drawing: Drawing, start: float) -> Animation:
    """Animate a drawing of an epoch, which begins at `start`, in seconds of the trace's clock.

    A stage of several ranks is shown as its first one does it; the chart has all of them. The weights with which the
    epoch begins are version 0.
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
        and isinstance(event.about, _TRACED)
        and event.name == event.about.name  # not the loss, which is noted for the backward pass
    ]
    planned = [(at, item) for at, item in enumerate(schedule.orders[stage]) if isinstance(item, _TRACED)]
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
