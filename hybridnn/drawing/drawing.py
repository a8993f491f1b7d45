"""Drawing of a schedule: boxes on a time axis, which become text or a picture.

A `Drawing` is independent of schedules and MPI, so that measured runs are drawn like planned ones. Boxes have the
number of their minibatch, or of their microbatch, from 1 as in Figures 2-5 of Kang 2019; forward is blue and backward
green as there. The colours of the computations also differ in lightness, for print and for colour-blind readers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import median
from string import ascii_lowercase
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Instruction, Update
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from hybridnn.pipeline.checks.simulated_schedule import TimedInstruction, Timeline
    from hybridnn.pipeline.schedules.weight_policies import WeightRead


@dataclass(frozen=True)
class Kind:
    """Appearance of one kind of box."""

    name: str
    letter: str  # one character, for text
    fill: str  # colour of the box, as ``#rrggbb``
    ink: str  # colour of the text on it
    computes: bool = False  # whether it is a computation, which has a number and determines the scale of the drawing

    @property
    def style(self) -> str:
        """Colours in the notation of rich."""
        return f"{self.ink} on {self.fill}"


KINDS = {
    kind.name: kind
    for kind in (
        Kind("forward", "F", "#7fb2ea", "#10243c", computes=True),
        Kind("recompute", "R", "#d3e6fa", "#10243c", computes=True),
        Kind("backward", "B", "#0f5a34", "#ffffff", computes=True),
        Kind("input gradient", "I", "#2b8259", "#ffffff", computes=True),
        Kind("weight gradient", "W", "#a9dcbd", "#0c2f1d", computes=True),
        Kind("send", ">", "#f0a030", "#2b1a00"),
        Kind("wait", "~", "#f6e3bd", "#2b1a00"),
        Kind("reduce", "+", "#b79ad6", "#1f1030"),
        Kind("update", "U", "#5b3f86", "#ffffff"),
        Kind("other", "o", "#c9ced6", "#1a1f26"),
    )
}
"""All kinds of box by name, in the order of the legend; the last five occur in measured runs."""


def is_computation(name: str) -> bool:
    """Whether instructions of a name are drawn as computations."""
    return name in KINDS and KINDS[name].computes


@dataclass(frozen=True)
class Box:
    """An activity of a stage."""

    start: float  # in the drawing's unit of time, from 0
    end: float
    label: str  # number shown on it
    kind: str  # a name in `KINDS`
    minibatch: int = -1  # number within the epoch, from 0; -1 for none
    detail: str = ""  # tooltip
    version: str = ""  # the weights that it reads, below the number


@dataclass(frozen=True)
class Row:
    """A stage or rank: its name, and its boxes in order of time."""

    label: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Arrow:
    """A message, drawn from row `source` to row `target`; dashed if it does not arrive."""

    source: int
    target: int
    start: float
    end: float
    arrives: bool = True


@dataclass(frozen=True)
class Drawing:
    """Rows over a common time axis, from top to bottom."""

    title: str
    rows: tuple[Row, ...]
    makespan: float  # end of the time axis, which begins at 0
    numbering: str = ""  # meaning of the numbers on the boxes, for the legend
    unit: str = ""  # unit of time, for example ``"ms"``; empty for planned schedules
    arrows: tuple[Arrow, ...] = ()  # not drawn in text
    versions: str = ""  # meaning of the versions on the boxes, for the legend; not drawn in text
    slot: float = 0.0  # time that is equally wide in all pictures, a stage's forward pass; 0 if it is not planned

    @property
    def boxes(self) -> Iterator[Box]:
        """The boxes of all rows."""
        return chain.from_iterable(row.boxes for row in self.rows)

    @property
    def axis_label(self) -> str:
        """Name of the time axis."""
        return f"time in {self.unit}" if self.unit else "time"


class Numbering(NamedTuple):
    """Numbers of the boxes: of the minibatch and of the microbatch, from 1, and a letter for the chunk."""

    minibatch: bool
    microbatch: bool
    chunk: bool

    def label(self, instruction: Instruction) -> str:
        """Label of an instruction; that of an update is its minibatch."""
        numbers = [str(instruction.minibatch + 1)] if self.minibatch else []
        if isinstance(instruction, Update):
            return numbers[0]
        if self.microbatch and instruction.microbatch != ALL_MICROBATCHES:
            numbers.append(str(instruction.microbatch + 1))
        return ".".join(numbers) + (chunk_letter(instruction.chunk) if self.chunk else "")

    @property
    def legend(self) -> str:
        """Meaning of the labels."""
        counts = ["minibatch"] * self.minibatch + ["microbatch"] * self.microbatch
        text = f"number: {'.'.join(counts)}, from 1"
        return f"{text}; letter after it: chunk of the stage's layers" if self.chunk else text


def chunk_letter(chunk: int) -> str:
    """Letter of a chunk: a to z, then aa to zz."""
    return ascii_lowercase[chunk % 26] * (chunk // 26 + 1)


def numbering_of(schedule: Schedule) -> Numbering:
    """Numbers that tell the microbatches of a schedule apart."""
    is_split = schedule.microbatches > 1
    return Numbering(schedule.minibatches > 1 or not is_split, is_split, schedule.chunks > 1)


def draw_timeline(timeline: Timeline, *, versions: bool = False) -> Drawing:
    """Draw the computations of a simulated schedule; messages show as the idle time that they cause.

    Computations that take no time have no box. Where weights are stale, or with `versions`, boxes show the version that
    they read.
    """
    schedule = timeline.schedule
    numbering = numbering_of(schedule)
    versions = versions or any(_is_stale(item) for items in timeline.stages for item in items)

    def box(stage: int, item: TimedInstruction) -> Box:
        label, detail = numbering.label(item.instruction), _detail(schedule, stage, item)
        version = version_text(item.read) if versions and item.read is not None else ""
        return Box(item.start, item.end, label, item.instruction.name, item.instruction.minibatch, detail, version)

    rows = tuple(
        Row(
            f"stage {stage}",
            tuple(
                box(stage, item) for item in items if is_computation(item.instruction.name) and item.end > item.start
            ),
        )
        for stage, items in enumerate(timeline.stages)
    )
    passes = (item for items in timeline.stages for item in items if item.instruction.name == "forward")
    slot = schedule.chunks * max((item.end - item.start for item in passes), default=0.0)
    legend = versions_legend(rows)
    return Drawing(_title(schedule), rows, timeline.makespan, numbering.legend, versions=legend, slot=slot)


def versions_legend(rows: Iterable[Row]) -> str:
    """Meaning of the versions on the boxes; empty if there are none."""
    read = [box.version for row in rows for box in row.boxes if box.version]
    legend = ["v2: weights after 2 updates"] * bool(read)
    for sign, meaning in (("+", "v2+1: predicted 1 update ahead"), ("-", "v2-1: estimated 1 update back")):
        legend += [meaning] * any(sign in version for version in read)
    return "; ".join(legend)


def _is_stale(item: TimedInstruction) -> bool:
    """Whether it reads other weights than those after all earlier minibatches."""
    return item.read is not None and (item.read.version != item.instruction.minibatch or item.read.ahead != 0)


def version_text(read: WeightRead) -> str:
    """``v2``; ``v2+3`` if the weights are predicted three updates ahead, ``v4-2`` if estimated two updates back."""
    return f"v{read.version}" + (f"{read.ahead:+d}" if read.ahead else "")


def kinds_drawn(drawing: Drawing) -> tuple[Kind, ...]:
    """Kinds of box in a drawing, in the order of the legend."""
    found = {box.kind for box in drawing.boxes}
    return tuple(kind for kind in KINDS.values() if kind.name in found)


def longest_label(drawing: Drawing) -> int:
    """Characters of the longest label of a computation, at least 1."""
    labels = (box.label for box in drawing.boxes if KINDS[box.kind].computes)
    return max((len(label) for label in labels), default=1) or 1


def longest_version(drawing: Drawing) -> int:
    """Characters of the longest version on a box, 0 if there is none."""
    return max((len(box.version) for box in drawing.boxes), default=0)


def readable_duration(drawing: Drawing) -> float:
    """Duration whose box must be wide enough for its label: the shortest median of a kind of computation.

    It is a median, because one short measured box must not determine the scale, and at least a tenth of the longest
    median, because a kind that takes almost no time must not either.
    """
    durations: dict[str, list[float]] = defaultdict(list)
    for box in drawing.boxes:
        if KINDS[box.kind].computes and box.end > box.start:
            durations[box.kind].append(box.end - box.start)
    medians = [median(values) for values in durations.values()]
    return max(min(medians), max(medians) / 10) if medians else drawing.makespan or 1.0


def axis_ticks(end: float, most: int) -> tuple[tuple[float, str], ...]:
    """At most `most` round times from 0 to `end`, and their labels."""
    ticks = round_ticks(0.0, end * (1 + 1e-9), most) if end > 0 and most > 1 else [0.0]
    return tuple((tick, f"{tick:.6g}") for tick in ticks)


def round_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten between two numbers; `whole` ones if required."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    while math.floor(high / step) - math.ceil(low / step) + 1 > most or (whole and step < 1):
        # 1, 2, 5, 10: the first digit of a step decides what follows.
        step *= 2.5 if round(step / 10 ** math.floor(math.log10(step) + 1e-9)) == 2 else 2
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _detail(schedule: Schedule, stage: int, item: TimedInstruction) -> str:
    instruction = item.instruction
    parts = [f"{instruction.name} of minibatch {instruction.minibatch + 1}"]
    if instruction.microbatch == ALL_MICROBATCHES:
        parts.append("all microbatches")
    elif schedule.microbatches > 1:
        parts.append(f"microbatch {instruction.microbatch + 1}")
    if schedule.chunks > 1:
        parts.append(f"chunk {chunk_letter(instruction.chunk)}")
    parts += [f"stage {stage}", f"time {item.start:.6g} to {item.end:.6g}"]
    if item.read is not None:
        ahead = item.read.ahead
        predicted = f", predicted {ahead} ahead" if ahead > 0 else f", estimated {-ahead} back" if ahead else ""
        parts.append(f"weights after {item.read.version} updates{predicted}")
    return ", ".join(parts)


def _title(schedule: Schedule) -> str:
    parts = [f"{schedule.method}: {counted(schedule.stages, 'stage')}"]
    if schedule.chunks > 1:
        parts.append(f"{schedule.chunks} chunks each")
    parts.append(counted(schedule.minibatches, "minibatch"))
    if schedule.microbatches > 1:
        parts.append(f"{schedule.microbatches} microbatches each")
    return ", ".join(parts)
