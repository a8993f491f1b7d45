"""A measured epoch as a page that plays it.

The weights that a stage reads and what it stores are not measured. They are known where the ranks computed exactly what
the method's schedule says, in its order, which is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from hybridnn.errors import SettingError
from hybridnn.pipeline.drawing.animation import Animation, ScheduleProgress, Span, Stage, animate
from hybridnn.pipeline.drawing.drawing import Drawing, Numbering
from hybridnn.pipeline.layout import DRAINED_AT_END
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.methods import make_schedule
from hybridnn.pipeline.schedules.schedule import Message, Schedule
from hybridnn.runs.trace_file import Epoch
from hybridnn.utils.text import MILLISECONDS

_TRACED = (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)  # computations with an event each


def animate_epoch(epoch: Epoch, drawing: Drawing, start: float) -> Animation:
    """Animate a drawing of an epoch, which begins at `start`, in seconds of the trace's clock.

    A stage of several ranks is shown as its first one does it; the chart has all of them. The weights with which the
    epoch begins are version 0, unless the pipeline stays full between epochs: then versions count from the beginning of
    the training.
    """
    rows = [
        next(rank for rank, trace in enumerate(epoch.ranks) if trace.position == (stage, 0, 0))
        for stage in range(len(epoch.stages))
    ]
    numbering = Numbering(True, epoch.microbatches > 1, epoch.chunks > 1)
    found = [(schedule, _progress(epoch, schedule, first, rows, start)) for schedule, first in _planned(epoch)]
    if not found:
        return Animation(drawing, "", "minibatch", tuple(map(Stage, rows)))
    schedule, progress = max(found, key=lambda pair: sum(map(bool, pair[1].computed)))
    return animate(drawing, schedule, numbering, rows, progress)


def _planned(epoch: Epoch) -> Iterator[tuple[Schedule, int]]:
    """Schedules that the epoch may follow, and the numbers of their first minibatches; none without a known method.

    Where the pipeline stays full, the epoch is a part of a longer schedule, of which some minibatches more are enough.
    """
    name, _, options = epoch.method.partition(" ")
    merges = any(
        isinstance(about, WeightGradient) and about.microbatch == ALL_MICROBATCHES for _, about in epoch.computed
    )
    first, last = epoch.minibatches[0], epoch.minibatches[-1]
    more = 2 * len(epoch.stages) if DRAINED_AT_END in epoch.method else 0
    first = max(0, first - more)
    for stop in {last + 1, last + 1 + more}:
        with suppress(SettingError):
            schedule = make_schedule(
                name.rstrip(","),
                stages=len(epoch.stages),
                minibatches=stop - first,
                microbatches=epoch.microbatches,
                chunks=epoch.chunks,
                weight_grad="merged" if merges else "per-microbatch",
                vertical_sync="vertical sync" in options,
                messages=False,
            )
            yield schedule, first


def _progress(epoch: Epoch, schedule: Schedule, first: int, rows: Sequence[int], start: float) -> ScheduleProgress:
    stays_full = DRAINED_AT_END in epoch.method
    computed = []
    for stage, rank in enumerate(rows):
        times = _computed(epoch, schedule, stage, rank, first, start)
        computed.append(times if stays_full or len(times) == len(_traced(schedule.orders[stage])) else {})
    sent = _sent(epoch, schedule, rows, first, start)
    if stays_full:
        return ScheduleProgress(computed, sent, (), first, first, " of the training")
    return ScheduleProgress(computed, sent, (), first, since=" of the epoch")


def _traced(order: Sequence[Instruction]) -> list[tuple[int, Instruction]]:
    """Computations of which a trace has one event each, with their positions."""
    return [(at, item) for at, item in enumerate(order) if isinstance(item, _TRACED)]


def _computed(epoch: Epoch, schedule: Schedule, stage: int, rank: int, first: int, start: float) -> dict[int, Span]:
    """Times of a stage's computations by position in its list; empty where they are no part of the list."""
    events = [
        (event, event.about.of_minibatch(event.about.minibatch - first))
        for event in epoch.ranks[rank].events
        if event.kind == "compute"
        and isinstance(event.about, _TRACED)
        and event.name == event.about.name  # not the loss, which is noted for the backward pass
    ]
    planned = _traced(schedule.orders[stage])
    at = next((at for at, (_, item) in enumerate(planned) if events and item == events[0][1]), 0)
    part = planned[at : at + len(events)]
    if [about for _, about in events] != [item for _, item in part]:
        return {}
    return {
        position: ((event.start - start) * MILLISECONDS, (event.stop - start) * MILLISECONDS)
        for (position, _), (event, _) in zip(part, events, strict=True)
    }


def _sent(epoch: Epoch, schedule: Schedule, rows: Sequence[int], first: int, start: float) -> dict[Message, Span]:
    """Messages from the beginning of the send to the end of the receiver's wait for it."""
    sends: dict[Message, float] = {}
    waits: dict[Message, float] = {}
    for stage, rank in enumerate(rows):
        for name, message, begin, end in _carried(epoch, schedule, stage, rank, first):
            if name == "send":
                sends.setdefault(message, (begin - start) * MILLISECONDS)
            elif name == "receive.wait":
                waits[message] = (end - start) * MILLISECONDS
    return {message: (sends[message], waits[message]) for message in sends.keys() & waits.keys()}


def _carried(
    epoch: Epoch, schedule: Schedule, stage: int, rank: int, first: int
) -> Iterator[tuple[str, Message, float, float]]:
    """Name, message, start and end of a rank's communication events that are about messages between stages."""
    for event in epoch.ranks[rank].events:
        if event.kind != "communication" or not isinstance(event.about, Instruction):
            continue
        about = event.about.of_minibatch(event.about.minibatch - first)
        message = schedule.flow.carried(stage, about)
        if message is not None:
            yield event.name, message, event.start, event.stop
