"""What a check found, and what several ranks found together.

Ranks, numbers, sizes and times in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hybridnn.doctor.deadline import OutOfTimeError, within

Verdict = Literal["ok", "warning", "failure"]
SEVERITY: tuple[Verdict, ...] = ("ok", "warning", "failure")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    name : str
        What was looked at.
    verdict : {"ok", "warning", "failure"}
    what : str
        What was found, in a line.
    advice : str
        What to do about it; empty where there is nothing to do.
    """

    name: str
    verdict: Verdict
    what: str
    advice: str = ""


Check = Callable[[], "Finding | None"]
"""Looks at one thing; None where the thing does not exist here and nobody would miss it."""


@dataclass(frozen=True)
class Merged:
    """A finding and the ranks that share it; no ranks where all do, or where it is about the job as a whole."""

    finding: Finding
    ranks: tuple[int, ...] = ()


def guarded(name: str, check: Check, seconds: float | None = None) -> Finding | None:
    """Carry out a check; that it raises, or takes longer than so many seconds, is a finding of its own.

    Parameters
    ----------
    name : str
        Of the check, for that finding.
    check : callable
    seconds : float, optional
        Time limit; without one the check is called directly, and sees to its end itself.
    """
    try:
        return check() if seconds is None else within(seconds, check)
    except OutOfTimeError as error:
        advice = "a file system, another rank or a library does not answer: try with fewer ranks, or in another folder"
        return Finding(name, "failure", str(error), advice)
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines()
        line = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return Finding(
            name, "failure", f"the check itself failed: {line}", "mend what this names, and run doctor again"
        )


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict, ``"ok"`` where there is none."""
    return max((finding.verdict for finding in findings), key=SEVERITY.index, default="ok")


def merge(reports: Sequence[Sequence[Finding] | None], same_everywhere: Iterable[str] = ()) -> list[Merged]:
    """Put the findings of all ranks into one list, in the order in which they were first found.

    Parameters
    ----------
    reports : sequence
        The findings of every rank; None for a rank without a report.
    same_everywhere : iterable of str
        Names of findings that should not differ: where they do, what was fine on each rank becomes a warning.
    """
    reporting = tuple(rank for rank, report in enumerate(reports) if report is not None)
    ranks_of: dict[str, dict[Finding, list[int]]] = {}
    for rank in reporting:
        for finding in reports[rank] or ():
            ranks_of.setdefault(finding.name, {}).setdefault(finding, []).append(rank)
    should_agree = set(same_everywhere)
    merged = []
    for name, variants in ranks_of.items():
        differ = name in should_agree and len(variants) > 1
        for finding, ranks in variants.items():
            # What rank 0 alone looked at is about the whole job.
            shared = len(variants) == 1 and tuple(ranks) in (reporting, (0,))
            merged.append(Merged(_not_the_same(finding) if differ else finding, () if shared else tuple(ranks)))
    return merged


def _not_the_same(finding: Finding) -> Finding:
    if finding.verdict != "ok":
        return finding
    return replace(finding, verdict="warning", advice="not the same on every rank: start all from one environment")
