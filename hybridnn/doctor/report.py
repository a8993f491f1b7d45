"""Findings of `hybridnn doctor`, checks with time limits, and the report that merges the findings of all ranks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

Verdict = Literal["ok", "warning", "failure"]
Result = TypeVar("Result")
SEVERITY: tuple[Verdict, ...] = ("ok", "warning", "failure")


@dataclass(frozen=True)
class Finding:
    """Result of a check: one line of the report."""

    name: str  # name of the check; set by `run_check`
    verdict: Verdict  # one of "ok", "warning", "failure"
    what: str  # what was found, in one line
    advice: str = ""  # what to do about it; may be empty
    ranks: tuple[int, ...] = ()  # ranks with this finding; empty where all have it, and where it is about the whole job


def ok(what: str, advice: str = "") -> Finding:
    """Finding of a check that passed."""
    return Finding("", "ok", what, advice)


def warning(what: str, advice: str = "") -> Finding:
    """Finding of a check with something that slows a job down or may break it."""
    return Finding("", "warning", what, advice)


def failure(what: str, advice: str = "") -> Finding:
    """Finding of a check with something that keeps jobs from running."""
    return Finding("", "failure", what, advice)


# -- checks ------------------------------------------------------------------------------------------------------------

Check = Callable[[], Finding | None]
"""A check of one thing; returns None where the thing does not exist here and is not needed."""


class TimeLimitError(Exception):
    """A call did not end within its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"did not end within {seconds:g} s")


def call_within(seconds: float, action: Callable[[], Result]) -> Result:
    """Call `action` in a thread of its own, and return or raise what it does, or `TimeLimitError`.

    The thread is left behind when the time is over.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="call with a time limit", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeLimitError(seconds)
    return results[0]


def run_check(name: str, check: Check, seconds: float | None = None) -> Finding | None:
    """Carry out a check; one that raises an exception, or takes longer than `seconds`, is a failure.

    Without `seconds` the check is called directly, and has limits of its own.
    """
    try:
        finding = check() if seconds is None else call_within(seconds, check)
    except TimeLimitError as error:
        advice = "a file system, another rank or a library does not answer: try with fewer ranks, or in another folder"
        finding = failure(str(error), advice)
    except (Exception, SystemExit) as error:
        kind, text = type(error).__name__, str(error).strip()
        reason = f"{kind}: {text.splitlines()[0]}" if text else kind
        finding = failure(f"the check itself failed: {reason}", "mend what this names, and run doctor again")
    return None if finding is None else replace(finding, name=name)


def run_checks(checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """Findings of checks that have time limits of their own."""
    findings = (run_check(name, check) for name, check in checks)
    return [finding for finding in findings if finding is not None]


# -- report ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoctorReport:
    """Findings of a job."""

    findings: tuple[Finding, ...]  # in the order of the checks
    ranks: int  # number of ranks in MPI's COMM_WORLD

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; ``"ok"`` without findings."""
        return max((finding.verdict for finding in self.findings), key=SEVERITY.index, default="ok")

    def count(self, verdict: Verdict) -> int:
        """Number of findings with this verdict."""
        return Counter(finding.verdict for finding in self.findings)[verdict]

    @property
    def exit_code(self) -> int:
        """1 with a failure, otherwise 0."""
        return int(self.verdict == "failure")


def merge_reports(reports: Sequence[Sequence[Finding] | None], job_findings: Iterable[Finding] = ()) -> DoctorReport:
    """Merge equal findings of the ranks, in the order in which they were first found; those of the whole job come last.

    `reports` has None for a rank without a report.
    """
    reporting = tuple(rank for rank, report in enumerate(reports) if report is not None)
    ranks_of: dict[str, dict[Finding, list[int]]] = {}
    for rank in reporting:
        for finding in reports[rank] or ():
            ranks_of.setdefault(finding.name, {}).setdefault(finding, []).append(rank)
    merged = []
    for variants in ranks_of.values():
        for finding, ranks in variants.items():
            # A check that rank 0 alone carries out is about the whole job.
            is_shared = len(variants) == 1 and tuple(ranks) in (reporting, (0,))
            merged.append(finding if is_shared else replace(finding, ranks=tuple(ranks)))
    return DoctorReport((*merged, *job_findings), len(reports))
