"""Outcomes as texts: what students read of a group of checks, and what the staff reads of a submission."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hybridnn.course.outcome import CheckOutcome, Kind, Outcome, TaskOutcome
from hybridnn.errors import shorten

KINDS: dict[Kind, str] = {
    "public": "public cases",
    "hidden": "hidden cases",
    "budget": "budget",
    "whole": "whole run",
    "rubric": "graded by a person",
}
LONGEST = 2000  # characters of a message; platforms limit the size of results
UNFINISHED = "Grading did not finish, so there are no points yet. Please tell the course staff."


@dataclass(frozen=True)
class Group:
    """All checks of one kind of a task.

    Attributes
    ----------
    number : str
        For example ``"2.1"``: the first kind of the second task.
    """

    number: str
    task: str
    kind: Kind
    checks: tuple[CheckOutcome, ...]

    @property
    def name(self) -> str:
        """Task and kind."""
        return f"{self.task}: {KINDS[self.kind]}"

    @property
    def points(self) -> float:
        """Points of its checks."""
        return round(sum(check.points for check in self.checks), 4)

    @property
    def possible(self) -> float:
        """Points that its checks can give."""
        return round(sum(check.possible for check in self.checks), 4)

    @property
    def passed(self) -> bool:
        """Whether every check has all points."""
        return all(check.passed for check in self.checks)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of the known mistakes."""
        return tuple(dict.fromkeys(check.mistake for check in self.checks if check.mistake))

    @property
    def hints(self) -> tuple[str, ...]:
        """Hints, each once."""
        return tuple(dict.fromkeys(plain(check.hint) for check in self.checks if check.hint))

    def text(self) -> str:
        """Its checks and messages as plain text."""
        return "\n".join(line for check in self.checks for line in (_headline(check), *_indented(check)))

    def markdown(self) -> str:
        """Its checks, messages and hints as Markdown; messages are quoted as code."""
        parts = []
        for check in self.checks:
            parts.append(f"{_headline(check)}  ")  # two spaces end a line
            if check.message and not check.not_tried:
                parts.append(_fenced(plain(check.message)))
        return "\n".join([*parts, *(f"\n> {hint}" for hint in self.hints)])


def groups(outcome: Outcome) -> Iterator[Group]:
    """Checks of an outcome by task and kind, in the order of the tasks."""
    for number, task in enumerate(outcome.tasks, 1):
        for position, kind in enumerate(_kinds(task), 1):
            checks = tuple(check for check in task.checks if check.kind == kind)
            yield Group(f"{number}.{position}", task.name, kind, checks)


def _kinds(task: TaskOutcome) -> list[Kind]:
    return [kind for kind in KINDS if any(check.kind == kind for check in task.checks)]


def summary(outcome: Outcome) -> str:
    """The first sentence that a student reads."""
    if not outcome.gradable:
        return f"This submission cannot be graded: {plain(outcome.reason)}"
    return f"{outcome.points:g} of {outcome.possible:g} points."


def staff_report(outcome: Outcome) -> str:
    """What the staff reads in the log: flags included, which students must not see."""
    variant = ", ".join(f"{axis}={choice}" for axis, choice in outcome.variant.items())
    lines = [
        f"{outcome.assignment} {outcome.student or '-'}: {summary(outcome)}",
        f"variant: {variant or '-'}",
        *(f"mistake: {name}" for name in outcome.mistakes),
        *(f"look at: {plain(flag)}" for flag in outcome.flags),
    ]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """`text` without control characters and half characters, cut to `LONGEST`."""
    text = shorten(text, LONGEST)
    return "".join(character if character in "\n\t" or character.isprintable() else "\ufffd" for character in text)


def _headline(check: CheckOutcome) -> str:
    if check.not_tried:
        return f"- {plain(check.name)}: {plain(check.message) or 'not tried'}"
    if check.passed:
        return f"✔ {plain(check.name)}"
    points = f" ({check.points:.4g} of {check.possible:.4g} points)" if check.points else ""
    return f"✘ {plain(check.name)}{points}"


def _indented(check: CheckOutcome) -> list[str]:
    return [] if check.not_tried else [f"    {line}" for line in plain(check.message).splitlines()]


def _fenced(text: str) -> str:
    """`text` as a block of code that it cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"\n{fence}\n{text}\n{fence}\n"
