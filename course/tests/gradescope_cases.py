"""Outcomes, packages and submissions for tests of Gradescope, and its results as it documents them."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hybridnn_course.outcome import CheckOutcome, Outcome, TaskOutcome
from hybridnn_course_staff.gradescope import build_package
from hybridnn_course_staff.handing_out import handed_out_files
from hybridnn_course_staff.term import Course
from hybridnn_course_staff.verify import right_submissions

RULES = "hybridnn==0.1.0"
"""What pip installs, so that packages of tests have no wheel."""

WRONG = CheckOutcome(
    name="10 samples",
    kind="public",
    points=1,
    possible=4,
    message="```\n<b>not</b> quoted\x1b[31m\x00",
    hint="Which number is the same on all ranks?",
    mistake="average-of-averages",
)
OUTCOME = Outcome(
    assignment="a2",
    term="Spring 2027",
    student="one@example.com",
    variant={"axis": "choice"},
    tasks=(
        TaskOutcome(
            name="gradient",
            checks=(
                CheckOutcome(name="one rank", kind="public", points=4, possible=4),
                WRONG,
                CheckOutcome(name="hidden case 1", kind="hidden", points=0, possible=6, message="wrong outputs"),
                CheckOutcome(name="virtual time", kind="budget", points=3, possible=4, ratio=1.25),
                CheckOutcome(name="digits", kind="whole", points=0, possible=2, not_tried=True),
            ),
        ),
        TaskOutcome(name="bounds", checks=(CheckOutcome(name="12 items", kind="public", points=80, possible=80),)),
    ),
    flags=("gradient.py imports ctypes",),
)


class _Documented(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class GradescopeTest(_Documented):
    score: float
    max_score: float
    status: Literal["passed", "failed"] | None = None
    name: str
    number: str
    output: str
    output_format: Literal["text", "html", "simple_format", "md", "ansi"] = "text"
    tags: list[str] = []
    visibility: Literal["hidden", "after_due_date", "after_published", "visible"] = "visible"


class GradescopeEntry(_Documented):
    name: str
    value: float | str
    order: Literal["asc", "desc"] = "desc"


class GradescopeResults(_Documented):
    """``results.json`` of Gradescope; of all that is documented, what the kit may write."""

    score: float | None = None
    output: str = ""
    output_format: Literal["text", "html", "simple_format", "md", "ansi"] = "text"
    stdout_visibility: Literal["hidden", "after_due_date", "after_published", "visible"] = "hidden"
    extra_data: dict[str, Any] = {}
    tests: list[GradescopeTest] = []
    leaderboard: list[GradescopeEntry] = []


def package_of(course: Course) -> bytes:
    """The package for A2."""
    return build_package(course, course.assignment("a2"), RULES)


def reference(course: Course) -> dict[str, str]:
    """A right submission, without imports of the kit: its solutions cannot be read where it runs."""
    assignment = course.assignment("a2")
    variant = course.variant(assignment)
    start = handed_out_files(course, assignment)
    right = next(right.files for right in right_submissions(assignment) if right.variant == variant)
    return {"assignment.toml": start["assignment.toml"].decode(), **right}


def unpack(course: Course, folder: Path) -> Path:
    """The package, unpacked with the modes of its files."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(package_of(course))) as opened:
        for entry in opened.infolist():
            os.chmod(opened.extract(entry, folder), entry.external_attr >> 16 & 0o777)
    return folder
