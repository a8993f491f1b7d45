"""Submissions made from the kit's own functions, and courses for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hybridnn.course.assignment import Assignment, Mistake, Variant
from hybridnn.course.term import Course, create_course
from hybridnn.course.work_folder import MANIFEST, Manifest, make_archive, start_files

__all__ = ["blank_files", "course_of", "reference_files", "submission_zip", "wrong_files"]

ANY = """\
load_assignment = __import__("hybridnn.course.assignment", fromlist=["load_assignment"]).load_assignment
_assignment, _variant = load_assignment({id!r}), {variant!r}
"""


def course_of(folder: Path, *names: str, **options: object) -> Course:
    """A course with the standard variants."""
    course = create_course(folder, "Test term", names, **options)  # type: ignore[arg-type]
    path = folder / "course.toml"
    import tomli_w

    from hybridnn.course.assignment import load_assignment

    tables = course.settings.model_dump()
    tables["variants"] = {name: load_assignment(name).standard for name in names}
    path.write_text(tomli_w.dumps(tables))
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
    return start_files(assignment, Manifest(assignment=assignment.id, variant=dict(variant)))


def submission_zip(
    assignment: Assignment, variant: Variant, files: Mapping[str, str | bytes], student: str = ""
) -> bytes:
    """A submission; files that are not given are those that students get."""
    start = blank_files(assignment, variant)
    manifest = start_files(assignment, Manifest(assignment=assignment.id, variant=dict(variant), student=student))
    names = (*assignment.files, *assignment.texts)
    return make_archive({MANIFEST: manifest[MANIFEST], **{name: files.get(name, start[name]) for name in names}})
