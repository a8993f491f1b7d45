"""`hybridnn plan` and `hybridnn simulate`: layouts by their predicted costs, and simulated steps of one layout."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hybridnn.cli.options import Format, MachineFile, OutputFormat, OutputPicture, Overrides, PictureFile, count, option
from hybridnn.cli.output import (
    PICTURES,
    choose_format,
    make_console,
    new_table,
    print_drawing,
    write_json,
    write_result,
)
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import SettingError
from hybridnn.utils.text import counted, format_bytes, format_milliseconds, to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.config.settings import ParallelSettings
    from hybridnn.cost.machine import Machine
    from hybridnn.cost.plan import Plan
    from hybridnn.cost.prediction.predict import Prediction, ScalingCurve, ScalingPoint, SimulatedStep
    from hybridnn.drawing.drawing import Drawing
    from hybridnn.pipeline.layout import Layout

Facts = dict[str, Any]

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


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(help="A settings file; its section parallel is ignored.", metavar="CONFIG.toml"),
    ] = None,
    overrides: Overrides = None,
    ranks: Annotated[str | None, option("Ranks (default: the machine's). Several: a curve.", "N[,N...]")] = None,
    machine: MachineFile = None,
    top: Annotated[int, count("Layouts to list, of a single number of ranks.")] = 10,
    output_format: OutputFormat = "text",
    picture: Annotated[Path | None, option("Draw the curve, .svg, .png or .pdf (default: none).", "FILE")] = None,
) -> None:
    """Predict the fastest layouts of a number of ranks, or how the best of several numbers scale."""
    from hybridnn.config.settings import load_settings

    settings, numbers = load_settings(config, overrides or ()), _numbers_of_ranks(ranks)
    if picture is not None and len(numbers) < 2:
        raise SettingError("--picture", str(picture), "needs a curve: give several numbers of --ranks")

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    from hybridnn.cost.machine_file import require_machine
    from hybridnn.cost.plan import best_curve
    from hybridnn.cost.plan import plan as make_plan
    from hybridnn.runs.workload import fixed_constraints, workload_from_settings

    with first_rank_alone():
        cluster = require_machine(machine)
        workload, wanted = workload_from_settings(settings), fixed_constraints(settings)
        if len(numbers) > 1:
            _show_best(best_curve(workload, cluster, numbers, wanted), cluster, output_format, picture)
            return
        result = make_plan(workload, cluster, numbers[0] if numbers else cluster.ranks, top, wanted)
        facts = _plan_facts(result)
        if output_format == "json":
            write_json(facts)
        else:
            _print_plan(result, facts, settings.parallel)


def _numbers_of_ranks(text: str | None) -> list[int]:
    """The numbers of ``--ranks``, none where it is not given; `SettingError` unless they increase from 1."""
    items = [] if text is None else text.split(",")
    numbers = [int(item) if re.fullmatch(r" *[0-9]{1,12} *", item) else 0 for item in items]
    if any(number <= before for before, number in pairwise([0, *numbers])):
        raise SettingError("--ranks", text, "a whole number from 1, or several that increase, such as 1,2,4,8")
    return numbers


def _show_best(curve: ScalingCurve, machine: Machine, output_format: Format, picture: Path | None) -> None:
    """Draw a curve of the best layouts, and print it."""
    if picture is not None:
        from hybridnn.drawing.figures import figure_bytes, write_picture
        from hybridnn.drawing.run_pictures import draw_scaling

        for name, figure in draw_scaling(curve).items():
            path = picture if name == "speed_up" else picture.with_stem(f"{picture.stem}-{name}")
            write_picture(path, partial(figure_bytes, figure), "--picture")
    if output_format == "json":
        write_json({"machine": machine.name, **_curve_facts(curve, machine)})
    else:
        _print_curve(make_console(), curve, curve.points, machine)


def _plan_facts(plan: Plan) -> Facts:
    """All figures of a plan, named with their units."""
    from hybridnn.cost.plan import reason_sentence
    from hybridnn.cost.prediction.memory import data_bytes

    return {
        "machine": plan.machine.name,
        **_quality_facts(plan.machine),
        "ranks": plan.ranks,
        "layouts": plan.layouts,
        "memory_bytes_per_rank": plan.machine.memory_bytes_per_rank,
        "data_bytes_per_node": data_bytes(plan.workload),
        "options": [_option_facts(option, plan) for option in plan.options],
        "why": None if plan.best_exact is None else reason_sentence(plan.best_exact, plan.runner_up),
    }


def _keys(option: Prediction) -> Facts:
    from hybridnn.config.settings import keys_of_layout

    return {key: value for key, value in keys_of_layout(option.layout).items() if value is not None}


def _option_facts(option: Prediction, plan: Plan) -> Facts:
    return {
        "layout": option.layout.describe(),
        "parallel": _keys(option),
        "staleness": option.layout.describe_staleness(),
        "best": option == plan.best,
        "best_exact": option == plan.best_exact,
        "seconds_per_step": option.seconds_per_step,
        "seconds_per_epoch": option.seconds_per_epoch,
        **_parts(asdict(option.breakdown)),
        "bytes_per_step": option.bytes_per_step,
        "memory_bytes": option.memory_bytes,
    }


def _print_plan(plan: Plan, facts: Facts, parallel: ParallelSettings) -> None:
    """Print a plan as text; `parallel` are the user's settings: only other values have to be set to use a layout."""
    console = make_console()
    machine, workload = plan.machine, plan.workload
    console.print(
        f"{plan.ranks:,} ranks on {machine.name}, {workload.model.parameters:,} parameters, "
        f"batch {workload.batch_size:,}: {plan.layouts:,} layouts"
    )
    print_machine(console, machine, plan.ranks)
    console.print(_table(plan, facts["options"]))
    memory, samples = format_bytes(facts["memory_bytes_per_rank"]), format_bytes(facts["data_bytes_per_node"])
    console.print(
        "times and bytes of a step; memory is that of the fullest rank, "
        f"and a rank has {memory}; samples take {samples} a node"
    )
    if facts["why"] is not None:
        console.print(facts["why"], soft_wrap=True)
    chosen = {"best exact": plan.best_exact, "best": plan.best if plan.best != plan.best_exact else None}
    for name, found in chosen.items():
        if found is not None:
            console.print(f"to use the {name}: {_set_options(found, parallel)}", soft_wrap=True)


