"""Animated schedules: one HTML page that shows what every stage does, stores and sends at a time.

The page is made of the files in `page/`: structure, style and program. All that it shows is in the page itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridnn.errors import SettingError
from hybridnn.pipeline.drawing.drawing import (
    KINDS,
    Box,
    Drawing,
    Numbering,
    draw_timeline,
    kinds_drawn,
    numbering_of,
    readable_duration,
    version_text,
)
from hybridnn.pipeline.schedules.instructions import Update
from hybridnn.pipeline.schedules.memory_plan import activation_lifetimes, plan_memory
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.pipeline.schedules.schedule import Message, Schedule
from hybridnn.utils.text import to_json

if TYPE_CHECKING:
    from hybridnn.pipeline.checks.simulated_schedule import Timeline

TEXT_WIDTH, TEXT_BANDS = 100, 40  # of the drawing that browsers without JavaScript show

Span = tuple[float, float]
"""Start and end, in the drawing's unit of time."""


@dataclass(frozen=True)
class Progress:
    """When a schedule's computations and messages took place, in the unit of its drawing."""

    computed: Sequence[Mapping[int, Span]]  # per stage, from the position of a computation in its list
    sent: Mapping[Message, Span]  # from the beginning of the send to the arrival


@dataclass(frozen=True)
class Stored:
    """Something that a stage holds for a time: a weight version, or the activations of a microbatch.

    The end is infinite for the version that is current at the end.
    """

    label: str
    start: float
    end: float


@dataclass(frozen=True)
class SentMessage:
    """A message between two stages: on its way until it arrives, and waiting until it is used."""

    sender: int
    receiver: int
    gradients: bool  # gradients of a backward pass, not activations of a forward pass
    label: str
    start: float
    arrival: float
    use: float


@dataclass(frozen=True)
class Stage:
    """A stage: the row of the drawing that stands for it, and what it holds."""

    row: int
    weights: tuple[Stored, ...] = ()
    activations: tuple[Stored, ...] = ()


@dataclass(frozen=True)
class Animation:
    """A drawing whose boxes all have the versions that they read, and what changes besides."""

    drawing: Drawing
    summary: str  # the method in one line
    unit_name: str  # what the labels number: ``"minibatch"`` or ``"microbatch"``
    stages: tuple[Stage, ...]
    messages: tuple[SentMessage, ...] = ()

    def write(self, path: str | Path) -> None:
        """Write the page.

        Raises
        ------
        SettingError
            If it cannot be written, or its name does not end with .html.
        """
        require_html("page", path)
        try:
            Path(path).write_text(html_page(self), encoding="utf-8")
        except OSError as error:
            raise SettingError("page", str(path), f"cannot be written: {error.strerror}") from error


def require_html(name: str, path: str | Path) -> None:
    """Raise `SettingError` unless a file's name ends with .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise SettingError(name, str(path), "the page is HTML: a name that ends with .html")


def animate_timeline(timeline: Timeline) -> Animation:
    """Animate a simulated schedule."""
    schedule = timeline.schedule
    computed = [{at: (item.start, item.end) for at, item in enumerate(items)} for items in timeline.stages]
    sent = {
        message: (item.start, item.end)
        for stage, items in enumerate(timeline.stages)
        for item in items
        if (message := schedule.flow.carried(stage, item.instruction)) is not None
    }
    return animate(
        draw_timeline(timeline), schedule, numbering_of(schedule), range(schedule.stages), Progress(computed, sent)
    )


def animate(
    drawing: Drawing,
    schedule: Schedule,
    numbering: Numbering,
    rows: Sequence[int],
    progress: Progress,
    first: int = 0,
) -> Animation:
    """Animate a drawing of a schedule.

    Parameters
    ----------
    drawing : Drawing
        Planned or measured.
    schedule : Schedule
    numbering : Numbering
        Numbers on the boxes.
    rows : sequence of int
        The row of the drawing for every stage.
    progress : Progress
        Where a stage's computations have no times, the page shows neither its weights nor its activations.
    first : int
        Number in the drawing of the schedule's minibatch 0.
    """
    drawn, stages = list(drawing.rows), []
    for stage, row in enumerate(rows):
        times = progress.computed[stage]
        if times:
            boxes = _with_versions(drawn[row].boxes, schedule, stage, numbering, first)
            drawn[row] = replace(drawn[row], boxes=boxes)
            weights = _weights(schedule, stage, times)
            activations = _activations(schedule, stage, times, numbering, first)
            stages.append(Stage(row, _seen(weights, drawing), _seen(activations, drawing)))
        else:
            stages.append(Stage(row))
    method = METHODS.get(schedule.method)
    return Animation(
        replace(drawing, rows=tuple(drawn)),
        "" if method is None else method.summary,
        "microbatch" if numbering.microbatch else "minibatch",
        tuple(stages),
        tuple(_messages(schedule, numbering, progress, first, drawing.makespan)),
    )


def _with_versions(
    boxes: Sequence[Box], schedule: Schedule, stage: int, numbering: Numbering, first: int
) -> tuple[Box, ...]:
    """The boxes of a stage, with the weights that they read."""
    versions = {
        (item.name, numbering.label(item.of_minibatch(item.minibatch + first))): version_text(read)
        for _, item, _, read in schedule.versions(stage)
        if read is not None
    }
    return tuple(replace(box, version=versions.get((box.kind, box.label), "")) for box in boxes)


def _weights(schedule: Schedule, stage: int, times: Mapping[int, Span]) -> Iterator[Stored]:
    """Versions of a stage, each until the next update and its last reader; the last one for ever."""
    last_readers = plan_memory(schedule, stage).last_readers
    updates = [times[at][1] for at, item in enumerate(schedule.orders[stage]) if isinstance(item, Update)]
    for version, (born, replaced) in enumerate(pairwise([-inf, *updates, inf])):
        reader = last_readers.get(version)
        yield Stored(f"v{version}", born, replaced if reader is None else max(replaced, times[reader][1]))


def _activations(
    schedule: Schedule, stage: int, times: Mapping[int, Span], numbering: Numbering, first: int
) -> Iterator[Stored]:
    """Activations of a stage's microbatches, from the start of the pass that computes them."""
    for item, (begin, end) in activation_lifetimes(schedule.orders[stage]).items():
        yield Stored(numbering.label(item.of_minibatch(item.minibatch + first)), times[begin][0], times[end][1])


