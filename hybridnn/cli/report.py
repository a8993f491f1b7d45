"""`hybridnn report`: what runs cost, beside what was predicted, and what limits them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.output import Format
from hybridnn.cli.ranks import first_rank_alone


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Draw measured beside predicted times into a PNG.", metavar="FILE.png"),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
) -> None:
    """Tell where the time of a run went; of several runs, how they scale."""
    from hybridnn.cli.pictures import PictureFormat, choose_format
    from hybridnn.cli.report_view import print_run, print_runs
    from hybridnn.runs.run_record import read_run
    from hybridnn.study.figures import figures_of
    from hybridnn.study.report.check_plot import draw_run_check, draw_runs_check
    from hybridnn.utils.files import write_atomically

    with first_rank_alone():
        if out is not None:
            choose_format(PictureFormat.png, out)
        runs = [read_run(folder) for folder in folders]
        figures = [figures_of(run) for run in runs]
        as_json = output_format is Format.json
        if len(runs) == 1:
            print_run(runs[0], figures[0], as_json=as_json)
        else:
            print_runs(figures, as_json=as_json)
        if out is not None:
            picture = draw_run_check(runs[0], figures[0]) if len(runs) == 1 else draw_runs_check(figures)
            write_atomically(out, picture)
            if not as_json:
                print(out)
