"""What a user sees of a schedule: the drawing and its figures, or the facts that become JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hybridnn.cli.output import make_console
from hybridnn.cli.pictures import print_drawing
from hybridnn.pipeline.checks.simulate import Durations, TimedInstruction, Timeline
from hybridnn.pipeline.checks.staleness import StalenessRow, audit
from hybridnn.pipeline.drawing.drawing import draw_timeline
from hybridnn.pipeline.schedules.methods import METHODS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.pipeline.schedules.schedule import Schedule
    from hybridnn.pipeline.schedules.weight_policies import WeightRead


FEW_MINIBATCHES = 12
"""Rows of the table of weight versions, unless there are more stages or all are asked for."""

LINT_VERDICT = "lint: ok; no deadlock, even if every send waits until it is received"


def print_methods() -> None:
    """List the pipeline methods, a line each."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    for method in METHODS.values():
        table.add_row(method.name, method.summary)
    make_console(sys.stdout).print(table)


def print_report(console: Console, timeline: Timeline, durations: Durations, *, all_versions: bool) -> None:
    """Print the drawing, the figures per stage, the linter's verdict, and the weight versions.

    Parameters
    ----------
    all_versions : bool
        Print the versions of every minibatch and for any method, not only of the first few of a method with stale
        weights.
    """
    print_drawing(console, draw_timeline(timeline))
    console.print()
    console.print(
        f"durations: forward {durations.forward:g}, backward {durations.backward:g} "
        f"(weight gradients {durations.weight:g} of it), message {durations.message:g}"
    )
    console.print(f"makespan {timeline.makespan:.6g}, bubble fraction {timeline.bubble_fraction:.2%}")
    console.print(_stage_table(timeline))
    console.print(LINT_VERDICT)
    rows = audit(timeline.schedule)
    if all_versions or any(row.staleness or not row.consistent for row in rows):
        console.print()
        _print_versions(console, timeline.schedule, rows, all_versions=all_versions)


def schedule_facts(timeline: Timeline, durations: Durations) -> dict[str, Any]:
    """Everything about a simulated schedule, with minibatches, microbatches, stages and chunks from 0."""
    schedule = timeline.schedule
    stages = range(schedule.stages)
    return {
        "method": schedule.method,
        "minibatches": schedule.minibatches,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        "weight_policy": schedule.policy.name,
        "durations": {
            "forward": durations.forward,
            "backward": durations.backward,
            "weight": durations.weight,
            "message": durations.message,
        },
        "stages": [
            {"stage": stage, "instructions": [_instruction_facts(item) for item in timeline.stages[stage]]}
            for stage in stages
        ],
        "staleness": [_staleness_facts(row) for row in audit(schedule)],
        "summary": {
            "makespan": timeline.makespan,
            "bubble_fraction": timeline.bubble_fraction,
            "stages": [
                {
                    "stage": stage,
                    "peak_live_activations": timeline.peak_live_activations[stage],
                    "peak_live_inputs": timeline.peak_live_inputs[stage],
                    "peak_weight_versions": timeline.peak_weight_versions[stage],
                    "busy": timeline.busy[stage],
                }
                for stage in stages
            ],
        },
    }


def _instruction_facts(item: TimedInstruction) -> dict[str, Any]:
    instruction = item.instruction
    return {
        "instruction": instruction.name,
        "minibatch": instruction.minibatch,
        "microbatch": instruction.microbatch,
        "chunk": instruction.chunk,
        "version": None if item.read is None else item.read.version,
        "ahead": None if item.read is None else item.read.ahead,
        "start": item.start,
        "end": item.end,
    }


def _staleness_facts(row: StalenessRow) -> dict[str, Any]:
    return {
        "stage": row.stage,
        "minibatch": row.minibatch,
        "forward": row.forward._asdict(),
        "backward": row.backward._asdict(),
        "applied_at": row.applied_at,
        "staleness": row.staleness,
        "consistent": row.consistent,
    }


def _stage_table(timeline: Timeline) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    titles = ("stage", "peak live\nactivations", "peak live\ninputs", "peak weight\nversions", "busy", "idle")
    for title in titles:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for stage, busy in enumerate(timeline.busy):
        figures = (timeline.peak_live_activations, timeline.peak_live_inputs, timeline.peak_weight_versions)
        idle = 1 - busy / timeline.makespan if timeline.makespan else 0.0
        table.add_row(str(stage), *(str(figure[stage]) for figure in figures), f"{busy:.6g}", f"{idle:.1%}")
    return table


def _print_versions(
    console: Console, schedule: Schedule, rows: tuple[StalenessRow, ...], *, all_versions: bool
) -> None:
    """Print as much of the table of weight versions as fits, and what it says as a whole."""
    cells = {(row.minibatch, row.stage): f"{_read(row.forward)}/{_read(row.backward)}" for row in rows}
    # A column has a blank on either side and one between it and the next.
    column = 3 + max(len(f"stage {schedule.stages - 1}"), *(len(cell) for cell in cells.values()))
    stages = min(schedule.stages, max(1, (console.width - len("  minibatch  ")) // column))
    most = schedule.minibatches if all_versions else max(FEW_MINIBATCHES, schedule.stages + 2)
    minibatches = min(schedule.minibatches, most)
    staleness = [max(row.staleness for row in rows if row.stage == stage) for stage in range(stages)]
    console.print(
        "weights read, forward/backward: the updates that the stage had done, +s if predicted s updates ahead"
    )
    console.print(_version_table(cells, staleness, minibatches))
    if (minibatches, stages) != (schedule.minibatches, schedule.stages):
        console.print(
            f"shown: {stages} of {schedule.stages} stages and {minibatches} of {schedule.minibatches} minibatches; "
            "--format json has all"
        )
    console.print(f"forward and backward pass use the same weights: {_consistency(schedule, rows)}")


def _version_table(cells: dict[tuple[int, int], str], staleness: list[int], minibatches: int) -> Table:
    """Make a row per minibatch, a column per stage, and below each stage's largest staleness."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_footer=True)
    table.add_column("minibatch", "staleness", justify="right", no_wrap=True)
    for stage, most in enumerate(staleness):
        table.add_column(f"stage {stage}", str(most), justify="right", no_wrap=True)
    for minibatch in range(minibatches):
        table.add_row(str(minibatch + 1), *(cells[minibatch, stage] for stage in range(len(staleness))))
    return table


def _consistency(schedule: Schedule, rows: tuple[StalenessRow, ...]) -> str:
    """Say from which minibatch on, counted from 1, both passes use or predict one version at every stage."""
    last_inconsistent = max((row.minibatch for row in rows if not row.consistent), default=-1)
    if last_inconsistent < 0:
        return "yes"
    if last_inconsistent == schedule.minibatches - 1:
        return "no"
    return f"from minibatch {last_inconsistent + 2} on"


def _read(weights: WeightRead) -> str:
    return f"{weights.version}+{weights.ahead}" if weights.ahead else str(weights.version)
