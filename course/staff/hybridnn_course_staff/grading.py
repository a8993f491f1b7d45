"""Grading of one submission: it is read, run in isolation, and compared case by case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from hybridnn_course.assignment import Variant
from hybridnn_course.carrier import Worker
from hybridnn_course.checks import check_task
from hybridnn_course.execution import MachineError
from hybridnn_course.isolation import TRUSTED
from hybridnn_course.outcome import Outcome, TaskOutcome
from hybridnn_course.submission import Submission, UngradableError
from hybridnn_course_staff.assignment import Assignment, Task
from hybridnn_course_staff.reading import read_in_time, variant_flags
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.term import Course

TRIES = 2  # of a submission, where the machine fails, each with a new worker


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time of a rank in one case, and of a whole submission."""

    case: float = 10.0
    submission: float = 120.0


@dataclass
class Grader:
    """Grades submissions of one assignment of a course; may be used by several threads.

    Parameters
    ----------
    isolation : str
        Of `choose_isolation`.
    """

    course: Course
    assignment: Assignment
    isolation: str
    limits: Limits = field(default_factory=Limits)
    _keys: dict[tuple[str, str], TaskKey] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def grade(self, data: bytes | Mapping[str, bytes], *, student: str = "") -> Outcome:
        """The outcome of a submission: a zip file, or files by name; without a grade where the machine fails twice.

        Parameters
        ----------
        student : str
            As a platform knows them; by default what the submission says.
        """
        for _ in range(TRIES):
            try:
                return self._grade(data, student)
            except MachineError as error:
                reason = str(error)
        return Outcome(**self._about(student), again=reason)

    def _about(self, student: str) -> dict[str, Any]:
        return {"assignment": self.assignment.id, "term": self.course.settings.term, "student": student}

    def _grade(self, data: bytes | Mapping[str, bytes], student: str) -> Outcome:
        about = self._about(student)
        try:
            with self._lock:  # Python before 3.11.8 and 3.12.2 cannot build two syntax trees at the same time
                submission = read_in_time(self.assignment, data, self.course.settings.modules)
        except UngradableError as error:
            return Outcome(**{**about, "student": student or error.student}, gradable=False, reason=str(error))
        about["student"] = student or submission.manifest.student
        variant = self.course.variant(self.assignment, about["student"])
        tasks = self._check(submission, variant, about["student"])
        outcome = Outcome(**about, variant=variant, tasks=tasks, flags=submission.flags)
        flags = [*([TRUSTED] if self.isolation == "none" else []), *submission.flags]
        if submission.manifest.variant != variant:
            flags.append("its assignment.toml names another variant than this course")
        flags += variant_flags(outcome.mistakes)
        flags += (flag for task in tasks for flag in task.flags)
        return outcome.model_copy(update={"flags": tuple(flags)})

    def _check(self, submission: Submission, variant: Variant, student: str) -> tuple[TaskOutcome, ...]:
        if not self.assignment.tasks:
            return ()
        modules = self.course.settings.modules
        with Worker(
            self.assignment, submission.files, isolation=self.isolation, limit=self.limits.case, modules=modules
        ) as worker:

            def is_over() -> bool:
                return worker.seconds > self.limits.submission

            return tuple(
                check_task(worker, self._key(task, variant, student), stop=is_over) for task in self.assignment.tasks
            )

    def _key(self, task: Task, variant: Variant, student: str) -> TaskKey:
        whose = student if self.course.settings.per_student else ""
        with self._lock:
            if (task.name, whose) not in self._keys:
                self._keys[task.name, whose] = TaskKey(self.assignment, task, variant, self.course.key, whose)
            return self._keys[task.name, whose]


def shown_outcome(outcome: Outcome, feedback: str) -> Outcome:
    """The outcome as a student may see it: without flags, and with ``"names"`` without messages and hints."""
    hidden = {"message": "", "hint": "", "mistake": ""} if feedback == "names" else {}
    tasks = tuple(
        task.model_copy(update={"checks": tuple(check.model_copy(update=hidden) for check in task.checks), "flags": ()})
        for task in outcome.tasks
    )
    return outcome.model_copy(update={"tasks": tasks, "flags": ()})
