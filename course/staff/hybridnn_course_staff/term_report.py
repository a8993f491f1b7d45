"""The table of a term: points of all assignments by student, after late days, and tables for learning platforms."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hybridnn.errors import DataError
from hybridnn.utils.files import read_text
from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.regrading import read_outcomes
from hybridnn_course_staff.reports import GRADES, plain_cell, table_text
from hybridnn_course_staff.term import SETTINGS, AssignmentSettings, Course

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
"""Columns by which Canvas recognizes students; those of a gradebook that it has exported are kept."""

POSSIBLE = "Points Possible"  # instead of a student, in a row


@dataclass(frozen=True)
class Entry:
    """What a student has for an assignment.

    Attributes
    ----------
    submission : str
        The one that counts: the last one of the student or of the group; empty without one.
    given : float
        Points of the checks and the rubric.
    late : int
        Days after the student's date, rounded up.
    free : int
        How many of them were free.
    points : float
        What is left of `given`.
    """

    submission: str = ""
    given: float = 0.0
    late: int = 0
    free: int = 0
    points: float = 0.0


@dataclass(frozen=True)
class _Graded:
    submission: str
    student: str
    points: float
    received: datetime


@dataclass(frozen=True)
class Gradebook:
    """The rows of a gradebook that Canvas has exported; none without one.

    Raises
    ------
    DataError
        If the rows are not those of a gradebook.
    """

    rows: Sequence[Mapping[str, str]] = ()

    def __post_init__(self) -> None:
        if self.rows and not {"Student", "SIS Login ID"} <= self.rows[0].keys():
            raise DataError("the gradebook of Canvas has no columns Student and SIS Login ID")

    def students(self) -> dict[str, Mapping[str, str]]:
        """The row of each student, by login."""
        return {row["SIS Login ID"]: row for row in self.rows if row["SIS Login ID"]}

    def column(self, title: str) -> str | None:
        """The name of an assignment, to which Canvas adds a number."""
        return next((name for name in (self.rows[0] if self.rows else ()) if name.startswith(title)), None)

    def possible(self, title: str) -> float:
        """The points that an assignment has in Canvas."""
        row = next((row for row in self.rows if row["Student"].strip() == POSSIBLE), {})
        try:
            return float(row.get(self.column(title) or "", ""))
        except ValueError:
            return 100.0


@dataclass(frozen=True)
class TermReport:
    """Entries of all students, by assignment in the order of their dates."""

    assignments: tuple[Assignment, ...]
    weights: Mapping[str, float]
    entries: Mapping[str, Mapping[str, Entry]]

    def total(self, student: str) -> float:
        """Weighted mean of the points of all assignments."""
        weight = sum(self.weights.values())
        points = sum(self.weights[name] * entry.points for name, entry in self.entries[student].items())
        return points / weight if weight else 0.0

    def late_days(self, student: str) -> int:
        """Free late days that a student has used."""
        return sum(entry.free for entry in self.entries[student].values())

    def table(self) -> str:
        """A line for each student, as CSV."""
        names = [one.id for one in self.assignments]
        titles = ["student", *(f"{name} {what}" for name in names for what in ("points", "late", "submission"))]
        rows = [
            [
                student,
                *(part for name in names for part in _cells(self.entries[student][name])),
                self.late_days(student),
                round(self.total(student), 2),
            ]
            for student in self.entries
        ]
        return table_text([[*titles, "free days used", "total"], *rows])

    def moodle(self) -> str:
        """Points by student for Moodle's import of grades, where columns are assigned by hand."""
        rows = [[student, *self._points(student), round(self.total(student), 2)] for student in self.entries]
        return table_text([["student", *(one.title for one in self.assignments), "total"], *rows])

    def canvas(self, gradebook: Gradebook) -> str:
        """Points by student for Canvas's import; those of a gradebook keep its names, and the points that it gives."""
        titles = [one.title for one in self.assignments]
        students = gradebook.students() or {student: {"SIS Login ID": student} for student in self.entries}
        rows = [
            [
                *(row.get(name, "") or (student if name == "Student" else "") for name in CANVAS),
                *(
                    round(points * gradebook.possible(title) / 100, 2)
                    for title, points in zip(titles, self._points(student), strict=True)
                ),
            ]
            for student, row in students.items()
            if student in self.entries
        ]
        return table_text([[*CANVAS, *(gradebook.column(title) or title for title in titles)], *rows])

    def not_in(self, gradebook: Gradebook) -> list[str]:
        """What a gradebook lacks, as lines."""
        if not gradebook.rows:
            return []
        students = [student for student in self.entries if student not in gradebook.students()]
        columns = [one.title for one in self.assignments if gradebook.column(one.title) is None]
        return [
            *([f"has no student with the login {', '.join(students)}: left out of canvas.csv"] if students else []),
            *(f"has no column {title}: Canvas will make a new assignment" for title in columns),
        ]

    def _points(self, student: str) -> list[float]:
        return [round(self.entries[student][one.id].points, 2) for one in self.assignments]


