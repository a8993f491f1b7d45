"""The table of a term: points of all assignments by student, after late days, and tables for learning platforms."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from hybridnn.errors import DataError
from hybridnn.utils.files import read_text
from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.regrading import read_outcomes
from hybridnn_course_staff.reports import GRADES, safe_cell
from hybridnn_course_staff.term import AssignmentSettings, Course

DAY = timedelta(days=1)
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
"""Columns by which Canvas recognizes students; those of a gradebook that it has exported are kept."""


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
        return _csv([[*titles, "late days used", "total"], *rows])

    def moodle(self) -> str:
        """Points by student for Moodle's import of grades, where columns are assigned by hand."""
        rows = [[student, *self._points(student), round(self.total(student), 2)] for student in self.entries]
        return _csv([["student", *(one.title for one in self.assignments), "total"], *rows])

    def canvas(self, gradebook: Sequence[Mapping[str, str]] = ()) -> str:
        """Points by student for Canvas's import into the gradebook.

        Parameters
        ----------
        gradebook : sequence of mapping, optional
            Rows of the gradebook that Canvas has exported: its students and its names of the assignments are kept, so
            that Canvas recognizes both. Without it, a student is a login.
        """
        known = gradebook[0].keys() if gradebook else ()
        columns = [
            next((title for title in known if title.startswith(one.title)), one.title) for one in self.assignments
        ]
        given = [row for row in gradebook if _login(row) in self.entries]
        rows = given or [{"Student": student, "SIS Login ID": student} for student in self.entries]
        cells = [[*(row.get(name, "") for name in CANVAS), *self._points(_login(row))] for row in rows]
        return _csv([[*CANVAS, *columns], *cells])

    def _points(self, student: str) -> list[float]:
        return [round(self.entries[student][one.id].points, 2) for one in self.assignments]


def _login(row: Mapping[str, str]) -> str:
    return row.get("SIS Login ID", "") or row.get("Student", "")


def _cells(entry: Entry) -> tuple[object, ...]:
    return round(entry.points, 2), entry.late, entry.submission


def _csv(rows: Iterable[Iterable[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([safe_cell(cell) for cell in row] for row in rows)
    return stream.getvalue()


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
        If a folder has no grades, or two have those of one assignment.
    """
    graded: dict[str, list[_Graded]] = {}
    for folder in folders:
        name = next(iter(read_outcomes(folder).values())).assignment
        if name in graded:
            raise DataError(f"{folder}: has the grades of {name}, as another folder")
        graded[name] = _read_grades(folder / GRADES)
    settings = {name: course.settings.assignments.get(name, AssignmentSettings()) for name in graded}
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
    group = next((group for group in settings.groups if student in group), (student,))
    own = [row for row in rows if row.student in group]
    if not own:
        return Entry()
    last = max(own, key=lambda row: row.received)
    dates = [settings.extensions.get(one, settings.due) for one in group]
    due = max((date.astimezone() for date in dates if date is not None), default=last.received)
    late = max(0, math.ceil((last.received - due) / DAY))
    free = min(late, left)
    return Entry(last.submission, last.points, late, free, last.points * max(0.0, 1 - loss * (late - free)))


def _timestamp(date: datetime | None) -> float:
    return math.inf if date is None else date.timestamp()


def _read_grades(path: Path) -> list[_Graded]:
    """The submissions of a table of grades that could be graded."""
    rows = csv.DictReader(io.StringIO(read_text(path, 1 << 26)))
    try:
        return [
            _Graded(row["submission"], row["student"], float(row["points"]), datetime.fromisoformat(row["received"]))
            for row in rows
            if row["gradable"] == "yes"
        ]
    except (KeyError, ValueError):
        raise DataError(f"{path}: is not a table of `hybridnn course grade`") from None
