"""`hybridnn simulate`: a run of any number of ranks on a machine that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.pictures import PictureFormat, choose_format
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import SettingError

MOST_MINIBATCHES = 10_000
"""More take minutes, and a steady state is reached long before."""


class ScalingKind(str, Enum):
    """Which scaling curve."""

    strong = "strong"
    weak = "weak"


def simulate(
    config: Annotated[
        Path,
        typer.Argument(help="A settings file of `hybridnn train`.", metavar="CONFIG.toml", show_default=False),
    ],
    ranks: Annotated[
        int,
        typer.Option(min=1, help="Ranks of the job; without parallel.batch they fill it.", show_default=False),
    ],
    machine: Annotated[
        str | None,
        typer.Option(
            help="A machine file, or the name of a machine that ships with hybridnn; without, $HYBRIDNN_MACHINE or "
            "machine.toml in the working folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change any setting; may be given many times.", metavar="SECTION.KEY=VALUE"),
    ] = None,
    minibatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_MINIBATCHES,
            help="Minibatches to simulate; by default 1, and 4 for each stage where they overlap.",
            show_default=False,
        ),
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0.0, help="Relative standard deviation of the time of every computation.")
    ] = 0.0,
    slow: Annotated[
        list[str] | None,
        typer.Option(help="A rank that computes slower, by a factor; may be given many times.", metavar="RANK:FACTOR"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the jitter.")] = 0,
    curve: Annotated[
        ScalingKind | None,
        typer.Option(
            help="Simulate 1, 2, 4, ... replicas up to --ranks: strong keeps the minibatch, weak lets it grow.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        PictureFormat | None,
        typer.Option("--format", help="By default what the file's name says, or text. JSON counts from 0."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file for the result.", metavar="FILE")] = None,
) -> None:
    """Simulate training steps of a layout on a machine: the timeline, where the time goes, and how it scales."""
    picture = choose_format(output_format, out)
    if curve is not None and picture is PictureFormat.svg:
        raise SettingError("--format", picture.value, "a curve is text, json or png")

    with first_rank_alone():
        from hybridnn.config.file import load_settings
        from hybridnn.cost.machine.file import require_machine
        from hybridnn.cost.simulation.disturbance import Disturbance

        disturbance = Disturbance(jitter, _slow_ranks(slow or ()), seed)
        settings, cluster = load_settings(config, overrides or ()), require_machine(machine)

        # Only now, so that a wrong setting is reported without waiting for the rest to load.
        from hybridnn.cli.simulate_view import write_curve, write_step
        from hybridnn.cost.simulation.scaling import scaling_curve
        from hybridnn.cost.simulation.simulate_layout import compile_layout, simulate_layout, usual_minibatches
        from hybridnn.runs.workload import layout_from_settings, workload_from_settings

        workload = workload_from_settings(settings)
        layout = layout_from_settings(settings, ranks, workload.model, cluster)
        count = minibatches or usual_minibatches(layout)
        if curve is not None:
            scaling = scaling_curve(workload, layout, cluster, curve.value, count, disturbance)
            write_curve(scaling, layout, cluster, picture, out)
            return
        program = compile_layout(layout, count)
        calm = simulate_layout(workload, layout, cluster, program)
        step = simulate_layout(workload, layout, cluster, program, disturbance) if disturbance else calm
        write_step(step, calm, cluster, disturbance, picture, out)


def _slow_ranks(texts: Sequence[str]) -> dict[int, float]:
    """From RANK:FACTOR."""
    slow: dict[int, float] = {}
    for text in texts:
        left, _, right = text.partition(":")
        try:
            rank, factor = int(left), float(right)
        except ValueError:
            raise SettingError("--slow", text, "a rank and a factor, for example 3:1.5") from None
        if rank in slow:
            raise SettingError("--slow", text, "every rank once")
        slow[rank] = factor
    return slow
