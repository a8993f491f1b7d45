"""`hybridnn stall`: why a run stood still, from what its ranks left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.output import Format
from hybridnn.cli.ranks import first_rank_alone


def stall(
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN", show_default=False)],
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
) -> None:
    """Tell which rank a run waited for when it stood still, and what every rank was doing."""
    from hybridnn.cli.stall_view import print_stall
    from hybridnn.diagnostics.stalls.files import read_stall
    from hybridnn.errors import DataError
    from hybridnn.runs.history_file import run_status

    with first_rank_alone():
        record = read_stall(run)
        if record is None and run_status(run) == "absent":
            raise DataError(f"{run}: this folder holds no run of hybridnn")
        print_stall(record, run, as_json=output_format is Format.json)