def _table(plan: Plan, facts: Sequence[Facts]) -> Table:
    """Two lines for each layout; times of a step in one unit, so that they can be compared."""
    unit, factor = ("ms", 1e3) if plan.best.seconds_per_step >= 1e-4 else ("µs", 1e6)
    titles = (f"step\n{unit}", "epoch\ns", "compu-\nting", "comm.", "hidden", "bubble", "over-\nhead", "sent", "memory")
    table = new_table(("pipeline x batch x model\nmethod / microbatches",), titles, show_edge=False, padding=0)
    for found, figures in zip(plan.options, facts, strict=True):
        mean = found.breakdown
        seconds = (mean.computing, mean.communication, mean.communication_hidden, mean.bubble, mean.overhead)
        table.add_row(
            _two_lines(found, figures),
            _digits(found.seconds_per_step * factor),
            _digits(found.seconds_per_epoch),
            *(_digits(value * factor) for value in seconds),
            format_bytes(found.bytes_per_step),
            format_bytes(found.memory_bytes),
            style="bold" if figures["best"] or figures["best_exact"] else None,
        )
    return table


def _two_lines(option: Prediction, facts: Facts) -> str:
    """Grid, split and overlap; method and staleness."""
    layout = option.layout
    batch, model = layout.stages[0]
    grid = f"{len(layout.stages)} x {batch} x {model}"
    first = " ".join([grid, *([layout.model_split] if model > 1 else [])]) + ("" if layout.overlap else ", no overlap")
    second = []
    if len(layout.stages) > 1:
        second.append(layout.method + (f" / {layout.microbatches}" if layout.microbatches > 1 else ""))
    staleness = facts["staleness"].replace("by up to", "≤").removesuffix(" updates").removesuffix(" update")
    second.append("best exact" if facts["best_exact"] else staleness)
    if facts["best"]:
        second.append("best")
    return f"{first}\n{', '.join(second)}"


