"""Submissions made from the kit's own functions, and courses for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tomli_w

from hybridnn_course.assignment import Variant
from hybridnn_course.work_folder import MANIFEST, Manifest, make_archive
from hybridnn_course_staff.assignment import Assignment, Mistake, load_assignment
from hybridnn_course_staff.handing_out import start_files, start_texts
from hybridnn_course_staff.term import SETTINGS, Course, create_course

__all__ = [
    *("KIT", "allow_kit", "blank_files", "course_of", "course_with", "handed_out", "reference_files", "submission_zip"),
    "wrong_files",
]

KIT = "hybridnn_course_staff.assignment"
"""Module that made submissions import, and courses of tests therefore allow."""

ANY = f"""\
from {KIT} import load_assignment
_assignment, _variant = load_assignment({{id!r}}), {{variant!r}}
"""


def course_of(folder: Path, *names: str, **options: object) -> Course:
    """A course with the standard variants, which allows the module that made submissions import."""
    create_course(folder, "Test term", names, **options)  # type: ignore[arg-type]
    return _changed(folder, variants={name: load_assignment(name).standard for name in names}, modules=[KIT])


def allow_kit(folder: Path, *modules: str) -> Course:
    """The course of a folder, changed so that it allows the module that made submissions import, and others."""
    return _changed(folder, modules=[KIT, *modules])


def course_with(folder: Path, assignment: Assignment, variant: Variant) -> Course:
    """A course with one assignment in a variant, which allows no further modules."""
    create_course(folder, "Test term", [assignment.id])
    return _changed(folder, variants={assignment.id: dict(variant)})


def _changed(folder: Path, **tables: object) -> Course:
    settings = Course.open(folder).settings.model_dump(exclude={"assignments"})
    (folder / SETTINGS).write_text(tomli_w.dumps({**settings, **tables}))
    return Course.open(folder)


def reference_files(assignment: Assignment, variant: Variant) -> dict[str, str]:
    """Code files with the reference solution of every task."""
    return wrong_files(assignment, variant, {})


def wrong_files(
    assignment: Assignment, variant: Variant, mistakes: Mapping[str, Mistake], note: str = ""
) -> dict[str, str]:
    """Code files with the mistakes of some tasks, by task, and the reference solution of all others."""
    files = {name: f"{note}{ANY.format(id=assignment.id, variant=dict(variant))}" for name in assignment.files}
    for task in assignment.tasks:
        made = f"_assignment.task({task.name!r}).solution(_variant)"
        if task.name in mistakes:
            name = mistakes[task.name].name
            made = f"next(m for m in _assignment.task({task.name!r}).mistakes if m.name == {name!r}).function(_variant)"
        files[task.file] += f"{task.function} = {made}\n"
    return files


def blank_files(assignment: Assignment, variant: Variant) -> dict[str, str]:
    """Every file as students get it."""
    return start_texts(assignment, Manifest(assignment=assignment.id, variant=dict(variant)))


def handed_out(name: str, folder: Path) -> str:
    """The path of the zip file of an assignment in the standard variant, written to a folder."""
    assignment = load_assignment(name)
    path = folder / f"{name}.zip"
    files = start_files(assignment, Manifest(assignment=name, variant=assignment.standard))
    path.write_bytes(make_archive(files))
    return str(path)


def submission_zip(
    assignment: Assignment, variant: Variant, files: Mapping[str, str | bytes], student: str = ""
) -> bytes:
    """A submission; files that are not given are those that students get."""
    start = blank_files(assignment, variant)
    manifest = start_texts(assignment, Manifest(assignment=assignment.id, variant=dict(variant), student=student))
    names = (*assignment.files, *assignment.texts)
    return make_archive({MANIFEST: manifest[MANIFEST], **{name: files.get(name, start[name]) for name in names}})
