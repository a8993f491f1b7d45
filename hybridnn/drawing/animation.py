"""Animation of a schedule on a simulated clock: its drawing, and what every stage stores and sends at a time.

It is shown by one HTML page that plays it in a browser, and loads nothing. The page is made of the files in the folder
`page`: its structure, its style and its program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridnn.drawing.drawing import (
    KINDS,
    Drawing,
    Numbering,
    draw_timeline,
    numbering_of,
    readable_duration,
    version_text,
)
from hybridnn.pipeline.schedules.compiled_schedule import MessageFlow
from hybridnn.pipeline.schedules.instructions import Barrier, Forward, Recompute, Update
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.pipeline.schedules.weight_policies import WeightRead
from hybridnn.utils.text import to_json

if TYPE_CHECKING:
    from hybridnn.pipeline.checks.simulated_schedule import Timeline

PROGRAM = ("state", "sentences", "colours", "stages", "chart", "figures", "player")  # files, in this order


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
    """What a stage holds."""

    weights: tuple[Stored, ...]
    inputs: tuple[Stored, ...]  # where activations are computed again from them
    activations: tuple[Stored, ...]
    barriers: tuple[tuple[float, float], ...]  # start and end, in which it waits at a barrier


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
    numbering, method = numbering_of(timeline.schedule), METHODS.get(timeline.schedule.method)
    story = _Story(timeline, numbering)
    return Animation(
        draw_timeline(timeline, versions=True),
        "" if method is None else method.summary,
        "microbatch" if numbering.microbatch else "minibatch",
        tuple(map(story.stage, range(timeline.schedule.stages))),
        story.messages(),
    )


@dataclass(frozen=True)
class _Story:
    """What stages hold and send on a simulated clock."""

    timeline: Timeline
    numbering: Numbering

    def stage(self, stage: int) -> Stage:
        """What a stage holds within the time of the drawing."""
        order, label = self.timeline.schedule.orders[stage], self.numbering.label
        plan = self.timeline.plans[stage]
        activations = ((label(item), *lifetime) for item, lifetime in plan.activation_lifetimes.items())
        inputs: Iterable[tuple[str, int, int]] = ()
        if any(isinstance(item, Recompute) for item in order):
            inputs = ((label(Forward(*part)), *lifetime) for part, lifetime in plan.input_lifetimes.items())
        barriers = tuple(
            (item.start, item.end)
            for item in self.timeline.stages[stage]
            if isinstance(item.instruction, Barrier) and item.end > item.start
        )
        weights = self._seen(self._weights(stage))
        return Stage(weights, self._held(stage, inputs), self._held(stage, activations), barriers)

    def messages(self) -> tuple[SentMessage, ...]:
        """Messages that are sent and used, by the time at which they are sent."""
        flow = MessageFlow(self.timeline.schedule)
        sent = {
            message: (item.start, item.end)
            for stage, items in enumerate(self.timeline.stages)
            for item in items
            if (message := flow.carried(stage, item.instruction)) is not None
        }
        found = []
        for stage, items in enumerate(self.timeline.stages):
            for use in items:
                message = flow.needed(stage, use.instruction)
                if message is not None and message in sent:
                    ends, label = message[0][:3], self.numbering.label(use.instruction)
                    found.append(SentMessage(*ends, label, *sent[message], use.start))
        return tuple(sorted(found, key=lambda message: message.start))

    def _weights(self, stage: int) -> Iterator[Stored]:
        """Versions of a stage, each until the next update and its last reader; the last one for ever."""
        last_readers = self.timeline.plans[stage].last_readers
        items = self.timeline.stages[stage]
        updates = [item.end for item in items if isinstance(item.instruction, Update)]
        for version, (born, replaced) in enumerate(pairwise([-inf, *updates, inf])):
            until = max(replaced, items[last_readers[version]].end) if version in last_readers else replaced
            yield Stored(version_text(WeightRead(version)), born, until)

    def _held(self, stage: int, parts: Iterable[tuple[str, int, int]]) -> tuple[Stored, ...]:
        """Stored parts by their labels and the positions from the start of which to the end of which they are held."""
        items = self.timeline.stages[stage]
        return self._seen(Stored(label, items[first].start, items[last].end) for label, first, last in parts)

    def _seen(self, items: Iterable[Stored]) -> tuple[Stored, ...]:
        """What is stored within the time of the drawing, from its beginning on."""
        shown = (item for item in items if item.end > 0 and item.start <= self.timeline.makespan)
        return tuple(item._replace(start=max(item.start, 0.0)) for item in shown)


# -- the page ----------------------------------------------------------------------------------------------------------


def html_page(animation: Animation) -> str:
    """Make the page: one file, which loads nothing."""
    parts = files("hybridnn.drawing") / "page"
    # Times to nine digits: equal ones remain equal, and the page stays small.
    data = json.loads(to_json(_facts(animation)), parse_float=lambda text: float(f"{float(text):.9g}"))
    # "<" would end the script, or begin a comment in it.
    content = {
        "title": escape(animation.drawing.title),
        "summary": escape(animation.summary),
        "style": (parts / "page.css").read_text(encoding="utf-8"),
        "data": to_json(data).replace("<", "\\u003c"),
        "program": "\n".join((parts / f"{name}.js").read_text(encoding="utf-8") for name in PROGRAM),
    }
    page = (parts / "page.html").read_text(encoding="utf-8")
    return re.sub(r"{{ (\w+) }}", lambda found: content[found[1]], page)


def _facts(animation: Animation) -> dict[str, Any]:
    """All that the page shows; lists in place of objects, because there are thousands."""
    drawing, kinds = animation.drawing, list(KINDS)
    return {
        "title": drawing.title,
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