def _seen(items: Iterable[Stored], drawing: Drawing) -> tuple[Stored, ...]:
    """What is stored within the time of a drawing, from its beginning on."""
    return tuple(
        replace(item, start=max(item.start, 0.0)) for item in items if item.end > 0 and item.start <= drawing.makespan
    )


def _messages(
    schedule: Schedule, numbering: Numbering, progress: Progress, first: int, end: float
) -> list[SentMessage]:
    """Messages that are sent and used, by the time at which they are sent; those of the time from 0 to `end`."""
    found = []
    for stage, order in enumerate(schedule.orders):
        _, needed = schedule.flow.of_stage(stage)
        for position, item in enumerate(order):
            channel = needed.get((type(item), item.chunk))
            if channel is None or position not in progress.computed[stage]:
                continue
            span = progress.sent.get((channel, item.minibatch, item.microbatch))
            if span is not None:
                label = numbering.label(item.of_minibatch(item.minibatch + first))
                use = progress.computed[stage][position][0]
                found.append(SentMessage(channel.sender, channel.receiver, channel.gradients, label, *span, use))
    seen = (message for message in found if message.use >= 0 and message.start <= end)
    return sorted(seen, key=lambda message: message.start)


def html_page(animation: Animation) -> str:
    """Make the page: one file, which loads nothing."""
    from hybridnn.pipeline.drawing.text import text_lines

    parts = files("hybridnn.pipeline.drawing") / "page"
    lines = text_lines(animation.drawing, TEXT_WIDTH, TEXT_BANDS)
    # "<" would end the script, or begin a comment in it.
    content = {
        "title": escape(animation.drawing.title),
        "summary": escape(animation.summary),
        "style": (parts / "page.css").read_text(encoding="utf-8"),
        "text": escape("\n".join(line.plain.rstrip() for line in lines)),
        "data": to_json(_facts(animation)).replace("<", "\\u003c"),
        "program": (parts / "page.js").read_text(encoding="utf-8"),
    }
    page = (parts / "page.html").read_text(encoding="utf-8")
    return re.sub(r"{{ (\w+) }}", lambda found: content[found[1]], page)


def _facts(animation: Animation) -> dict[str, Any]:
    """All that the page shows; lists in place of objects, because there are thousands."""
    drawing = animation.drawing
    kinds = [kind.name for kind in kinds_drawn(drawing)]
    return {
        "title": drawing.title,
        "unit": drawing.unit,
        "unitName": animation.unit_name,
        "numbering": drawing.numbering,
        "makespan": _rounded(drawing.makespan),
        "pace": _rounded(readable_duration(drawing)),
        "kinds": [vars(KINDS[name]) for name in kinds],
        "rows": [
            {
                "label": row.label,
                "boxes": [
                    [_rounded(box.start), _rounded(box.end), kinds.index(box.kind), box.label, box.version]
                    for box in row.boxes
                ],
            }
            for row in drawing.rows
        ],
        "stages": [
            {"row": stage.row, "weights": _stored(stage.weights), "activations": _stored(stage.activations)}
            for stage in animation.stages
        ],
        "messages": [
            [item.sender, item.receiver, int(item.gradients), item.label]
            + [_rounded(time) for time in (item.start, item.arrival, item.use)]
            for item in animation.messages
        ],
    }


def _stored(items: Sequence[Stored]) -> list[list[str | float]]:
    return [[item.label, _rounded(item.start), _rounded(item.end)] for item in items]


def _rounded(time: float) -> float:
    """A time to nine digits: equal times remain equal, and the page stays small."""
    return float(f"{time:.9g}")
