"""Pictures of simulated training steps: the timeline of every stage, with its updates, and scaling curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.cost.prediction.predict import ScalingCurve, SimulatedStep
from hybridnn.drawing.drawing import Box, Drawing, Row, draw_timeline
from hybridnn.drawing.figures import COLORS, MUTED, PANEL, PART_STYLES, column_figure, legend_above, ratio_tick, tidy
from hybridnn.pipeline.checks.simulated_schedule import TimedInstruction, Timeline
from hybridnn.pipeline.schedules.instructions import ReduceGradients, Update
from hybridnn.utils.text import MILLISECONDS, format_milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 24  # stages that are drawn: of more, the first and the last
MOST_BOXES = 2000  # computations that are drawn: of more, those that start first

KINDS = {ReduceGradients: "reduce", Update: "update"}
"""Kinds of box of computations that take no time in a planned schedule."""

PERCENT = "{x:.0%}"


def draw_simulation(step: SimulatedStep, most_rows: int = MOST_ROWS, most_boxes: int = MOST_BOXES) -> Drawing:
    """Draw a row per stage, on a time axis in milliseconds.

    The title states what is left out beyond `most_rows` stages and `most_boxes` computations.
    """
    schedule = step.times.program.schedule
    stages = stages_shown(schedule.stages, most_rows)
    timed = {stage: _timed(step, stage) for stage in stages}
    end = _end_drawn([item.start for items in timed.values() for item in items], most_boxes)
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
    return [
        TimedInstruction(instruction, start, end, None)
        for instruction, start, end in zip(
            step.times.program.computations[own],
            (step.times.starts[own] * MILLISECONDS).tolist(),
            (step.times.ends[own] * MILLISECONDS).tolist(),
            strict=True,
        )
    ]


def _end_drawn(starts: Sequence[float], most_boxes: int) -> float:
    return sorted(starts)[most_boxes] if len(starts) > most_boxes else inf


def _added_boxes(step: SimulatedStep, stage: int, items: Sequence[TimedInstruction]) -> Iterator[Box]:
    """Boxes that a planned schedule does not have: messages that occupy the stage, reductions, updates."""
    own = step.times.program.of(stage)
    for item, seconds in zip(items, step.times.receiving[own].tolist(), strict=False):
        minibatch = item.instruction.minibatch
        if seconds:
            start = item.start - seconds * MILLISECONDS
            yield Box(start, item.start, "", "wait", minibatch, f"receives the message for {item.instruction}")
        kind = KINDS.get(type(item.instruction))
        if kind is not None and item.end > item.start:
            detail = f"{item.instruction}, stage {stage}, time {item.start:.6g} to {item.end:.6g}"
            yield Box(item.start, item.end, "", kind, minibatch, detail)


def _left_out(step: SimulatedStep, stages: Sequence[int], makespan: float) -> Iterator[str]:
    if len(stages) < len(step.layout.stages):
        first, last = stages[len(stages) - len(stages) // 2 - 1], stages[len(stages) - len(stages) // 2]
        yield f"stages {first + 1} to {last - 1} left out"
    if makespan < step.seconds * MILLISECONDS:
        yield f"up to {makespan:.4g} of {format_milliseconds(step.seconds)} ms"


# -- scaling curves --------------------------------------------------------------------------------------------------


def draw_scaling(curve: ScalingCurve) -> dict[str, Figure]:
    """Draw a scaling curve: figures of one panel by name, speed-up, efficiency and breakdown of the ranks' time."""
    return {
        "speed_up": _draw_speed_up(curve),
        "efficiency": _draw_efficiency(curve),
        "breakdown": _draw_shares(curve),
    }


LINE: dict[str, Any] = {"color": COLORS[0], "linewidth": 1.3, "marker": "o", "markersize": 2.5, "label": "simulated"}
IDEAL: dict[str, Any] = {"color": MUTED, "linestyle": "--", "linewidth": 1.0, "label": "ideal"}


def _draw_speed_up(curve: ScalingCurve) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    ranks = [point.ranks for point in curve.points]
    axes.plot(ranks, ranks, **IDEAL)
    axes.plot(ranks, [point.speed_up for point in curve.points], **LINE)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ratio_tick)
    axes.set_ylabel("speed-up against 1 rank")
    return _over_ranks(figure, axes)


def _draw_efficiency(curve: ScalingCurve) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    efficiencies = [point.efficiency for point in curve.points]
    axes.axhline(1, **IDEAL)
    axes.plot([point.ranks for point in curve.points], efficiencies, **LINE)
    axes.set_ylim(0, 1.1 * max(1.0, *efficiencies))
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_ylabel("efficiency")
    return _over_ranks(figure, axes)


def _over_ranks(figure: Figure, axes: Axes) -> Figure:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("ranks")
    tidy(axes)
    legend_above(figure, axes.get_legend_handles_labels()[0])
    return figure


def _draw_shares(curve: ScalingCurve) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    positions = range(len(curve.points))
    bottom = np.zeros(len(curve.points))
    for name, style in PART_STYLES.items():
        shares = np.array([point.shares[name] for point in curve.points])
        if shares.any():
            axes.bar(positions, shares, bottom=bottom, label=name, width=0.8, **style)
        bottom = bottom + shares
    labels = [str(point.ranks) for point in curve.points]
    axes.set_xticks(list(positions), labels, rotation=90 if len(labels) > 8 else 0)
    axes.set_xlabel("ranks")
    axes.set_ylabel("share of the ranks' time")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PERCENT)
    tidy(axes, grid=False)
    legend_above(figure, axes.get_legend_handles_labels()[0])
    return figure
