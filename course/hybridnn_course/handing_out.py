"""What is handed out: zip files for the students of a roster."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hybridnn.errors import DataError, one_line
from hybridnn.utils.files import make_folder, read_text, write_atomically
from hybridnn_course.assignment import Assignment
from hybridnn_course.term import Course
from hybridnn_course.work_folder import STUDENT_CHARACTERS, digest_of, handed_out_files, make_archive

MOST_CHARACTERS = 60  # of a student in the name of a file: at most 240 bytes


def make_student_archives(course: Course, assignment: Assignment, students: Sequence[str], out: Path) -> list[Path]:
    """Write the zip file that students get: one for all (the student ``""``), or one for each of them."""
    make_folder(out)
    taken = Counter(_file_name(student).casefold() for student in students)
    paths = []
    for student in students:
        name = f"{assignment.id}.zip"
        if student:
            own = _file_name(student)
            digest = f"-{digest_of(student.encode())[:6]}" if taken[own.casefold()] > 1 else ""
            name = f"{assignment.id}-{own}{digest}.zip"
        write_atomically(out / name, make_archive(handed_out_files(course, assignment, student)))
        paths.append(out / name)
    return paths


def _file_name(student: str) -> str:
    """The beginning of a name, as file systems allow it; names of several students may have the same."""
    return re.sub(r"[^\w.@+-]", "_", student)[:MOST_CHARACTERS]


def read_roster(path: Path) -> list[str]:
    """The column ``student`` of a CSV file; `DataError` where a name is missing, too long, or there twice."""
    try:
        rows = list(csv.DictReader(read_text(path, 1 << 24).removeprefix("\ufeff").splitlines()))
    except csv.Error as error:
        raise DataError(f"{path}: is not a table: {error}") from None
    names = [(row.get("student") or "").strip() for row in rows]
    if not names or not all(names):
        raise DataError(f"{path}: needs a column student, separated by commas, with a name in every row")
    for name in names:
        if len(name) > STUDENT_CHARACTERS:
            raise DataError(f"{path}: {one_line(name)}: a name has at most {STUDENT_CHARACTERS} characters")
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{path}: {one_line(twice)}: is there twice")
    return names