def _set_options(option: Prediction, parallel: ParallelSettings) -> str:
    """Options of `hybridnn train` that choose a layout."""
    present = json.loads(to_json(parallel.model_dump()))
    changes = [f"--set parallel.{key}={_toml(value)}" for key, value in _keys(option).items() if value != present[key]]
    if parallel.stages:
        changes.insert(0, "--set parallel.stages=[]")
    return " ".join(changes) or "the settings as they are"


def _toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _digits(value: float) -> str:
    """Three or four digits in at most six characters, up to ten days in seconds."""
    for limit, decimals in ((10, 3), (100, 2), (1000, 1)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def print_machine(console: Console, machine: Machine, ranks: int, fewest: int | None = None) -> None:
    """Print the quality of a machine file, and warnings where it does not describe what is predicted.

    It may be for fewer than `ranks` ranks, or for more busy ranks of a node than the `fewest` ranks have (by default
    `ranks`).
    """
    if machine.quality is not None:
        console.print(f"machine file: {machine.quality.summary}", soft_wrap=True)
    if ranks > machine.ranks:
        console.print(f"The machine is made for {machine.ranks:,} ranks: more of them take turns.")
    busy, least = min(fewest or ranks, machine.ranks_per_node), min(entry.busy_ranks for entry in machine.compute)
    if busy < least:
        console.print(
            f"Computing costs are those of {least} busy ranks of a node: {busy} have more memory bandwidth and cache, "
            "and are faster than predicted.",
            soft_wrap=True,
        )


# -- simulate ----------------------------------------------------------------------------------------------------------


def simulate(
    config: Annotated[Path, typer.Argument(help="A settings file of `hybridnn train`.", metavar="CONFIG.toml")],
    ranks: Annotated[int, count("Ranks of the job; without parallel.batch they fill it.")],
    machine: MachineFile = None,
    overrides: Overrides = None,
    curve: Annotated[
        Literal["strong", "weak"] | None,
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
        from hybridnn.cost.plan import faster_points
        from hybridnn.cost.prediction.predict import scaling_curve, simulate_layout
        from hybridnn.drawing.run_pictures import draw_scaling, draw_simulation
        from hybridnn.runs.workload import fixed_constraints, layout_from_settings, workload_from_settings

        workload = workload_from_settings(settings)
        layout = layout_from_settings(settings, ranks, workload.model, cluster)
        if cluster.doubt and picture in PICTURES:
            print(f"Warning: {cluster.doubt}", file=sys.stderr)
        if curve is not None:
            scaling = scaling_curve(workload, layout, cluster, curve)
            faster = faster_points(scaling, workload, cluster, fixed_constraints(settings))
            write_result(
                picture,
                out,
                lambda console: _print_curve(console, scaling, faster, cluster),
                lambda: _curve_facts(scaling, cluster, faster=faster),
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
    return f"{counted(layout.ranks, 'rank')} of {machine.name}: {layout.describe()}"


def _print_step(console: Console, step: SimulatedStep, machine: Machine, drawing: Drawing) -> None:
    """Print the drawing, the time of a step, and its parts on every stage."""
    print_drawing(console, drawing)
    console.print()
    console.print(_layout_text(step.layout, machine))
    print_machine(console, machine, step.layout.ranks)
    _print_idle(console, {step.layout: step.workload.batch_size})
    per_step = step.seconds_per_step
    rate = f"{step.workload.batch_size / per_step:,.0f} samples/s" if per_step else ""
    rate += "; the epoch with its drain" * (not step.layout.exact)
    console.print(f"{format_milliseconds(per_step)} ms per step, {step.seconds_per_epoch:.4g} s per epoch, {rate}")
    console.print(_stage_table(step))
    console.print(EXPLANATION)


def _step_facts(step: SimulatedStep, machine: Machine, drawing: Drawing) -> Facts:
    """The figures of a simulation and its drawing, with stages, minibatches and microbatches from 0."""
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
        "mean_of_ranks": _parts(step.mean_activities()),
        "stages": [
            {"stage": stage, "batch": batch, "model": model, **_parts(parts)}
            for stage, ((batch, model), parts) in enumerate(zip(layout.stages, step.stage_activities(), strict=True))
        ],
        "instruction_seconds_per_step": step.instructions,
        "drawing": {
            "title": drawing.title,
            "unit": drawing.unit,
            "rows": [{"label": row.label, "boxes": [vars(box) for box in row.boxes]} for row in drawing.rows],
        },
    }


def _print_curve(console: Console, curve: ScalingCurve, layouts: Sequence[ScalingPoint], machine: Machine) -> None:
    """Print a curve, and the layouts that are named below it."""
    points, minibatch = curve.points, "a minibatch that grows with them" if curve.kind == "weak" else "one minibatch"
    title = "the best exact layouts" if curve.kind == "best" else f"{curve.kind} scaling of one layout by more replicas"
    console.print(f"{title}, {minibatch}, up to {_layout_text(points[-1].layout, machine)}", soft_wrap=True)
    print_machine(console, machine, points[-1].ranks, points[0].ranks)
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
        for point in points
    ]
    titles = ("ranks", "mini-\nbatch", "ms per\nstep", "samples\nper s", "speed-\nup", "effi-\nciency")
    lost = ("smaller\nproducts", "over-\nhead", "comm.", "bubble", "wait")
    console.print(new_table((), (*titles, *lost), rows))
    _print_idle(console, {point.layout: point.batch_size for point in points})
    if any(point.efficiency > SUPERLINEAR for point in points):
        console.print(ABOVE_IDEAL, soft_wrap=True)
    if layouts:
        named = "layouts" if curve.kind == "best" else "faster by more than the errors of both (hybridnn plan)"
        errors = "" if machine.doubt else " (its range by the errors of two predictions)"
        console.print(f"{named}: speed-up{errors}, ms per step")
    for point in layouts:
        errors = "" if machine.doubt else f" ({point.low:.4g} to {point.high:.4g})"
        times = f"{point.speed_up:.4g}{errors}, {format_milliseconds(point.seconds_per_step)} ms"
        console.print(f"{counted(point.ranks, 'rank'):>12}: {times}: {point.layout.describe()}", soft_wrap=True)


def _curve_facts(curve: ScalingCurve, machine: Machine, **others: Sequence[ScalingPoint]) -> Facts:
    lists = {"points": curve.points, **others}.items()
    facts = {name: [{**vars(it), "layout": it.layout.describe()} for it in points] for name, points in lists}
    return {**_quality_facts(machine), "kind": curve.kind, **facts}


def _print_idle(console: Console, batch_sizes: Mapping[Layout, int]) -> None:
    """Print the numbers of ranks with which some batch ranks have no samples of a microbatch."""
    idle = [
        str(layout.ranks)
        for layout, size in batch_sizes.items()
        if size < layout.microbatches * max(batch for batch, _ in layout.stages)
    ]
    if idle:
        console.print(f"more batch ranks than samples of a microbatch, so that some have none: {', '.join(idle)} ranks")


def _quality_facts(machine: Machine) -> Facts:
    return {"quality": None if machine.quality is None else machine.quality.summary}


def _parts(activities: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}_seconds_per_step": seconds for name, seconds in activities.items()}


def _stage_table(step: SimulatedStep) -> Table:
    from hybridnn.drawing.run_pictures import stages_shown

    stages, shown = step.stage_activities(), stages_shown(len(step.stages))
    rows = []
    for stage in shown:
        if stage and stage - 1 not in shown:
            rows.append(["...", *[""] * 5])
        rows.append([str(stage), *_cells(stages[stage], step.seconds_per_step)])
    mean = step.mean_activities()
    footers = ("mean", *_cells(mean, step.seconds_per_step))
    return new_table((), ("ms per step\nstage", *mean), rows, footers=footers)


def _cells(activities: Mapping[str, float], total: float) -> list[str]:
    return [f"{format_milliseconds(part)} {part / total if total else 0.0:6.1%}" for part in activities.values()]
