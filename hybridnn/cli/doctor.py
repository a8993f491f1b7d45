"""`hybridnn doctor`: check an installation or a job; one line of output per finding, with advice."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import Format, OutputFormat, Ranks
from hybridnn.cli.output import make_console
from hybridnn.cli.start_ranks import start_ranks

if TYPE_CHECKING:
    from hybridnn.doctor.examine import DoctorReport
    from hybridnn.doctor.finding import Verdict


STYLES: Mapping[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}
VERDICT_WIDTH = len("warning")


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as failures.")] = False,
    limit: Annotated[float, typer.Option(help="Time for each check with other ranks.", metavar="SECONDS")] = 15.0,
    output_format: OutputFormat = Format.text,
    ranks: Ranks = None,
) -> None:
    """Check this machine, alone or on several ranks: MPI, threads, cores, GPU, folders; exit code 1 on failures."""
    from hybridnn.utils.checks import require_number

    require_number("--limit", limit, 0, 3600, "seconds, above 0, at most an hour", open_ends="(")
    start_ranks(ranks)

    # Only now, so that a wrong option is reported without waiting for the rest to load.
    from hybridnn.doctor.examine import examine

    format_report = _json if output_format is Format.json else _text
    found = examine(limit, format_report)
    if found.report is not None and found.speaks:
        if output_format is Format.json:
            print(_json(found.report), flush=True)
        else:
            _print_report(found.report)
    raise typer.Exit(found.agree_on_code(strict))


def _print_report(report: DoctorReport) -> None:
    """Print a report as text, in colour on a terminal."""
    console = make_console()
    for verdict, rest in _lines(report):
        console.print(f"{verdict:{VERDICT_WIDTH}}", style=STYLES[verdict], end="")
        console.print(rest, soft_wrap=True)  # a line stays a line, for grep
    console.print(_summary(report))
    sys.stdout.flush()


def _text(report: DoctorReport) -> str:
    return "\n".join([*(f"{verdict:{VERDICT_WIDTH}}{rest}" for verdict, rest in _lines(report)), _summary(report)])


def _json(report: DoctorReport) -> str:
    from hybridnn.utils.text import to_json

    facts = {
        "verdict": report.verdict,
        "ranks": report.ranks,
        "findings": [{**asdict(entry.finding), "ranks": list(entry.ranks)} for entry in report.merged],
    }
    return to_json(facts, indent=2)


def _lines(report: DoctorReport) -> Iterator[tuple[Verdict, str]]:
    """Verdict and remaining text of every line."""
    from hybridnn.utils.text import name_numbers

    width = max((len(entry.finding.name) for entry in report.merged), default=0)
    for entry in report.merged:
        finding = entry.finding
        ranks = f"{name_numbers('rank', entry.ranks)}: " if entry.ranks else ""
        advice = f" -> {finding.advice}" if finding.advice else ""
        yield finding.verdict, f"  {finding.name:{width}}  {ranks}{finding.what}{advice}"


def _summary(report: DoctorReport) -> str:
    from hybridnn.utils.text import counted

    warnings, failures = counted(report.count("warning"), "warning"), counted(report.count("failure"), "failure")
    return f"{counted(report.ranks, 'rank')}: {report.count('ok')} ok, {warnings}, {failures}"
