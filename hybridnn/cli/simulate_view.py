"""What a user sees of a simulation: the timeline, where the time goes, a scaling curve; or the facts for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hybridnn.cli.output import print_machine
from hybridnn.cli.pictures import PictureFormat, print_drawing, write_file, write_picture, write_text
from hybridnn.cost.simulation.timeline import draw_simulation, stages_shown
from hybridnn.utils.text import counted, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from hybridnn.cost.machine.machine import Machine
    from hybridnn.cost.prediction.workload import Layout
    from hybridnn.cost.simulation.disturbance import Disturbance
    from hybridnn.cost.simulation.scaling import ScalingCurve
    from hybridnn.cost.simulation.simulate_layout import SimulatedStep, StageSeconds


MILLISECONDS = 1e3

SUPERLINEAR = 1.005
"""Efficiency that is printed as more than 100 %."""

ABOVE_IDEAL = (
    "above 100%: what one rank reads and writes in a step does not fit its cache; with more ranks each reads and "
    "writes less, and more of it fits"
)

EXPLANATION = """\
computing      passes, loss and update, with loading, copying and Python
communication  collectives that are waited for, and what of messages cannot be hidden
bubble         waiting for other stages, their messages, and slower ranks"""


def simulated_layout(layout: Layout, machine: Machine) -> str:
    """A layout and its machine in a line."""
    widths = sorted(set(layout.stages))
    grid = " + ".join(f"{batch} x {model}" for batch, model in (widths if len(widths) == 1 else layout.stages))
    stages = len(layout.stages)
    pipeline = f"{layout.method} over {stages} stages of " if stages > 1 else ""
    cut = f", {layout.microbatches} microbatches" if layout.microbatches > 1 else ""
    return f"{counted(layout.ranks, 'rank')} of {machine.name}: {pipeline}{grid} (batch x model){cut}"


def write_step(
    step: SimulatedStep,
    calm: SimulatedStep,
    machine: Machine,
    disturbance: Disturbance,
    picture: PictureFormat,
    out: Path | None,
) -> None:
    """Write a simulated step to a file, or print it; `calm` is the same without disturbance, or `step` itself."""
    if picture is PictureFormat.text:
        write_text(lambda console: _print_step(console, step, calm, machine), out)
    elif picture is PictureFormat.json:
        write_file(to_json(_step_facts(step, calm, machine, disturbance), indent=2) + "\n", out)
    else:
        write_picture(draw_simulation(step), picture, out)


def write_curve(
    curve: ScalingCurve, layout: Layout, machine: Machine, picture: PictureFormat, out: Path | None
) -> None:
    """Write a scaling curve to a file, or print it."""
    if picture is PictureFormat.text:
        write_text(lambda console: _print_curve(console, curve, layout, machine), out)
    elif picture is PictureFormat.json:
        write_file(to_json(_quality_facts(machine) | _curve_facts(curve), indent=2) + "\n", out)
    else:
        from hybridnn.cost.simulation.scaling_plot import scaling_png

        write_file(scaling_png(curve, simulated_layout(layout, machine)), out)


def _print_step(console: Console, step: SimulatedStep, calm: SimulatedStep, machine: Machine) -> None:
    """Print the drawing, the time of a step, and where it goes on every stage.

    Parameters
    ----------
    step : SimulatedStep
    calm : SimulatedStep
        The same without disturbance; `step` itself where there is none.
    machine : Machine
    """
    print_drawing(console, draw_simulation(step))
    console.print()
    console.print(simulated_layout(step.layout, machine))
    print_machine(console, machine, step.layout.ranks)
    _print_idle(console, step.layout, {step.layout.ranks: step.workload.batch_size})
    per_step = step.seconds_per_step
    rate = f"{step.workload.batch_size / per_step:,.0f} samples/s" if per_step else ""
    console.print(f"{per_step * MILLISECONDS:.4g} ms per step, {step.seconds_per_epoch:.4g} s per epoch, {rate}")
    if step is not calm:
        slower = per_step / calm.seconds_per_step - 1
        console.print(f"without jitter and slow ranks {calm.seconds_per_step * MILLISECONDS:.4g} ms ({slower:+.1%})")
    console.print(_stage_table(step))
    console.print(EXPLANATION)


def _step_facts(step: SimulatedStep, calm: SimulatedStep, machine: Machine, disturbance: Disturbance) -> dict[str, Any]:
    """The figures of a simulation and its drawing, with stages, minibatches and microbatches from 0."""
    layout, drawing = step.layout, draw_simulation(step)
    return {
        "machine": machine.name,
        **_quality_facts(machine),
        "ranks": layout.ranks,
        "method": layout.method,
        "batch_size": step.workload.batch_size,
        "minibatches": step.minibatches,
        "microbatches": layout.microbatches,
        "chunks": layout.chunks,
        "jitter": disturbance.jitter,
        "slow": [{"rank": rank, "factor": factor} for rank, factor in disturbance.slow.items()],
        "seed": disturbance.seed,
        "seconds": step.seconds,
        "seconds_per_step": step.seconds_per_step,
        "undisturbed_seconds_per_step": calm.seconds_per_step,
        "seconds_per_epoch": step.seconds_per_epoch,
        "mean_of_ranks": _parts(step.mean()),
        "stages": [
            {"stage": stage, "batch": batch, "model": model, **_parts(parts)}
            for stage, ((batch, model), parts) in enumerate(zip(layout.stages, step.stages, strict=True))
        ],
        "instruction_seconds_per_step": step.instructions,
        "drawing": {
            "title": drawing.title,
            "unit": drawing.unit,
            "rows": [{"label": row.label, "boxes": [vars(box) for box in row.boxes]} for row in drawing.rows],
        },
    }


def _print_curve(console: Console, curve: ScalingCurve, layout: Layout, machine: Machine) -> None:
    """Print a scaling curve as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    minibatch = "the same minibatch" if curve.kind == "strong" else "a minibatch that grows with the replicas"
    console.print(f"{curve.kind} scaling, {minibatch}, up to {simulated_layout(layout, machine)}")
    print_machine(console, machine, layout.ranks)
    table = Table(box=SIMPLE_HEAD)
    for name in ("ranks", "minibatch", "ms per\nstep", "samples\nper s", "speed-up", "efficiency", "comm.", "bubble"):
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    for point in curve.points:
        table.add_row(
            str(point.ranks),
            str(point.batch_size),
            f"{point.seconds_per_step * MILLISECONDS:.4g}",
            f"{point.batch_size / point.seconds_per_step:,.0f}",
            f"{point.speed_up:.4g}",
            f"{point.efficiency:.1%}",
            f"{point.communication_share:.1%}",
            f"{point.bubble_share:.1%}",
        )
    console.print(table)
    _print_idle(console, layout, {point.ranks: point.batch_size for point in curve.points[1:]})
    if any(point.efficiency > SUPERLINEAR for point in curve.points):
        console.print(ABOVE_IDEAL, soft_wrap=True)