def _cells(entry: Entry) -> tuple[object, ...]:
    return round(entry.points, 2), entry.late, entry.submission


def term_report(course: Course, folders: Sequence[Path], students: Sequence[str] = ()) -> TermReport:
    """The table of a term.

    Parameters
    ----------
    folders : sequence of Path
        Folders of grades, one for each assignment.
    students : sequence of str, optional
        Who has to hand in; by default all who did.

    Raises
    ------
    DataError
        If a folder has no grades, or one is missing, or two have those of one assignment.
    """
    graded: dict[str, list[_Graded]] = {}
    for folder in folders:
        outcomes = read_outcomes(folder)
        if again := [name for name, outcome in outcomes.items() if outcome.again]:
            raise DataError(f"{folder}: {again[0]} is to be graded again: call `hybridnn course grade` first")
        name = next(iter(outcomes.values())).assignment
        if name in graded:
            raise DataError(f"{folder}: has the grades of {name}, as another folder")
        graded[name] = _read_grades(folder / GRADES)
    settings = {name: course.settings.assignments.get(name, AssignmentSettings()) for name in graded}
    for name, about in settings.items():
        named = {*about.extensions, *(one for group in about.groups for one in group)}
        if students and (unknown := sorted(named.difference(students))):
            raise DataError(f"{course.folder / SETTINGS}: assignments.{name}: {unknown[0]} is not on the roster")
    in_order = sorted(graded, key=lambda name: (_timestamp(settings[name].due), name))
    found = {item.student for rows in graded.values() for item in rows if item.student}
    found |= {one for about in settings.values() for group in about.groups for one in group}
    entries: dict[str, dict[str, Entry]] = {}
    for student in students or sorted(found):
        left = course.settings.late_days
        entries[student] = {}
        for name in in_order:
            entry = _entry(graded[name], settings[name], student, left, course.settings.late_loss)
            left -= entry.free
            entries[student][name] = entry
    weights = {name: settings[name].weight for name in in_order}
    return TermReport(tuple(map(course.assignment, in_order)), weights, entries)


def _entry(rows: Sequence[_Graded], settings: AssignmentSettings, student: str, left: int, loss: float) -> Entry:
    group = settings.group_of(student)
    own = [row for row in rows if row.student in group]
    if not own:
        return Entry()
    last = max(own, key=lambda row: row.received)
    late = settings.days_late(student, last.received)
    free = min(late, left)
    return Entry(last.submission, last.points, late, free, last.points * max(0.0, 1 - loss * (late - free)))


def _timestamp(date: datetime | None) -> float:
    return math.inf if date is None else date.timestamp()


def _read_grades(path: Path) -> list[_Graded]:
    """The submissions of a table of grades that could be graded."""
    rows = csv.DictReader(io.StringIO(read_text(path, 1 << 26)))
    try:
        return [
            _Graded(
                plain_cell(row["submission"]),
                plain_cell(row["student"]),
                float(row["points"]),
                datetime.fromisoformat(row["received"]),
            )
            for row in rows
            if row["gradable"] == "yes"
        ]
    except (KeyError, ValueError):
        raise DataError(f"{path}: is not a table of `hybridnn course grade`") from None
