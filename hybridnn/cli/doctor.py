"""`hybridnn doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridnn.cli.output import Format
from hybridnn.cli.start_ranks import Ranks, start_ranks


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as failures.")] = False,
    limit: Annotated[float, typer.Option(help="Time for each check with other ranks.", metavar="SECONDS")] = 15.0,
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
    ranks: Ranks = None,
) -> None:
    """Check this machine, alone or on several ranks: MPI, threads, cores, GPU, folders; exit code 1 on failures."""
    from hybridnn.utils.checks import require_number

    require_number("--limit", limit, 0, 3600, "seconds, above 0, at most an hour", open_ends="(")
    start_ranks(ranks)

    # Only now, so that a wrong option is reported without waiting for the rest to load.
    from hybridnn.cli.doctor_view import print_report, report_text
    from hybridnn.doctor.examine import examine

    as_json = output_format is Format.json
    found = examine(limit, lambda report: report_text(report, as_json=as_json))
    if found.report is not None and found.speaks:
        print_report(found.report, as_json=as_json)
    raise typer.Exit(found.agree_on_code(strict))
