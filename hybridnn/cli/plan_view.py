"""What `hybridnn plan` prints: the layouts with their costs, the best ones, and why they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hybridnn.cli.output import make_console, print_json, print_machine
from hybridnn.cost.planning.layouts import layout_settings, layout_words, staleness
from hybridnn.cost.planning.plan import Plan
from hybridnn.cost.planning.reasons import bottleneck_sentence, reason_sentence
from hybridnn.cost.prediction.memory import data_bytes
from hybridnn.cost.prediction.predict import Prediction
from hybridnn.utils.text import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from hybridnn.config.settings import ParallelSettings


Around = Mapping[int, Prediction]
"""The best exact layouts of numbers of ranks."""


def print_plan(plan: Plan, around: Around | None, parallel: ParallelSettings, *, as_json: bool) -> None:
    """Print a plan as text or JSON.

    Parameters
    ----------
    plan : Plan
    around : mapping or None
        As `best_by_ranks` finds them; None where no layout is exact.
    parallel : ParallelSettings
        What is set already: only other values have to be set to use a layout.
    as_json : bool
    """
    if as_json:
        print_json(plan_facts(plan, around))
        return
    console = make_console(sys.stdout)
    machine, workload = plan.machine, plan.workload
    console.print(
        f"{plan.ranks:,} ranks on {machine.name}, {workload.model.parameters:,} parameters, "
        f"batch {workload.batch_size:,}: {plan.layouts:,} layouts"
    )
    print_machine(console, machine, plan.ranks)
    console.print(_table(plan))
    there, samples = format_bytes(machine.memory_bytes_per_rank), format_bytes(data_bytes(workload))
    console.print(f"times and bytes of a step; memory of the fullest rank, of {there}; samples take {samples} a node")
    for line in _conclusions(plan, around, parallel):
        console.print(line, soft_wrap=True)


def plan_facts(plan: Plan, around: Around | None) -> dict[str, Any]:
    """All figures of a plan, named with their units."""
    return {
        "machine": plan.machine.name,
        "quality": None if plan.machine.quality is None else plan.machine.quality.line,
        "ranks": plan.ranks,
        "layouts": plan.layouts,
        "memory_bytes_per_rank": plan.machine.memory_bytes_per_rank,
        "data_bytes_per_node": data_bytes(plan.workload),
        "options": [_facts(option, plan) for option in plan.options],
        "why": None if plan.best_exact is None else reason_sentence(plan.best_exact, plan.runner_up),
        "bottleneck": None if around is None else bottleneck_sentence(around),
    }


def _facts(option: Prediction, plan: Plan) -> dict[str, Any]:
    parts = {f"{name}_seconds_per_step": seconds for name, seconds in asdict(option.parts).items()}
    return {
        "layout": layout_words(option.layout),
        "parallel": layout_settings(option.layout),
        "staleness": staleness(option.layout),
        "best": option == plan.best,
        "best_exact": option == plan.best_exact,
        "seconds_per_step": option.seconds_per_step,
        "seconds_per_epoch": option.seconds_per_epoch,
        **parts,
        "communication_hidden_seconds_per_step": option.communication_hidden,
        "bytes_per_step": option.bytes_per_step,
        "memory_bytes": option.memory_bytes,
    }


def _table(plan: Plan) -> Table:
    """Two lines for each layout; times of a step in one unit, so that they can be compared."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    unit, factor = ("ms", 1e3) if plan.best.seconds_per_step >= 1e-4 else ("µs", 1e6)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("pipeline x batch x model\nmethod / microbatches", vertical="bottom", no_wrap=True)
    titles = (f"step\n{unit}", "epoch\ns", "compu-\nting", "comm.", "hidden", "bubble", "over-\nhead", "sent", "memory")
    for title in titles:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for option in plan.options:
        parts = option.parts
        seconds = (parts.computing, parts.communication, option.communication_hidden, parts.bubble, parts.overhead)
        table.add_row(
            _two_lines(option, plan),
            _digits(option.seconds_per_step * factor),
            _digits(option.seconds_per_epoch),
            *(_digits(value * factor) for value in seconds),
            format_bytes(option.bytes_per_step),
            format_bytes(option.memory_bytes),
            style="bold" if option in (plan.best, plan.best_exact) else None,
        )
    return table


def _two_lines(option: Prediction, plan: Plan) -> str:
    """Grid, split and overlap; method, and what becomes of the training."""
    layout = option.layout
    batch, model = layout.stages[0]
    grid = f"{len(layout.stages)} x {batch} x {model}"
    first = " ".join([grid, *([layout.split] if model > 1 else [])]) + ("" if layout.overlap else ", no overlap")
    second = []
    if len(layout.stages) > 1:
        second.append(layout.method + (f" / {layout.microbatches}" if layout.microbatches > 1 else ""))
    if option == plan.best_exact:
        second.append("best exact" + ", best" * (option == plan.best))
    else:
        second.append(_short_staleness(option) + ", best" * (option == plan.best))
    return f"{first}\n{', '.join(second)}"


def _short_staleness(option: Prediction) -> str:
    words = staleness(option.layout)
    return words.replace("by up to", "≤").removesuffix(" updates").removesuffix(" update")


def _conclusions(plan: Plan, around: Around | None, parallel: ParallelSettings) -> list[str]:
    lines = []
    if plan.best_exact is not None:
        lines.append(reason_sentence(plan.best_exact, plan.runner_up))
    if around is not None:
        lines.append(bottleneck_sentence(around))
    chosen = {"best exact": plan.best_exact, "best": plan.best if plan.best != plan.best_exact else None}
    for name, option in chosen.items():
        if option is not None:
            lines.append(f"to use the {name}: {_set_words(option, parallel)}")
    return lines


def _set_words(option: Prediction, parallel: ParallelSettings) -> str:
    """What `hybridnn train` has to be given to use a layout."""
    from hybridnn.utils.text import to_json

    keys = layout_settings(option.layout)
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
