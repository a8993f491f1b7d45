"""Outcome of a submission: points and messages of every check, as it is stored, reported and sent to Gradescope."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["public", "hidden", "budget", "whole", "rubric"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckOutcome(_Record):
    """One check of a task.

    Attributes
    ----------
    name : str
        Of the case, the bound or the training.
    mistake : str
        Name of the known mistake that gives the same answers, or empty.
    not_tried : bool
        Whether it was left out because another check or task failed.
    ratio : float, optional
        What was measured over what is allowed, mean of all cases; for bounds, where all cases are right.
    """

    name: str
    kind: Kind
    points: float
    possible: float
    message: str = ""
    hint: str = ""
    mistake: str = ""
    not_tried: bool = False
    ratio: float | None = None

    @property
    def passed(self) -> bool:
        """Whether it has all points."""
        return self.points >= self.possible - 1e-9 and not self.not_tried


class TaskOutcome(_Record):
    """All checks of a task, and what a person should look at."""

    name: str
    checks: tuple[CheckOutcome, ...]
    flags: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """Points of all checks."""
        return sum(check.points for check in self.checks)

    @property
    def possible(self) -> float:
        """Points that all checks can give."""
        return sum(check.possible for check in self.checks)


class Outcome(_Record):
    """All tasks of a submission.

    Attributes
    ----------
    submission : str
        Name of its file in the folder of submissions, where it was graded there.
    gradable : bool
        False where the submission could not be read; `reason` says why. It then costs no attempt.
    again : str
        What failed where the machine did, or may have: the submission has no grade, and is to be graded again.
    flags : tuple of str
        What a person should look at; they change no points.
    """

    assignment: str
    term: str = ""
    submission: str = ""
    student: str = ""
    variant: dict[str, str] = {}
    gradable: bool = True
    reason: str = ""
    again: str = ""
    tasks: tuple[TaskOutcome, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def ungraded(self) -> str:
        """Why it has no grade; empty where it has one."""
        return f"to be graded again: {self.again}" if self.again else "" if self.gradable else self.reason

    @property
    def points(self) -> float:
        """Points of all tasks, rounded to hundredths."""
        return round(sum(task.points for task in self.tasks), 2)

    @property
    def possible(self) -> float:
        """Points that all checks can give."""
        return round(sum(task.possible for task in self.tasks), 2)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of the known mistakes, as ``task.mistake``."""
        found = (f"{task.name}.{check.mistake}" for task in self.tasks for check in task.checks if check.mistake)
        return tuple(dict.fromkeys(found))
