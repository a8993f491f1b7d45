"""Animation of a schedule, planned or measured: a drawing, and what every stage stores and sends at a time.

It is shown by one HTML page that plays it in a browser, and loads nothing. The page is made of the files in the folder
`page`: its structure, its style and its program.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridnn.drawing.drawing import (
    KINDS,
    Box,
    Drawing,
    Numbering,
    draw_timeline,
    numbering_of,
    readable_duration,
    version_text,
    versions_legend,
)
from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.instructions import Barrier, Forward, Instruction, Recompute, Update
from hybridnn.pipeline.schedules.memory_plan import activation_lifetimes, input_lifetimes, plan_memory
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.pipeline.schedules.schedule import Message, Schedule
from hybridnn.pipeline.schedules.weight_policies import WeightRead
from hybridnn.utils.text import to_json

if TYPE_CHECKING:
    from hybridnn.pipeline.checks.simulated_schedule import Timeline

PROGRAM = ("state", "sentences", "colours", "stages", "chart", "figures", "player")  # files, in this order
TEXT_WIDTH, TEXT_BANDS = 100, 40  # of the drawing that browsers without JavaScript show

Span = tuple[float, float]
"""Start and end, in the drawing's unit of time."""


@dataclass(frozen=True)
class ScheduleProgress:
    """When a schedule's computations and messages took place, in the unit of its drawing."""

    computed: Sequence[Mapping[int, Span]]  # per stage, from the position of a computation in its list
    sent: Mapping[Message, Span]  # from the beginning of the send to the arrival
    barriers: Sequence[tuple[Span, ...]] = ()  # per stage, its waits at barriers; empty where they are not known
    first_minibatch: int = 0  # number in the drawing of the schedule's minibatch 0
    since: str = ""  # whose updates the versions count, where that is not plain, such as `` of the epoch``

    def start(self, stage: int, position: int) -> float:
        """Start of an instruction; infinite where none was recorded."""
        return self._span(stage, position)[0]

    def end(self, stage: int, position: int) -> float:
        """End of an instruction; infinite where none was recorded."""
        return self._span(stage, position)[1]

    def _span(self, stage: int, position: int) -> Span:
        times = self.computed[stage]
        outside = -inf if position < next(iter(times)) else inf
        return times.get(position, (outside, outside))


class Stored(NamedTuple):
    """Something that a stage holds for a time: a weight version, or the activations of a microbatch."""

    label: str
    start: float
    end: float  # infinite for the version that is current at the end


class SentMessage(NamedTuple):
    """A message between two stages: on its way until it arrives, and waiting until it is used."""

    sender: int
    receiver: int
    gradients: bool  # gradients of a backward pass, not activations of a forward pass
    label: str
    start: float
    arrival: float
    use: float


class Stage(NamedTuple):
    """A stage: the row of the drawing that stands for it, and what it holds."""

    row: int
    weights: tuple[Stored, ...] = ()
    inputs: tuple[Stored, ...] = ()  # where activations are computed again from them
    activations: tuple[Stored, ...] = ()
    barriers: tuple[Span, ...] = ()  # in which it waits at a barrier


@dataclass(frozen=True)
class Animation:
    """A drawing whose boxes all have the versions that they read, and what changes besides."""

    drawing: Drawing
    summary: str  # the method in one line
    unit_name: str  # what the labels number: ``"minibatch"`` or ``"microbatch"``
    stages: tuple[Stage, ...]
    messages: tuple[SentMessage, ...] = ()


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
    barriers = [
        tuple(
            (item.start, item.end) for item in items if isinstance(item.instruction, Barrier) and item.end > item.start
        )
        for items in timeline.stages
    ]
    progress = ScheduleProgress(computed, sent, barriers)
    return animate(draw_timeline(timeline), schedule, numbering_of(schedule), range(schedule.stages), progress)


