"""What changed between two gradings of the same submissions, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridnn.errors import DataError
from hybridnn_course.outcome import CheckOutcome, Outcome
from hybridnn_course_staff.batch import SUFFIX, stored_outcome


@dataclass(frozen=True)
class Change:
    """A check of a submission with other points than before, and why."""

    submission: str
    check: str
    before: float
    after: float
    why: str


def read_outcomes(folder: Path) -> dict[str, Outcome]:
    """The outcomes in a folder of grades, by submission; of several gradings the last one."""
    files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    outcomes = {outcome.submission: outcome for outcome in map(stored_outcome, files) if outcome is not None}
    if not outcomes:
        raise DataError(f"{folder}: has no outcomes of `hybridnn course grade`")
    return outcomes


def changed_checks(before: Mapping[str, Outcome], after: Mapping[str, Outcome]) -> Iterator[Change]:
    """The checks whose points changed, of the submissions that both gradings have.

    Where a submission could not be graded in one of them, there is one change, of all its points.

    Raises
    ------
    DataError
        If the gradings are of different assignments.
    """
    kinds = {outcome.assignment for outcome in (*before.values(), *after.values())}
    if len(kinds) > 1:
        raise DataError(f"the gradings are of {' and '.join(sorted(kinds))}")
    for name in sorted(before.keys() & after.keys()):
        one, two = before[name], after[name]
        if one.ungraded != two.ungraded:
            why = f"had no grade: {one.ungraded}" if not two.ungraded else f"has no grade: {two.ungraded}"
            yield Change(name, "all", one.points, two.points, why)
            continue
        old, new = _checks(one), _checks(two)
        for check in dict.fromkeys([*old, *new]):
            was, now = (found[check].points if check in found else 0.0 for found in (old, new))
            if abs(was - now) > 1e-9:
                yield Change(name, check, was, now, _reason(old.get(check), new.get(check)))


def _reason(old: CheckOutcome | None, new: CheckOutcome | None) -> str:
    """Why a check has other points."""
    if old is None or new is None:
        return "a new check" if old is None else "no longer a check"
    if old.passed and new.passed:
        return f"it is worth {new.possible:.4g}, not {old.possible:.4g}"
    return new.message or (f"before: {old.message}" if old.message else "only one of the two passes")


def _checks(outcome: Outcome) -> dict[str, CheckOutcome]:
    return {f"{task.name}, {check.kind}, {check.name}": check for task in outcome.tasks for check in task.checks}
