"""A schedule as boxes on a time axis: what the text, SVG and PNG renderers draw.

A `Drawing` knows neither schedules nor MPI, so that a measured run is drawn like a planned one. Boxes carry the number
of their minibatch, or of their microbatch, counted from 1 as in Figures 2-5 of Kang 2019; forward is blue and backward
green as there. The colours of the computations differ in lightness too, for print and for colour-blind readers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from string import ascii_lowercase
from types import MappingProxyType
from typing import TYPE_CHECKING

from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Instruction
from hybridnn.pipeline.schedules.schedule import Schedule

if TYPE_CHECKING:
    from hybridnn.pipeline.checks.simulate import TimedInstruction, Timeline


@dataclass(frozen=True)
class Kind:
    """Looks of one kind of box.

    Attributes
    ----------
    name : str
    letter : str
        One character, for text.
    fill, ink : str
        Colour of the box and of the text on it, as ``#rrggbb``.
    computes : bool
        Whether it is a computation, which has a number and decides the scale of the drawing.
    """

    name: str
    letter: str
    fill: str
    ink: str
    computes: bool = False


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
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
)
"""Every kind of box by name, in the order of the legend; the last five are of measured runs."""


@dataclass(frozen=True)
class Box:
    """Something a stage does for a while.

    Attributes
    ----------
    start, end : float
        In the drawing's unit of time, from 0.
    label : str
        Number shown on it.
    kind : str
        A name in `KINDS`.
    minibatch : int
        Number within the epoch, from 0; -1 for none.
    detail : str
        A sentence for who points at it.
    """

    start: float
    end: float
    label: str
    kind: str
    minibatch: int = -1
    detail: str = ""


@dataclass(frozen=True)
class Row:
    """One stage, or one rank: its name and its boxes in order of time."""

    label: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Arrow:
    """A message, drawn from row to row.

    Attributes
    ----------
    source, target : int
        Numbers of the rows.
    start, end : float
        When it left and when it arrived.
    arrives : bool
        False where it was not received: dashed.
    """

    source: int
    target: int
    start: float
    end: float
    arrives: bool = True


@dataclass(frozen=True)
class Drawing:
    """Rows over a common time axis.

    Attributes
    ----------
    title : str
    rows : tuple of Row
        From top to bottom.
    makespan : float
        End of the time axis, which begins at 0.
    numbering : str
        What the numbers on the boxes count, for the legend.
    unit : str
        Unit of time, for example ``"ms"``; empty for planned schedules, whose unit is the user's.
    arrows : tuple of Arrow
        Messages; text and PNG leave them out.
    """

    title: str
    rows: tuple[Row, ...]
    makespan: float
    numbering: str = ""
    unit: str = ""
    arrows: tuple[Arrow, ...] = ()

    @property
    def axis_label(self) -> str:
        """Name of the time axis."""
        return f"time in {self.unit}" if self.unit else "time"


def draw_timeline(timeline: Timeline) -> Drawing:
    """Draw the computations of a simulated schedule; messages show as the idle time they cause.

    Computations that take no time have no box.
    """
    schedule = timeline.schedule
    rows = tuple(
        Row(
            f"stage {stage}",
            tuple(_box(schedule, stage, item) for item in items if _is_computation(item) and item.end > item.start),
        )
        for stage, items in enumerate(timeline.stages)
    )
    return Drawing(_title(schedule), rows, timeline.makespan, _numbering(schedule))


def kinds_drawn(drawing: Drawing) -> tuple[Kind, ...]:
    """Kinds of box that occur, in the order of the legend."""
    found = {box.kind for row in drawing.rows for box in row.boxes}
    return tuple(kind for kind in KINDS.values() if kind.name in found)


def longest_label(drawing: Drawing) -> int:
    """Characters of the longest label of a computation, at least 1."""
    labels = (box.label for row in drawing.rows for box in row.boxes if KINDS[box.kind].computes)
    return max((len(label) for label in labels), default=1) or 1


def readable_duration(drawing: Drawing) -> float:
    """Duration whose box must be wide enough for its label: the shortest median of a kind of computation.

    Medians, because one measured box that happens to be short must not blow up the drawing; nor may a kind that takes
    next to nothing, so that the duration is at least a tenth of the longest median.
    """
    durations: dict[str, list[float]] = defaultdict(list)
    for row in drawing.rows:
        for box in row.boxes:
            if KINDS[box.kind].computes and box.end > box.start:
                durations[box.kind].append(box.end - box.start)
    medians = [median(values) for values in durations.values()]
    return max(min(medians), max(medians) / 10) if medians else drawing.makespan or 1.0


def axis_ticks(end: float, most: int) -> tuple[tuple[float, str], ...]:
    """At most `most` round times from 0 to `end`, and their labels; 1, 2 or 5 times a power of ten apart."""
    if end <= 0 or most < 2:
        return ((0.0, "0"),)
    least = end / (most - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least * (1 - 1e-9))
    count = math.floor(end / step * (1 + 1e-9))
    return tuple((number * step, f"{number * step:.6g}") for number in range(count + 1))


def _is_computation(item: TimedInstruction) -> bool:
    return item.instruction.name in KINDS and KINDS[item.instruction.name].computes


def _box(schedule: Schedule, stage: int, item: TimedInstruction) -> Box:
    instruction = item.instruction
    return Box(
        item.start,
        item.end,
        _label(schedule, instruction),
        instruction.name,
        instruction.minibatch,
        _detail(schedule, stage, item),
    )


def _label(schedule: Schedule, instruction: Instruction) -> str:
    """Return the number from 1 of the minibatch, of the microbatch where there is one minibatch, or of both."""
    numbers = [str(instruction.minibatch + 1)] if schedule.minibatches > 1 or schedule.microbatches == 1 else []
    if schedule.microbatches > 1 and instruction.microbatch != ALL_MICROBATCHES:
        numbers.append(str(instruction.microbatch + 1))
    return ".".join(numbers) + _chunk_letter(schedule, instruction.chunk)


def _chunk_letter(schedule: Schedule, chunk: int) -> str:
    if schedule.chunks == 1:
        return ""
    return ascii_lowercase[chunk % 26] * (chunk // 26 + 1)


def _detail(schedule: Schedule, stage: int, item: TimedInstruction) -> str:
    instruction = item.instruction
    parts = [f"{instruction.name} of minibatch {instruction.minibatch + 1}"]
    if instruction.microbatch == ALL_MICROBATCHES:
        parts.append("all microbatches")
    elif schedule.microbatches > 1:
        parts.append(f"microbatch {instruction.microbatch + 1}")
    if schedule.chunks > 1:
        parts.append(f"chunk {_chunk_letter(schedule, instruction.chunk)}")
    parts += [f"stage {stage}", f"time {item.start:.6g} to {item.end:.6g}"]
    if item.read is not None:
        ahead = f", predicted {item.read.ahead} ahead" if item.read.ahead else ""
        parts.append(f"weights after {item.read.version} updates{ahead}")
    return ", ".join(parts)


def _title(schedule: Schedule) -> str:
    parts = [f"{schedule.method}: {_count(schedule.stages, 'stage')}"]
    if schedule.chunks > 1:
        parts.append(f"{schedule.chunks} chunks each")
    parts.append(_count(schedule.minibatches, "minibatch", "es"))
    if schedule.microbatches > 1:
        parts.append(f"{schedule.microbatches} microbatches each")
    return ", ".join(parts)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _numbering(schedule: Schedule) -> str:
    if schedule.microbatches == 1:
        text = "number: minibatch, from 1"
    elif schedule.minibatches == 1:
        text = "number: microbatch, from 1"
    else:
        text = "number: minibatch.microbatch, from 1"
    return text if schedule.chunks == 1 else f"{text}; letter after it: chunk of the stage's layers"
