"""`hybridnn plan`: what every layout of a number of ranks would cost, and which is best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.output import Format
from hybridnn.cli.ranks import first_rank_alone


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A settings file; its section parallel is not looked at.", metavar="CONFIG.toml", show_default=False
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change any setting; may be given many times.", metavar="SECTION.KEY=VALUE"),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks to use; without, all of the machine's.", metavar="N", show_default=False),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            help="A machine file, or the name of a machine that ships with hybridnn; without, $HYBRIDNN_MACHINE or "
            "machine.toml in the working folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to list.", metavar="N")] = 10,
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
) -> None:
    """List the fastest layouts of a number of ranks, as the machine file predicts them."""
    from hybridnn.config.file import load_settings

    settings = load_settings(config, overrides or ())

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    from hybridnn.cli.plan_view import print_plan
    from hybridnn.cost.machine.file import require_machine
    from hybridnn.cost.planning.plan import plan as make_plan
    from hybridnn.cost.planning.reasons import best_by_ranks
    from hybridnn.runs.auto_layout import fixed_constraints
    from hybridnn.runs.workload import workload_from_settings

    with first_rank_alone():
        known = require_machine(machine)
        workload, constraints = workload_from_settings(settings), fixed_constraints(settings)
        made = make_plan(workload, known, ranks or known.ranks, top, constraints)
        around = None if made.best_exact is None else best_by_ranks(workload, known, made.best_exact, constraints)
        print_plan(made, around, settings.parallel, as_json=output_format is Format.json)
