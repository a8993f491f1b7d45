"""`hybridnn simulate`: simulated training steps of a layout on a machine, and scaling curves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import MachineFile, OutputPicture, Overrides, PictureFile, count
from hybridnn.cli.output import (
    PICTURES,
    choose_format,
    new_table,
    print_drawing,
    print_machine,
    write_result,
)
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.utils.text import format_milliseconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.cost.machine import Machine
    from hybridnn.cost.prediction.predict import ScalingCurve, SimulatedStep
    from hybridnn.drawing.drawing import Drawing
    from hybridnn.pipeline.layout import Layout


SUPERLINEAR = 1.005  # efficiency that is printed as more than 100 %

ABOVE_IDEAL = (
    "above 100%: what one rank reads and writes in a step does not fit its cache; with more ranks each reads and "
    "writes less, and more of it fits"
)

EXPLANATION = """\
overhead     loading, copying and Python
communicate  collectives that are waited for, and what of messages cannot be hidden
bubble       idle time that the schedule itself costs
wait         for messages and slower stages"""


class ScalingKind(str, Enum):
    """Kinds of scaling curves."""

    strong = "strong"
    weak = "weak"


def simulate(
    config: Annotated[Path, typer.Argument(help="A settings file of `hybridnn train`.", metavar="CONFIG.toml")],
    ranks: Annotated[int, count("Ranks of the job; without parallel.batch they fill it.")],
    machine: MachineFile = None,
    overrides: Overrides = None,
    curve: Annotated[
        ScalingKind | None,
        typer.Option(
            help="Simulate 1, 2, 4, ... replicas up to --ranks: strong keeps the minibatch, weak lets it grow "
            "(default: only --ranks). Pictures need --out: speed-up in FILE, efficiency and breakdown beside it."
        ),
    ] = None,
    output_format: OutputPicture = None,
    out: PictureFile = None,
) -> None:
    """Simulate training steps of a layout on a machine: the timeline, where the time goes, and how it scales."""
    picture = choose_format(output_format, out)
    with first_rank_alone():
        from hybridnn.config.settings import load_settings
        from hybridnn.cost.machine_file import require_machine

        settings, cluster = load_settings(config, overrides or ()), require_machine(machine)

        # Only now, so that a wrong setting is reported without waiting for the rest to load.
        from hybridnn.cost.prediction.predict import scaling_curve, simulate_layout
        from hybridnn.drawing.simulation_picture import draw_simulation
        from hybridnn.runs.workload import layout_from_settings, workload_from_settings

        workload = workload_from_settings(settings)
        layout = layout_from_settings(settings, ranks, workload.model, cluster)
        if cluster.doubt and picture in PICTURES:
            print(f"Warning: {cluster.doubt}", file=sys.stderr)
        if curve is not None:
            from hybridnn.drawing.simulation_picture import draw_scaling

            scaling = scaling_curve(workload, layout, cluster, curve.value)
            write_result(
                picture,
                out,
                lambda console: _print_curve(console, scaling, layout, cluster),
                lambda: {**_quality_facts(cluster), **asdict(scaling)},
                lambda: draw_scaling(scaling),
            )
            return
        step = simulate_layout(workload, layout, cluster)
        drawing = draw_simulation(step)
        if cluster.doubt:
            drawing = replace(drawing, title=f"{drawing.title}, by a doubtful machine file")
        write_result(
            picture,
            out,
            lambda console: _print_step(console, step, cluster, drawing),
            lambda: _step_facts(step, cluster, drawing),
            lambda: drawing,
        )


def _layout_text(layout: Layout, machine: Machine) -> str:
    """A layout and its machine as one line."""
    from hybridnn.utils.text import counted

    return f"{counted(layout.ranks, 'rank')} of {machine.name}: {layout.describe()}"


def _print_step(console: Console, step: SimulatedStep, machine: Machine, drawing: Drawing) -> None:
    """Print the drawing, the time of a step, and its parts on every stage."""
    print_drawing(console, drawing)
    console.print()
    console.print(_layout_text(step.layout, machine))
    print_machine(console, machine, step.layout.ranks)
    _print_idle(console, step.layout, {step.layout.ranks: step.workload.batch_size})
    per_step = step.seconds_per_step
    rate = f"{step.workload.batch_size / per_step:,.0f} samples/s" if per_step else ""
    console.print(f"{format_milliseconds(per_step)} ms per step, {step.seconds_per_epoch:.4g} s per epoch, {rate}")
    console.print(_stage_table(step))
    console.print(EXPLANATION)


def _step_facts(step: SimulatedStep, machine: Machine, drawing: Drawing) -> dict[str, Any]:
    """The figures of a simulation and its drawing, with stages, minibatches and microbatches from 0."""
    from hybridnn.cost.prediction.predict import mean_activities, stage_activities

    layout = step.layout
    return {
        "machine": machine.name,
        **_quality_facts(machine),
        "ranks": layout.ranks,
        "method": layout.method,
        "batch_size": step.workload.batch_size,
        "minibatches": step.minibatches,
        "microbatches": layout.microbatches,
        "chunks": layout.chunks,
        "seconds": step.seconds,
        "seconds_per_step": step.seconds_per_step,
        "seconds_per_epoch": step.seconds_per_epoch,
        "mean_of_ranks": _parts(mean_activities(step)),
        "stages": [
            {"stage": stage, "batch": batch, "model": model, **_parts(parts)}
            for stage, ((batch, model), parts) in enumerate(zip(layout.stages, stage_activities(step), strict=True))
        ],
        "instruction_seconds_per_step": step.instructions,
        "drawing": {
            "title": drawing.title,
            "unit": drawing.unit,
            "rows": [{"label": row.label, "boxes": [vars(box) for box in row.boxes]} for row in drawing.rows],
        },
    }


def _print_curve(console: Console, curve: ScalingCurve, layout: Layout, machine: Machine) -> None:
    minibatch = "the same minibatch" if curve.kind == "strong" else "a minibatch that grows with the replicas"
    console.print(f"{curve.kind} scaling, {minibatch}, up to {_layout_text(layout, machine)}")
    print_machine(console, machine, layout.ranks, curve.points[0].ranks)
    rows = [
        (
            str(point.ranks),
            str(point.batch_size),
            format_milliseconds(point.seconds_per_step),
            f"{point.batch_size / point.seconds_per_step:,.0f}",
            f"{point.speed_up:.4g}",
            f"{point.efficiency:.1%}",
            *(f"{share:.1%}" for name, share in point.shares.items() if name != "compute"),
        )
        for point in curve.points
    ]
    titles = ("ranks", "mini-\nbatch", "ms per\nstep", "samples\nper s", "speed-\nup", "effi-\nciency")
    lost = ("smaller\nproducts", "over-\nhead", "comm.", "bubble", "wait")
    console.print(new_table((), (*titles, *lost), rows))
    _print_idle(console, layout, {point.ranks: point.batch_size for point in curve.points[1:]})
    if any(point.efficiency > SUPERLINEAR for point in curve.points):
        console.print(ABOVE_IDEAL, soft_wrap=True)


def _print_idle(console: Console, layout: Layout, batch_sizes: Mapping[int, int]) -> None:
    """Print the numbers of ranks with which some batch ranks have no samples of a microbatch."""
    widest = max(batch for batch, _ in layout.stages)
    idle = [
        str(ranks) for ranks, size in batch_sizes.items() if size < layout.microbatches * widest * ranks // layout.ranks
    ]
    if idle:
        console.print(f"more batch ranks than samples of a microbatch, so that some have none: {', '.join(idle)} ranks")


def _quality_facts(machine: Machine) -> dict[str, Any]:
    return {"quality": None if machine.quality is None else machine.quality.summary}


def _parts(activities: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}_seconds_per_step": seconds for name, seconds in activities.items()}


def _stage_table(step: SimulatedStep) -> Table:
    from hybridnn.cost.prediction.predict import mean_activities, stage_activities
    from hybridnn.drawing.simulation_picture import stages_shown

    stages, shown = stage_activities(step), stages_shown(len(step.stages))
    rows = []
    for stage in shown:
        if stage and stage - 1 not in shown:
            rows.append(["...", *[""] * 5])
        rows.append([str(stage), *_cells(stages[stage], step.seconds_per_step)])
    mean = mean_activities(step)
    footers = ("mean", *_cells(mean, step.seconds_per_step))
    return new_table((), ("ms per step\nstage", *mean), rows, footers=footers)


def _cells(activities: Mapping[str, float], total: float) -> list[str]:
    seconds = activities.values()
    return [f"{format_milliseconds(part)} {part / total if total else 0.0:6.1%}" for part in seconds]
