"""`hybridnn plan`: predicted costs of the layouts of a number of ranks, the best ones, and the reasons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import Format, MachineFile, OutputFormat, Overrides, count
from hybridnn.cli.output import make_console, new_table, print_machine, write_json
from hybridnn.cli.ranks import first_rank_alone

if TYPE_CHECKING:
    from rich.table import Table

    from hybridnn.config.settings import ParallelSettings
    from hybridnn.cost.plan import Plan
    from hybridnn.cost.prediction.predict import Prediction

Facts = dict[str, Any]


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(help="A settings file; its section parallel is ignored.", metavar="CONFIG.toml"),
    ] = None,
    overrides: Overrides = None,
    ranks: Annotated[int | None, count("Ranks to use (default: all of the machine's).")] = None,
    machine: MachineFile = None,
    top: Annotated[int, count("Layouts to list.")] = 10,
    output_format: OutputFormat = Format.text,
) -> None:
    """List the fastest layouts of a number of ranks, as the machine file predicts them."""
    from hybridnn.config.settings import load_settings

    settings = load_settings(config, overrides or ())

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    from hybridnn.cost.machine_file import require_machine
    from hybridnn.cost.plan import plan as make_plan
    from hybridnn.runs.workload import fixed_constraints, workload_from_settings

    with first_rank_alone():
        cluster = require_machine(machine)
        workload, wanted = workload_from_settings(settings), fixed_constraints(settings)
        result = make_plan(workload, cluster, ranks or cluster.ranks, top, wanted)
        facts = _facts(result)
        if output_format is Format.json:
            write_json(facts)
        else:
            _print_plan(result, facts, settings.parallel)


def _facts(plan: Plan) -> Facts:
    """All figures of a plan, named with their units."""
    from hybridnn.cost.plan import reason_sentence
    from hybridnn.cost.prediction.memory import data_bytes

    return {
        "machine": plan.machine.name,
        "quality": None if plan.machine.quality is None else plan.machine.quality.summary,
        "ranks": plan.ranks,
        "layouts": plan.layouts,
        "memory_bytes_per_rank": plan.machine.memory_bytes_per_rank,
        "data_bytes_per_node": data_bytes(plan.workload),
        "options": [_option_facts(option, plan) for option in plan.options],
        "why": None if plan.best_exact is None else reason_sentence(plan.best_exact, plan.runner_up),
    }


def _option_facts(option: Prediction, plan: Plan) -> Facts:
    from hybridnn.config.settings import keys_of_layout

    breakdown = {f"{name}_seconds_per_step": seconds for name, seconds in asdict(option.breakdown).items()}
    return {
        "layout": option.layout.describe(),
        "parallel": keys_of_layout(option.layout),
        "staleness": option.layout.describe_staleness(),
        "best": option == plan.best,
        "best_exact": option == plan.best_exact,
        "seconds_per_step": option.seconds_per_step,
        "seconds_per_epoch": option.seconds_per_epoch,
        **breakdown,
        "bytes_per_step": option.bytes_per_step,
        "memory_bytes": option.memory_bytes,
    }


def _print_plan(plan: Plan, facts: Facts, parallel: ParallelSettings) -> None:
    """Print a plan as text; `parallel` are the user's settings: only other values have to be set to use a layout."""
    from hybridnn.utils.text import format_bytes

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
    for name, option in chosen.items():
        if option is not None:
            console.print(f"to use the {name}: {_set_options(option, parallel)}", soft_wrap=True)


def _table(plan: Plan, facts: Sequence[Facts]) -> Table:
    """Two lines for each layout; times of a step in one unit, so that they can be compared."""
    from hybridnn.utils.text import format_bytes

    unit, factor = ("ms", 1e3) if plan.best.seconds_per_step >= 1e-4 else ("µs", 1e6)
    titles = (f"step\n{unit}", "epoch\ns", "compu-\nting", "comm.", "hidden", "bubble", "over-\nhead", "sent", "memory")
    table = new_table(("pipeline x batch x model\nmethod / microbatches",), titles, show_edge=False, padding=0)
    for option, figures in zip(plan.options, facts, strict=True):
        mean = option.breakdown
        seconds = (mean.computing, mean.communication, mean.communication_hidden, mean.bubble, mean.overhead)
        table.add_row(
            _two_lines(option, figures),
            _digits(option.seconds_per_step * factor),
            _digits(option.seconds_per_epoch),
            *(_digits(value * factor) for value in seconds),
            format_bytes(option.bytes_per_step),
            format_bytes(option.memory_bytes),
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
    from hybridnn.config.settings import keys_of_layout
    from hybridnn.utils.text import to_json

    keys = keys_of_layout(option.layout)
    present = json.loads(to_json(parallel.model_dump()))
    changes = [f"--set parallel.{key}={_toml(value)}" for key, value in keys.items() if value != present[key]]
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
