"""Findings of `hybridnn doctor`, checks with time limits, and the report that merges the findings of all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["ok", "warning", "failure"]
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


Check = Callable[[], Finding | None]
"""A check of one thing; returns None where the thing does not exist here and is not needed."""


def run_checks(checks: Iterable[tuple[str, Check]], seconds: float | None = None) -> list[Finding]:
    """Findings of checks, each as `run_check` returns it."""
    findings = (run_check(name, check, seconds) for name, check in checks)
    return [finding for finding in findings if finding is not None]


def run_check(name: str, check: Check, seconds: float | None = None) -> Finding | None:
    """Carry out a check; one that raises an exception, or takes longer than `seconds`, is a failure.

    With `seconds` the check is called in a thread of its own, which is left behind when the time is over.
    """
    results: list[Finding | None] = []

    def call() -> None:
        try:
            results.append(check())
        except (Exception, SystemExit) as error:
            kind, text = type(error).__name__, str(error).strip()
            reason = f"{kind}: {text.splitlines()[0]}" if text else kind
            results.append(failure(f"the check itself failed: {reason}", "mend what this names, and run doctor again"))

    if seconds is None:
        call()
    else:
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        thread.join(seconds)
        if not results:
            advice = "a file system or a library does not answer: try in another folder"
            results.append(failure(f"did not end within {seconds:g} s", advice))
    return None if results[0] is None else replace(results[0], name=name)


@dataclass(frozen=True)
class DoctorReport:
    """Findings of a job."""

    findings: tuple[Finding, ...]  # in the order of the checks
    ranks: int  # number of ranks of the job

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; ``"ok"`` without findings."""
        return max((finding.verdict for finding in self.findings), key=SEVERITY.index, default="ok")

    def count(self, verdict: Verdict) -> int:
        """Number of findings with this verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """1 with a failure, otherwise 0."""
        return int(self.verdict == "failure")


def merge_reports(reports: Sequence[Sequence[Finding]], job_findings: Iterable[Finding] = ()) -> DoctorReport:
    """Merge equal findings of the ranks, in the order in which they were first found; those of the whole job come last.

    `reports` has the findings of every rank.
    """
    ranks_of: dict[str, dict[Finding, list[int]]] = {}
    for rank, report in enumerate(reports):
        for finding in report:
            ranks_of.setdefault(finding.name, {}).setdefault(finding, []).append(rank)
    merged = []
    for variants in ranks_of.values():
        for finding, ranks in variants.items():
            # A check that rank 0 alone carries out is about the whole job.
            is_shared = len(variants) == 1 and (ranks == [0] or len(ranks) == len(reports))
            merged.append(finding if is_shared else replace(finding, ranks=tuple(ranks)))
    return DoctorReport((*merged, *job_findings), len(reports))