def animate(
    drawing: Drawing, schedule: Schedule, numbering: Numbering, rows: Sequence[int], progress: ScheduleProgress
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
    progress : ScheduleProgress
        Where a stage's computations have no times, the page shows neither its weights nor its activations.
    """
    story = _Story(drawing, schedule, numbering, progress)
    drawn = list(drawing.rows)
    for stage, row in enumerate(rows):
        drawn[row] = replace(drawn[row], boxes=story.boxes(stage, drawn[row].boxes))
    method = METHODS.get(schedule.method)
    return Animation(
        replace(drawing, rows=tuple(drawn), versions=versions_legend(drawn, progress.since)),
        "" if method is None else method.summary,
        "microbatch" if numbering.microbatch else "minibatch",
        tuple(story.stage(stage, row) for stage, row in enumerate(rows)),
        story.messages(),
    )


@dataclass(frozen=True)
class _Story:
    """What a drawing shows of a schedule."""

    drawing: Drawing
    schedule: Schedule
    numbering: Numbering
    progress: ScheduleProgress

    def boxes(self, stage: int, boxes: tuple[Box, ...]) -> tuple[Box, ...]:
        """The boxes of a stage, with the weights that they read."""
        if not self.progress.computed[stage]:
            return boxes
        versions = {
            (item.name, self._label(item)): version_text(read)
            for _, item, _, read in self.schedule.versions(stage)
            if read is not None
        }
        return tuple(replace(box, version=versions.get((box.kind, box.label), "")) for box in boxes)

    def stage(self, stage: int, row: int) -> Stage:
        """What a stage holds within the time of the drawing."""
        if not self.progress.computed[stage]:
            return Stage(row)
        order = self.schedule.orders[stage]
        activations = ((self._label(item), begin, end) for item, (begin, end) in activation_lifetimes(order).items())
        inputs: Iterable[tuple[str, int, int]] = ()
        if any(isinstance(item, Recompute) for item in order):
            inputs = ((self._label(Forward(*part)), *lifetime) for part, lifetime in input_lifetimes(order).items())
        weights = self._seen(self._weights(stage))
        barriers = self.progress.barriers[stage] if self.progress.barriers else ()
        return Stage(row, weights, self._held(stage, inputs), self._held(stage, activations), barriers)

    def messages(self) -> tuple[SentMessage, ...]:
        """Messages that are sent and used, by the time at which they are sent."""
        found = []
        for stage, order in enumerate(self.schedule.orders):
            _, needed = self.schedule.flow.of_stage(stage)
            for position, item in enumerate(order):
                channel = needed.get((type(item), item.chunk))
                if channel is None or position not in self.progress.computed[stage]:
                    continue
                span = self.progress.sent.get((channel, item.minibatch, item.microbatch))
                use = self.progress.start(stage, position)
                if span is not None and use >= 0 and span[0] <= self.drawing.makespan:
                    ends = channel.sender, channel.receiver, channel.gradients
                    found.append(SentMessage(*ends, self._label(item), *span, use))
        return tuple(sorted(found, key=lambda message: message.start))

    def _label(self, item: Instruction) -> str:
        return self.numbering.label(item.of_minibatch(item.minibatch + self.progress.first_minibatch))

    def _weights(self, stage: int) -> Iterator[Stored]:
        """Versions of a stage, each until the next update and its last reader; the last one for ever."""
        last_readers = plan_memory(self.schedule, stage).last_readers
        order, end = self.schedule.orders[stage], self.progress.end
        updates = [end(stage, at) for at, item in enumerate(order) if isinstance(item, Update)]
        for version, (born, replaced) in enumerate(pairwise([-inf, *updates, inf])):
            until = max(replaced, end(stage, last_readers[version])) if version in last_readers else replaced
            yield Stored(version_text(WeightRead(version)), born, until)

    def _held(self, stage: int, items: Iterable[tuple[str, int, int]]) -> tuple[Stored, ...]:
        """Stored parts by their labels and the positions from the start of which to the end of which they are held."""
        start, end = self.progress.start, self.progress.end
        return self._seen(Stored(label, start(stage, first), end(stage, last)) for label, first, last in items)

    def _seen(self, items: Iterable[Stored]) -> tuple[Stored, ...]:
        """What is stored within the time of the drawing, from its beginning on."""
        makespan = self.drawing.makespan
        return tuple(
            item._replace(start=max(item.start, 0.0)) for item in items if item.end > 0 and item.start <= makespan
        )


# -- the page ----------------------------------------------------------------------------------------------------------


def write_html(animation: Animation, path: str | Path) -> None:
    """Write the page of an animation.

    Raises
    ------
    SettingError
        If it cannot be written, or its name does not end with .html.
    """
    require_html("page", path)
    try:
        Path(path).write_text(html_page(animation), encoding="utf-8")
    except OSError as error:
        raise SettingError("page", str(path), f"cannot be written: {error.strerror}") from error


def require_html(name: str, path: str | Path) -> None:
    """Raise `SettingError` unless a file's name ends with .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise SettingError(name, str(path), "the page is HTML: a name that ends with .html")


def html_page(animation: Animation) -> str:
    """Make the page: one file, which loads nothing."""
    from hybridnn.drawing.text import text_lines

    parts = files("hybridnn.drawing") / "page"
    lines = text_lines(animation.drawing, TEXT_WIDTH, TEXT_BANDS)
    # "<" would end the script, or begin a comment in it.
    content = {
        "title": escape(animation.drawing.title),
        "summary": escape(animation.summary),
        "style": (parts / "page.css").read_text(encoding="utf-8"),
        "text": escape("\n".join(line.plain.rstrip() for line in lines)),
        "data": to_json(_facts(animation)).replace("<", "\\u003c"),
        "program": "\n".join((parts / f"{name}.js").read_text(encoding="utf-8") for name in PROGRAM),
    }
    page = (parts / "page.html").read_text(encoding="utf-8")
    return re.sub(r"{{ (\w+) }}", lambda found: content[found[1]], page)


def _facts(animation: Animation) -> dict[str, Any]:
    """All that the page shows; lists in place of objects, because there are thousands."""
    drawing, kinds = animation.drawing, list(KINDS)
    facts = {
        "title": drawing.title,
        "unit": drawing.unit,
        "unitName": animation.unit_name,
        "numbering": drawing.numbering,
        "versions": drawing.versions,
        "makespan": drawing.makespan,
        "pace": readable_duration(drawing),
        "kinds": [vars(kind) for kind in KINDS.values()],
        "rows": [
            {
                "label": row.label,
                "boxes": [[box.start, box.end, kinds.index(box.kind), box.label, box.version] for box in row.boxes],
            }
            for row in drawing.rows
        ],
        "stages": [stage._asdict() for stage in animation.stages],
        "messages": [[*item[:2], int(item.gradients), *item[3:]] for item in animation.messages],
    }
    rounded: dict[str, Any] = _rounded(facts)
    return rounded


def _rounded(value: Any) -> Any:
    """Times to nine digits: equal ones remain equal, and the page stays small."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
