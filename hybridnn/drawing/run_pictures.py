"""Pictures of runs, a row for each rank or stage: a measured epoch, and simulated steps with their scaling curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from hybridnn.comm.recorder import Event
from hybridnn.cost.prediction.predict import ScalingCurve, SimulatedStep
from hybridnn.drawing.drawing import KINDS, Box, Drawing, Numbering, Row, draw_timeline, is_computation
from hybridnn.drawing.figures import COLORS, MUTED, PANEL, column_figure, draw_parts, legend_above, ratio_tick, tidy
from hybridnn.pipeline.checks.simulated_schedule import TimedInstruction, Timeline
from hybridnn.pipeline.schedules.instructions import Instruction, ReduceGradients, Update
from hybridnn.runs.trace_file import Epoch, RankTrace
from hybridnn.utils.text import MILLISECONDS, counted, format_milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMMUNICATION_KINDS = {
    "send": "send",
    "send.wait": "wait",
    "receive.wait": "wait",
    "barrier": "wait",
    "allreduce": "reduce",
    "allreduce.wait": "reduce",
}
"""Kinds of box by name of the event; other events are "other"."""

ADDED_KINDS = {ReduceGradients: "reduce", Update: "update"}
"""Kinds of box of computations that take no time in a planned schedule."""

MOST_ROWS = 24  # stages of a simulation that are drawn: of more, the first and the last
MOST_BOXES = 2000  # computations of a simulation that are drawn: of more, those that start first


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
    title = f"{epoch.layout.method}, {counted(stages, 'stage')}, measured in epoch {epoch.number}, {what}"
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
    names = [f"stage {stage}"] + [f"batch {batch_rank}"] * (batch > 1) + [f"model {model_rank}"] * (model > 1)
    return " ".join(names)


# -- simulated steps ---------------------------------------------------------------------------------------------------


def draw_simulation(step: SimulatedStep, most_rows: int = MOST_ROWS, most_boxes: int = MOST_BOXES) -> Drawing:
    """Draw a row per stage, on a time axis in milliseconds.

    The title states what is left out beyond `most_rows` stages and `most_boxes` computations.
    """
    schedule = step.times.program.schedule
    stages = stages_shown(schedule.stages, most_rows)
    timed = {stage: _timed(step, stage) for stage in stages}
    starts = sorted(item.start for items in timed.values() for item in items)
    end = starts[most_boxes] if len(starts) > most_boxes else inf
    drawn = [tuple(item for item in timed.get(stage, ()) if item.start < end) for stage in range(schedule.stages)]
    makespan = min(end, step.seconds * MILLISECONDS)
    drawing = draw_timeline(Timeline(schedule, tuple(drawn), makespan))
    rows = []
    for stage in stages:
        boxes = [*drawing.rows[stage].boxes, *_added_boxes(step, stage, drawn[stage])]
        cut = (replace(box, end=min(box.end, makespan)) for box in boxes)
        rows.append(Row(drawing.rows[stage].label, tuple(sorted(cut, key=lambda box: box.start))))
    title = ", ".join([drawing.title, "simulated", *_left_out(step, stages, makespan)])
    return replace(drawing, title=title, rows=tuple(rows), unit="ms", slot=0.0)


def stages_shown(stages: int, most: int = MOST_ROWS) -> tuple[int, ...]:
    """All stages; of more than `most`, the first half and the last half of that many."""
    if stages <= most:
        return tuple(range(stages))
    return (*range(most - most // 2), *range(stages - most // 2, stages))


def _timed(step: SimulatedStep, stage: int) -> list[TimedInstruction]:
    own = step.times.program.of(stage)
    starts, ends = ((times[own] * MILLISECONDS).tolist() for times in (step.times.starts, step.times.ends))
    return [
        TimedInstruction(*item, None) for item in zip(step.times.program.computations[own], starts, ends, strict=True)
    ]


def _added_boxes(step: SimulatedStep, stage: int, items: Sequence[TimedInstruction]) -> Iterator[Box]:
    """Boxes that a planned schedule does not have: messages that occupy the stage, reductions, updates."""
    own = step.times.program.of(stage)
    for item, seconds in zip(items, step.times.receiving[own].tolist(), strict=False):
        minibatch = item.instruction.minibatch
        if seconds:
            start = item.start - seconds * MILLISECONDS
            yield Box(start, item.start, "", "wait", minibatch, f"receives the message for {item.instruction}")
        kind = ADDED_KINDS.get(type(item.instruction))
        if kind is not None and item.end > item.start:
            detail = f"{item.instruction}, stage {stage}, time {item.start:.6g} to {item.end:.6g}"
            yield Box(item.start, item.end, "", kind, minibatch, detail)


def _left_out(step: SimulatedStep, stages: Sequence[int], makespan: float) -> Iterator[str]:
    if len(stages) < len(step.layout.stages):
        first, last = stages[len(stages) - len(stages) // 2 - 1], stages[len(stages) - len(stages) // 2]
        yield f"stages {first + 1} to {last - 1} left out"
    if makespan < step.seconds * MILLISECONDS:
        yield f"up to {makespan:.4g} of {format_milliseconds(step.seconds)} ms"


# -- scaling curves ----------------------------------------------------------------------------------------------------


LINE: dict[str, Any] = {"color": COLORS[0], "linewidth": 1.3, "marker": "o", "markersize": 2.5}
BAND: dict[str, Any] = {"color": COLORS[0], "alpha": 0.2, "linewidth": 0, "label": "error of predictions"}
IDEAL: dict[str, Any] = {"color": MUTED, "linestyle": "--", "linewidth": 1.0, "label": "ideal"}


def draw_scaling(curve: ScalingCurve) -> dict[str, Figure]:
    """Draw a scaling curve: figures of one panel by name, speed-up, efficiency and breakdown of the ranks' time."""
    ranks, efficiencies = [point.ranks for point in curve.points], [point.efficiency for point in curve.points]
    line = {**LINE, "label": "best layouts" if curve.kind == "best" else "one layout, more replicas"}
    speed_up, (axes,) = column_figure(PANEL)
    axes.plot(ranks, ranks, **IDEAL)
    axes.plot(ranks, [point.speed_up for point in curve.points], **line)
    if bands := [(point.low, point.high) for point in curve.points if point.low is not None]:
        low, high = zip(*bands, strict=True)
        axes.fill_between(ranks, low, high, **BAND)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ratio_tick)
    axes.set_ylabel("speed-up against 1 rank")
    _finish_over_ranks(speed_up, axes)
    efficiency, (axes,) = column_figure(PANEL)
    axes.axhline(1, **IDEAL)
    axes.plot(ranks, efficiencies, **line)
    axes.set_ylim(0, 1.1 * max(1.0, *efficiencies))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylabel("efficiency")
    _finish_over_ranks(efficiency, axes)
    breakdown, (axes,) = column_figure(PANEL)
    draw_parts(axes, {str(point.ranks): point.shares for point in curve.points})
    axes.set_xlabel("ranks")
    axes.set_ylim(0, 1)
    tidy(axes, grid=False)
    legend_above(breakdown, axes.get_legend_handles_labels()[0])
    return {"speed_up": speed_up, "efficiency": efficiency, "breakdown": breakdown}


def _finish_over_ranks(figure: Figure, axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("ranks")
    tidy(axes)
    legend_above(figure, axes.get_legend_handles_labels()[0])