def _print_idle(console: Console, layout: Layout, batch_sizes: Mapping[int, int]) -> None:
    """Print for which numbers of ranks some batch ranks have no samples of a microbatch."""
    widest = max(batch for batch, _ in layout.stages)
    idle = [
        str(ranks) for ranks, size in batch_sizes.items() if size < layout.microbatches * widest * ranks // layout.ranks
    ]
    if idle:
        console.print(f"more batch ranks than samples of a microbatch, so that some have none: {', '.join(idle)} ranks")


def _quality_facts(machine: Machine) -> dict[str, Any]:
    return {"quality": None if machine.quality is None else machine.quality.line}


def _curve_facts(curve: ScalingCurve) -> dict[str, Any]:
    """The figures of a scaling curve."""
    return {
        "kind": curve.kind,
        "points": [asdict(point) for point in curve.points],
    }


def _parts(parts: StageSeconds) -> dict[str, float]:
    return {f"{name}_seconds_per_step": seconds for name, seconds in asdict(parts).items()}


def _stage_table(step: SimulatedStep) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_footer=True)
    shown = stages_shown(len(step.stages))
    names = ("computing", "communication", "bubble")
    cells = [_cells(parts, step.seconds_per_step) for parts in (*(step.stages[stage] for stage in shown), step.mean())]
    table.add_column("ms per step\nstage", "mean", justify="right", vertical="bottom", no_wrap=True)
    for name, footer in zip(names, cells.pop(), strict=True):
        table.add_column(name, footer, justify="right", vertical="bottom", no_wrap=True)
    for stage, row in zip(shown, cells, strict=True):
        if stage and stage - 1 not in shown:
            table.add_row("...", "", "", "")
        table.add_row(str(stage), *row)
    return table


def _cells(parts: StageSeconds, whole: float) -> list[str]:
    return [
        f"{seconds * MILLISECONDS:.4g} {seconds / whole if whole else 0.0:6.1%}" for seconds in asdict(parts).values()
    ]
