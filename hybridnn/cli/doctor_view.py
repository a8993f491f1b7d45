"""What `hybridnn doctor` prints: one line for each finding, and how many there are of each verdict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from hybridnn.cli.output import make_console
from hybridnn.utils.text import counted, name_numbers, to_json

if TYPE_CHECKING:
    from hybridnn.doctor.examine import DoctorReport
    from hybridnn.doctor.finding import Verdict


STYLES: Mapping[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}
VERDICT_WIDTH = len("warning")


def print_report(report: DoctorReport, *, as_json: bool) -> None:
    """Print a report on standard output."""
    if as_json:
        print(_json(report), flush=True)
        return
    console = make_console(sys.stdout)
    for verdict, rest in _lines(report):
        console.print(f"{verdict:{VERDICT_WIDTH}}", style=STYLES[verdict], end="")
        console.print(rest, soft_wrap=True)  # a line stays a line, for grep
    console.print(_summary(report))
    sys.stdout.flush()


def report_text(report: DoctorReport, *, as_json: bool) -> str:
    """The same as plain text."""
    if as_json:
        return _json(report)
    return "\n".join([*(f"{verdict:{VERDICT_WIDTH}}{rest}" for verdict, rest in _lines(report)), _summary(report)])


def _lines(report: DoctorReport) -> Iterator[tuple[Verdict, str]]:
    """Verdict and the rest of every line."""
    width = max((len(entry.finding.name) for entry in report.merged), default=0)
    for entry in report.merged:
        finding = entry.finding
        who = f"{name_numbers('rank', entry.ranks)}: " if entry.ranks else ""
        advice = f" -> {finding.advice}" if finding.advice else ""
        yield finding.verdict, f"  {finding.name:{width}}  {who}{finding.what}{advice}"


def _summary(report: DoctorReport) -> str:
    warnings, failures = report.count("warning"), report.count("failure")
    return f"{counted(report.ranks, 'rank')}: {report.count('ok')} ok, {counted(warnings, 'warning')}, " + counted(
        failures, "failure"
    )


def _json(report: DoctorReport) -> str:
    facts = {
        "verdict": report.verdict,
        "ranks": report.ranks,
        "findings": [{**asdict(entry.finding), "ranks": list(entry.ranks)} for entry in report.merged],
    }
    return to_json(facts, indent=2)
