"""`hybridnn schedule`: drawing, figures and weight versions of a pipeline schedule."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import MachineFile, OutputPicture, count, method_names, option
from hybridnn.cli.output import (
    PICTURES,
    choose_format,
    make_console,
    new_grid,
    new_table,
    print_drawing,
    require_width,
    write_file,
    write_result,
)
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from hybridnn.pipeline.checks.lint import StalenessRow
    from hybridnn.pipeline.checks.simulated_schedule import Durations, TimedInstruction, Timeline
    from hybridnn.pipeline.schedules.schedule import Schedule
    from hybridnn.pipeline.schedules.weight_policies import WeightRead


FEW_MINIBATCHES = 12  # rows of the table of weight versions, unless there are more stages or the user chose all

PEAKS = ("peak_live_activations", "peak_live_inputs", "peak_weight_versions")
"""What a stage stores at most, by the names of a memory plan."""

LINT_VERDICT = "lint: ok; no deadlock, even if every send waits until it is received"


def schedule(
    method: Annotated[
        str | None,
        typer.Argument(
            help="A pipeline method, or a .json file with a schedule of your own (default: methods are listed). With "
            "--compare and --machine a settings file with the network.",
            metavar="METHOD",
            autocompletion=method_names,
        ),
    ] = None,
    stages: Annotated[int, count("Ranks along the pipeline.")] = 4,
    minibatches: Annotated[
        int | None,
        count("Minibatches of the schedule; by default 1 if the method splits them, else twice the stages."),
    ] = None,
    microbatches: Annotated[
        int | None,
        count("Microbatches of a minibatch; by default twice the stages, and 1 for methods without microbatches."),
    ] = None,
    chunks: Annotated[int | None, count("Chunks of layers per stage; by default the method's fewest, 1 or 2.")] = None,
    forward: Annotated[float, option("Duration of a stage's forward pass.", "TIME", least=0.0)] = 1.0,
    backward: Annotated[float, option("Duration of its whole backward pass.", "TIME", least=0.0)] = 2.0,
    weight: Annotated[
        float | None, option("Duration of the weight gradients within it; by default half.", "TIME", least=0.0)
    ] = None,
    message: Annotated[float, option("Duration of a message between two stages.", "TIME", least=0.0)] = 0.0,
    in_flight: Annotated[
        int | None, count("Most microbatches in flight on a stage, with searched (default: all).")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare all exact methods in a table.")] = False,
    machine: MachineFile = None,
    barriers: Annotated[
        bool, typer.Option("--barriers", help="Put barriers before each forward and each backward pass of ddg and fr.")
    ] = False,
    messages: Annotated[bool, typer.Option("--messages", help="Draw an arrow for each message, in a picture.")] = False,
    versions: Annotated[
        bool, typer.Option("--versions", help="Show the weight versions of every minibatch, for any method.")
    ] = False,
    width: Annotated[
        float | None,
        option("Width of the picture, such as 8 for a column of a page; by default one scale for all.", "CM"),
    ] = None,
    output_format: OutputPicture = None,
    out: Annotated[
        Path | None, option("A file for the result; a FILE.html plays the schedule (default: it is printed).", "FILE")
    ] = None,
) -> None:
    """Draw what every stage of a pipeline does, with which weights, and prove that it cannot deadlock."""
    from hybridnn.drawing import timelines
    from hybridnn.drawing.animation import html_page
    from hybridnn.pipeline.checks.lint import audit
    from hybridnn.pipeline.schedules.methods import METHODS

    durations = {"forward": forward, "backward": backward, "weight": weight, "message": message}
    options: dict[str, Any] = durations | {"stages": stages, "microbatches": microbatches, "in_flight": in_flight}
    if compare:
        found = _compared(options) if machine is None else _compared(options, method, machine)
        write_result(
            choose_format(output_format, out),
            out,
            lambda console: console.print(_method_table(found)),
            lambda: found,
            lambda: timelines.schedule(found[0]["method"], **options).drawing,
        )
        return
    if method is None:
        make_console().print(new_grid((info.name, info.summary) for info in METHODS.values()))
        return
    plays = out is not None and out.suffix.lower() == ".html" and output_format is None
    picture = None if plays else choose_format(output_format, out)
    if messages and picture not in PICTURES:
        raise SettingError("--messages", True, "needs a picture: give --out FILE.svg, .png or .pdf")
    require_width(width, picture)
    made = timelines.schedule(method, minibatches=minibatches, chunks=chunks, barriers=barriers, **options)
    timeline, rows = made.timeline, audit(made.timeline.schedule)
    if picture is None:
        write_file(html_page(made.animation), out)
        return
    write_result(
        picture,
        out,
        lambda console: _print_report(console, timeline, made.durations, rows, all_versions=versions),
        lambda: _facts(timeline, made.durations, rows),
        lambda: made.drawn(messages=messages, versions=versions),
        width,
    )


def _compared(
    options: Mapping[str, Any], config: str | None = None, machine: str | None = None
) -> list[dict[str, Any]]:
    """The exact methods of this size, the fastest first: in the time of the options, or in ms on a machine."""
    from hybridnn.drawing import timelines
    from hybridnn.pipeline.schedules.instructions import SendActivations, SendGradients
    from hybridnn.pipeline.schedules.methods import METHODS
    from hybridnn.pipeline.schedules.program import plan_memory

    rows, refused = [], SettingError("--compare", True, "no method")
    for name in (it.name for it in METHODS.values() if it.exact and it.cuts_minibatches):
        try:
            if machine is None:
                timed = timelines.schedule(name, **options)
                made, time, bubble = timed.timeline.schedule, timed.makespan, timed.bubble_fraction
            else:
                made, time, bubble = _predicted(config, machine, options["stages"], options["microbatches"], name)
        except SettingError as error:
            refused = error
            continue
        live = max(plan_memory(made, stage).peak_live_activations for stage in range(made.stages)) / made.chunks
        sent = sum(isinstance(item, SendActivations | SendGradients) for order in made.orders for item in order)
        rows.append({"method": name, "time": time, "bubble": bubble, "in_flight": live, "messages": sent})
    if not rows:
        raise refused
    return sorted(rows, key=lambda row: row["time"])


def _predicted(
    config: str | None, machine: str, stages: int, microbatches: int | None, method: str
) -> tuple[Schedule, float, float]:
    from hybridnn.config.settings import load_settings
    from hybridnn.cost.machine_file import require_machine
    from hybridnn.cost.prediction.predict import predict
    from hybridnn.runs.workload import layout_from_settings, workload_from_settings

    given = [f"parallel.pipeline={stages}", f"parallel.method={method}"]
    given += [f"parallel.microbatches={microbatches}"] if microbatches else []
    settings, cluster = load_settings(None if config is None else Path(config), given), require_machine(machine)
    workload = workload_from_settings(settings)
    layout = layout_from_settings(settings, stages, workload.model, cluster)
    step = predict(workload, layout, cluster)
    return layout.schedule(1), 1e3 * step.seconds_per_step, step.breakdown.bubble / step.seconds_per_step


def _method_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    formats = ("{}", "{:.6g}", "{:.1%}", "{:g}", "{}")
    cells = [[form.format(value) for form, value in zip(formats, row.values(), strict=True)] for row in rows]
    return new_table(("method",), ("time", "bubble", "microbatches\nin flight", "messages"), cells)


def _print_report(
    console: Console, timeline: Timeline, durations: Durations, rows: Sequence[StalenessRow], *, all_versions: bool
) -> None:
    """Print the drawing, the figures per stage, the linter's verdict, and the weight versions.

    With `all_versions`, those of every minibatch and for any method, not only of the first few of a method with stale
    weights.
    """
    from hybridnn.drawing.drawing import draw_timeline

    print_drawing(console, draw_timeline(timeline))
    console.print()
    console.print(
        f"durations: forward {durations.forward:g}, backward {durations.backward:g} "
        f"(weight gradients {durations.weight:g} of it), message {durations.message:g}"
    )
    console.print(f"makespan {timeline.makespan:.6g}, bubble fraction {timeline.bubble_fraction:.2%}")
    console.print(_stage_table(timeline))
    console.print(LINT_VERDICT)
    if all_versions or any(row.staleness or not row.consistent for row in rows):
        console.print()
        _print_versions(console, timeline.schedule, rows, all_versions=all_versions)


def _facts(timeline: Timeline, durations: Durations, rows: Sequence[StalenessRow]) -> dict[str, Any]:
    """All figures of a simulated schedule, with minibatches, microbatches, stages and chunks from 0."""
    schedule = timeline.schedule
    return {
        "method": schedule.method,
        "minibatches": schedule.minibatches,
        "microbatches": schedule.microbatches,
        "chunks": schedule.chunks,
        "placement": schedule.placement.name,
        "weight_policy": schedule.policy.name,
        "durations": asdict(durations),
        "stages": [
            {"stage": stage, "instructions": [_instruction_facts(item) for item in items]}
            for stage, items in enumerate(timeline.stages)
        ],
        "staleness": [_staleness_facts(row) for row in rows],
        "summary": {
            "makespan": timeline.makespan,
            "bubble_fraction": timeline.bubble_fraction,
            "stages": [
                {"stage": stage} | {name: getattr(plan, name) for name in PEAKS} | {"busy": busy}
                for stage, (plan, busy) in enumerate(zip(timeline.plans, timeline.busy, strict=True))
            ],
        },
    }


def _instruction_facts(item: TimedInstruction) -> dict[str, Any]:
    instruction = item.instruction
    return {
        "instruction": instruction.name,
        **asdict(instruction),
        "version": None if item.read is None else item.read.version,
        "ahead": None if item.read is None else item.read.ahead,
        "start": item.start,
        "end": item.end,
    }


def _staleness_facts(row: StalenessRow) -> dict[str, Any]:
    return {
        **vars(row),
        "forward": row.forward._asdict(),
        "backward": row.backward._asdict(),
        "staleness": row.staleness,
        "consistent": row.consistent,
    }


def _stage_table(timeline: Timeline) -> Table:
    rows = []
    for stage, (plan, busy) in enumerate(zip(timeline.plans, timeline.busy, strict=True)):
        peaks = [str(getattr(plan, name)) for name in PEAKS]
        idle = 1 - busy / timeline.makespan if timeline.makespan else 0.0
        rows.append((str(stage), *peaks, f"{busy:.6g}", f"{idle:.1%}"))
    titles = ("stage", "peak live\nactivations", "peak live\ninputs", "peak weight\nversions", "busy", "idle")
    return new_table((), titles, rows)


def _print_versions(console: Console, schedule: Schedule, rows: Sequence[StalenessRow], *, all_versions: bool) -> None:
    """Print the part of the table of weight versions that fits, and whether both passes use the same weights."""
    cells = {(row.minibatch, row.stage): f"{_version(row.forward)}/{_version(row.backward)}" for row in rows}
    # A column has a blank on either side and one between it and the next.
    column = 3 + max(len(f"stage {schedule.stages - 1}"), *(len(cell) for cell in cells.values()))
    stages = min(schedule.stages, max(1, (console.width - len("  minibatch  ")) // column))
    most = schedule.minibatches if all_versions else max(FEW_MINIBATCHES, schedule.stages + 2)
    minibatches = min(schedule.minibatches, most)
    staleness = [max(row.staleness for row in rows if row.stage == stage) for stage in range(stages)]
    back = ", -s if estimated s updates back" * any(row.backward.ahead < 0 for row in rows)
    console.print(
        f"weights read, forward/backward: the updates that the stage had done, +s if predicted s updates ahead{back}"
    )
    titles = ("minibatch", *(f"stage {stage}" for stage in range(stages)))
    lines = [
        (str(minibatch + 1), *(cells[minibatch, stage] for stage in range(stages))) for minibatch in range(minibatches)
    ]
    console.print(new_table((), titles, lines, footers=("staleness", *map(str, staleness))))
    if (minibatches, stages) != (schedule.minibatches, schedule.stages):
        console.print(
            f"shown: {stages} of {schedule.stages} stages and {minibatches} of {schedule.minibatches} minibatches; "
            "--format json has all"
        )
    consistent = all(row.consistent for row in rows)
    is_predicted = any(row.forward.ahead or row.backward.ahead for row in rows)
    what = "aim at the same version" if is_predicted else "use the same weights"
    console.print(f"forward and backward pass {what}: {'yes' if consistent else 'no'}")


def _version(weights: WeightRead) -> str:
    return f"{weights.version}{weights.ahead:+d}" if weights.ahead else str(weights.version)
