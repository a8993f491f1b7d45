"""Findings of `hybridnn doctor`, and the report that merges those of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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

    def exit_code(self, strict: bool) -> int:
        """1 with a failure or, where `strict`, with a warning; otherwise 0."""
        return int(self.verdict == "failure" or (strict and self.verdict == "warning"))


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
