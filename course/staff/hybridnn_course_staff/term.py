"""A term's course: a folder with ``course.toml``, the key of the term and the text of the AI policy.

Hidden cases and the variants of students are drawn from the key: whoever has it can make and grade everything again.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.files import FileError, read_bytes, read_text, read_toml
from hybridnn.utils.settings_models import first_problem
from hybridnn_course.work_folder import Feedback, make_folder
from hybridnn_course_staff.assignment import Assignment, load_assignment
from hybridnn_course_staff.handout import AI_POLICY

SETTINGS, KEY, POLICY = "course.toml", "term.key", "ai-policy.md"
KEY_BYTES = 16
HEAD = """\
# Each student may be late by late_days in the term; every further day costs the share late_loss of an assignment.
# Assignments may have weights, dates, later ones for some students, and groups that hand in together:
# [assignments.a2]
# weight = 1
# due = 2026-11-02T23:59:00
# extensions = { ada = 2026-11-05T23:59:00 }
# groups = [["ben", "eva"]]

"""


def _moment(value: object) -> object:
    """A date as its last second: who is told a day may use all of it."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, time(23, 59, 59))
    if not isinstance(value, datetime):
        raise PydanticCustomError("date", "must be a date and a time, without quotes, such as 2026-11-02T23:59:00")
    return value


Moment = Annotated[datetime, BeforeValidator(_moment)]


class AssignmentSettings(BaseModel):
    """What a course says about an assignment.

    Attributes
    ----------
    weight : float
        In the points of the term.
    due : datetime, optional
        Without an offset, in the time zone of the computer that makes the report; of a date alone its end.
    extensions : dict
        Later dates, by student.
    groups : tuple of tuple of str
        Students who hand in together: a submission of one of them is that of all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(default=1.0, ge=0)
    due: Moment | None = None
    extensions: dict[str, Moment] = {}
    groups: tuple[tuple[str, ...], ...] = ()

    @field_validator("groups")
    @classmethod
    def _are_disjoint(cls, groups: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        names = [name for group in groups for name in group]
        if len(set(names)) < len(names) or any(len(group) < 2 for group in groups):
            raise PydanticCustomError("groups", "must be lists of two or more students, each of them in one list only")
        return groups

    def group_of(self, student: str) -> tuple[str, ...]:
        """Those whose submission is that of a student."""
        return next((group for group in self.groups if student in group), (student,))

    def days_late(self, student: str, received: datetime) -> int:
        """Days after the latest date of those who hand in with a student, rounded up; 0 without a date."""
        dates = [self.extensions.get(one, self.due) for one in self.group_of(student)]
        due = max((date.astimezone() for date in dates if date is not None), default=received)
        return max(0, math.ceil((received - due) / timedelta(days=1)))


class CourseSettings(BaseModel):
    """Content of ``course.toml``.

    Submissions may import `modules`, such as ``pandas``, besides those of Python, NumPy and SciPy. Each student may be
    late by `late_days` in the whole term; every further day costs the share `late_loss` of the points of an assignment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    term: str = Field(min_length=1, max_length=80)
    feedback: Feedback = "hints"
    per_student: bool = False
    modules: tuple[str, ...] = ()
    late_days: int = Field(default=0, ge=0)
    late_loss: float = Field(default=1.0, ge=0, le=1)
    assignments: dict[str, AssignmentSettings] = {}
    variants: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Course:
    """A term's course.

    Attributes
    ----------
    settings : CourseSettings
    key : bytes
    ai_policy : str
        Section of every handout.
    """

    folder: Path
    settings: CourseSettings
    key: bytes
    ai_policy: str

    @classmethod
    def open(cls, folder: Path) -> Course:
        """Read a course; `DataError` if its settings or its key cannot be used."""
        try:
            tables = read_toml(folder / SETTINGS)
        except FileError as error:
            if not error.is_missing:
                raise
            how = "`course new` makes the folder of a course, and --course names it"
            raise DataError(f"{folder / SETTINGS}: no such file; {how}") from None
        try:
            settings = CourseSettings.model_validate(tables)
        except ValidationError as error:
            raise DataError(f"{folder / SETTINGS}: {first_problem(error)}") from None
        try:
            for name, variant in settings.variants.items():
                load_assignment(name).require_variant(variant)
        except SettingError as error:
            raise DataError(f"{folder / SETTINGS}: {error}") from None
        if unknown := sorted(settings.assignments.keys() - settings.variants.keys()):
            known = ", ".join(settings.variants)
            raise DataError(f"{folder / SETTINGS}: assignments.{unknown[0]}: this course has {known}")
        try:
            key = bytes.fromhex(read_bytes(folder / KEY, 1024).decode("ascii").strip())
        except FileError as error:
            if not error.is_missing:
                raise
            raise DataError(f"{folder / KEY}: no such file; grading needs the key that `course new` wrote") from None
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise DataError(f"{folder / KEY}: is not a key of {KEY_BYTES} bytes in hexadecimal digits")
        policy = folder / POLICY
        return cls(folder, settings, key, read_text(policy, 1 << 20) if policy.exists() else AI_POLICY)

    @cached_property
    def assignments(self) -> tuple[str, ...]:
        """Assignments of the term."""
        return tuple(self.settings.variants)

    def assignment(self, name: str) -> Assignment:
        """An assignment of the term; `SettingError` if it has none of this name."""
        if name not in self.settings.variants:
            raise SettingError("assignment", name, f"this course has {', '.join(self.assignments)}")
        return load_assignment(name)

    def variant(self, assignment: Assignment, student: str = "") -> dict[str, str]:
        """The variant of the term, or where every student has one of their own, of a student."""
        if not (self.settings.per_student and student):
            return self.settings.variants[assignment.id]
        drawn = Random(hmac.new(self.key, f"{assignment.id}|{student}".encode(), hashlib.sha256).digest())
        return {axis: drawn.choice(list(choices)) for axis, choices in assignment.axes.items()}

    def digest(self) -> str:
        """Digest of the key and the settings, which reveals neither."""
        of_term = {"late_days", "late_loss", "assignments"}  # which change no outcome
        text = self.settings.model_dump_json(exclude=of_term).encode()
        return hmac.new(self.key, text, hashlib.sha256).hexdigest()[:16]


