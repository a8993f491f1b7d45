"""`hybridnn doctor`: check an installation or a job; one line of output per finding, with advice."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import Format, OutputFormat, Ranks, option
from hybridnn.cli.output import make_console, write_json
from hybridnn.cli.ranks import launch_rank, start_ranks

if TYPE_CHECKING:
    from hybridnn.doctor.report import DoctorReport, Verdict


STYLES: Mapping[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}
VERDICT_WIDTH = len("warning")


def doctor(
    limit: Annotated[float, option("Time for each check.", "SECONDS")] = 15.0,
    output_format: OutputFormat = Format.text,
    ranks: Ranks = None,
) -> None:
    """Check this machine, or ranks and nodes of a job: MPI, threads, cores, GPU, folders; exit code 1 on failures."""
    from hybridnn.utils.checks import require_number

    require_number("--limit", limit, above=0, at_most=3600, allowed="seconds, above 0, at most an hour")
    start_ranks(ranks)

    # Only now, so that a wrong option is reported without waiting for the rest to load.
    from hybridnn.doctor.examine import examine

    print_report = _print_json if output_format is Format.json else _print_text
    raise typer.Exit(examine(limit, print_report, launched=launch_rank() is not None))


def _print_json(report: DoctorReport) -> None:
    findings = [asdict(finding) for finding in report.findings]
    write_json({"verdict": report.verdict, "ranks": report.ranks, "findings": findings})


def _print_text(report: DoctorReport) -> None:
    from rich.text import Text

    from hybridnn.utils.text import counted, name_numbers

    text = Text()
    width = max((len(finding.name) for finding in report.findings), default=0)
    for finding in report.findings:
        ranks = f"{name_numbers('rank', finding.ranks)}: " if finding.ranks else ""
        advice = f" -> {finding.advice}" if finding.advice else ""
        text.append(f"{finding.verdict:{VERDICT_WIDTH}}", STYLES[finding.verdict])
        text.append(f"  {finding.name:{width}}  {ranks}{finding.what}{advice}\n")
    warnings, failures = counted(report.count("warning"), "warning"), counted(report.count("failure"), "failure")
    text.append(f"{counted(report.ranks, 'rank')}: {report.count('ok')} ok, {warnings}, {failures}")
    make_console().print(text, soft_wrap=True)  # a line stays a line, for grep
    sys.stdout.flush()
