"""What is handed out: zip files for the students of a roster."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import tomli_w

from hybridnn.errors import DataError, one_line
from hybridnn.utils.files import read_text, write_atomically
from hybridnn_course.case_file import CASES, CaseFile
from hybridnn_course.work_folder import (
    HANDOUT,
    MANIFEST,
    STUDENT_CHARACTERS,
    Manifest,
    digest_of,
    make_archive,
    make_folder,
)
from hybridnn_course_staff.assignment import Assignment, load_assignment
from hybridnn_course_staff.handout import AI_POLICY, render_handout
from hybridnn_course_staff.stubs import stub_file
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.term import Course

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


def handed_out_files(course: Course, assignment: Assignment, student: str = "") -> dict[str, bytes]:
    """The files that a student of a course gets; without a name, those that every student gets."""
    manifest = Manifest(
        assignment=assignment.id,
        term=course.settings.term,
        student=student,
        feedback=course.settings.feedback,
        modules=course.settings.modules,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        variant=course.variant(assignment, student),
    )
    return start_files(assignment, manifest, course.ai_policy, course.key)


def start_files(
    assignment: Assignment, manifest: Manifest, ai_policy: str = AI_POLICY, key: bytes = b""
) -> dict[str, bytes]:
    """The files of an assignment for a student; the key of the term salts the answers of known mistakes."""
    files = {name: text.encode() for name, text in start_texts(assignment, manifest, ai_policy).items()}
    return {**files, CASES: _cases(assignment.id, tuple(manifest.variant.items()), key)}


def start_texts(assignment: Assignment, manifest: Manifest, ai_policy: str = AI_POLICY) -> dict[str, str]:
    """Those of them that are texts: all but the cases."""
    variant = manifest.variant
    return {
        MANIFEST: tomli_w.dumps(manifest.model_dump()),
        HANDOUT: render_handout(assignment, variant, ai_policy, manifest.modules),
        **{name: stub_file(assignment, name, variant) for name in assignment.files},
        **{name: assignment.template(name) for name in assignment.texts},
    }


@lru_cache(maxsize=256)  # students with the same variant get the same file
def _cases(name: str, choices: tuple[tuple[str, str], ...], key: bytes) -> bytes:
    assignment, variant = load_assignment(name), dict(choices)
    keys = {task.name: TaskKey(assignment, task, variant, salt=key) for task in assignment.tasks}
    templates = {text: assignment.template(text) for text in assignment.texts}
    return CaseFile(assignment, variant, keys, templates).pack()


def _file_name(student: str) -> str:
    """The beginning of a name, as file systems allow it; names of several students may have the same."""
    return re.sub(r"[^\w.@+-]", "_", student)[:MOST_CHARACTERS]


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with titles; `DataError` if it is none."""
    try:
        return list(csv.DictReader(read_text(path, 1 << 24).removeprefix("\ufeff").splitlines()))
    except csv.Error as error:
        raise DataError(f"{path}: is not a table: {error}") from None


def read_roster(path: Path) -> list[str]:
    """The column ``student`` of a CSV file; `DataError` where a name is missing, too long, or there twice."""
    rows = read_table(path)
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
