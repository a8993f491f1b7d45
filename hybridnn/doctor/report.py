"""The report: the findings of all ranks, how many of each verdict, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hybridnn.doctor.finding import Finding, Merged, Verdict, merge, worst

__all__ = ["Report", "report_of"]

SAME_EVERYWHERE = ("python", "packages", "MPI library", "BLAS")
"""Findings in which ranks must not differ, or they would not train the same network alike."""


@dataclass(frozen=True)
class Report:
    """What doctor says in the end.

    Attributes
    ----------
    merged : tuple of Merged
        In the order of the checks.
    ranks : int
        Ranks that MPI sees.
    """

    merged: tuple[Merged, ...]
    ranks: int

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst(entry.finding for entry in self.merged)

    def count(self, verdict: Verdict) -> int:
        """How many findings have this verdict."""
        return Counter(entry.finding.verdict for entry in self.merged)[verdict]

    def exit_code(self, strict: bool) -> int:
        """1 if something failed, or, where `strict`, was warned of; otherwise 0."""
        return int(self.verdict == "failure" or (strict and self.verdict == "warning"))


def report_of(reports: Sequence[Sequence[Finding] | None], together: Sequence[Finding] = ()) -> Report:
    """Merge the findings of every rank, None for one without a report, and add what is about all of them together."""
    merged = [*merge(reports, SAME_EVERYWHERE), *(Merged(finding) for finding in together)]
    return Report(tuple(merged), len(reports))