def _new_choices(choices: Collection[str], previous: str | None) -> list[str]:
    """Choices of an axis for a new term: another one than before, and if possible not what the library does."""
    library, *others = (choice for choice in choices)
    return [choice for choice in others if choice != previous] or [library]


def create_course(
    folder: Path, term: str, assignments: Sequence[str], *, previous: Path | None = None, per_student: bool = False
) -> Course:
    """Write the folder of a new course.

    Parameters
    ----------
    assignments : sequence of str
    previous : Path, optional
        Course of an earlier term: every axis gets another choice than it had there.

    Raises
    ------
    DataError
        If there is a course already.
    """
    if (folder / SETTINGS).exists() or (folder / KEY).exists():
        raise DataError(f"{folder}: there is a course already")
    old: Mapping[str, Mapping[str, str]] = {} if previous is None else Course.open(previous).settings.variants
    key = secrets.token_bytes(KEY_BYTES)
    variants = {}
    for name in dict.fromkeys(assignments):
        assignment = load_assignment(name)
        drawn = Random(key + name.encode())
        variants[name] = {
            axis: drawn.choice(_new_choices(choices, old.get(name, {}).get(axis)))
            for axis, choices in assignment.axes.items()
        }
    try:
        settings = CourseSettings(term=term, variants=variants, per_student=per_student)
    except ValidationError as error:
        raise SettingError("--term", term, first_problem(error)) from None
    make_folder(folder)
    text = HEAD + tomli_w.dumps(settings.model_dump(exclude={"assignments"}))
    (folder / SETTINGS).write_text(text, encoding="utf-8")
    (folder / POLICY).write_text(AI_POLICY + "\n", encoding="utf-8")
    descriptor = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(key.hex() + "\n")
    return Course.open(folder)
