"""Grading platforms: packages to upload, and grading where a platform starts it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from hybridnn.course.assignment import Assignment
from hybridnn.course.grading import Grader, shown_outcome
from hybridnn.course.isolation import choose_isolation, missing_protection
from hybridnn.course.outcome import Outcome
from hybridnn.course.platforms.autolab import Autolab
from hybridnn.course.platforms.github import GitHub
from hybridnn.course.platforms.gradescope import Gradescope
from hybridnn.course.platforms.job import Autograder, Platform, read_files
from hybridnn.course.platforms.kit import COURSE, Instructions, Kit, Package
from hybridnn.course.platforms.prairielearn import PrairieLearn
from hybridnn.course.submission import UngradableError
from hybridnn.course.term import Course
from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_choice

__all__ = ["AUTOGRADERS", "PLATFORMS", "Kit", "Package", "autograde", "build_package"]

AUTOGRADERS: Mapping[str, Autograder] = {
    platform.name: platform for platform in (Gradescope(), Autolab(), PrairieLearn())
}
"""Platforms that start the grader."""

PLATFORMS: Mapping[str, Platform] = {**AUTOGRADERS, "github": GitHub()}

Grade = Callable[[Course, Assignment, "bytes | Mapping[str, bytes]", str], Outcome]


def build_package(platform: str, kit: Kit) -> Package:
    """The file that an instructor uploads to a platform."""
    require_choice("--for", platform, PLATFORMS)
    return PLATFORMS[platform].package(kit)


def autograde(
    platform: str,
    root: Path | None = None,
    *,
    isolation: str = "user",
    out: TextIO | None = None,
    grade: Grade | None = None,
) -> Outcome:
    """Grade the submission that a platform put in its place, and write the results where it reads them.

    The results are written once, after all processes of the submission have ended. Until then, they say that grading
    did not finish.

    Parameters
    ----------
    root : Path, optional
        Root of the platform's folders; on Autolab, the folder of the job, by default the current one.
    isolation : str
        Of `choose_isolation`. With users of their own, submissions cannot read the key of the term, which is beside
        them on a platform.
    out : file, optional
        Log of the job; by default the standard output.
    grade : callable, optional
        ``grade(course, assignment, data, student)`` grades a submission; by default by `Grader`.

    Raises
    ------
    DataError
        If the folders are not those of the platform.
    """
    if platform in PLATFORMS and platform not in AUTOGRADERS:
        reason = "its workflow runs `hybridnn course check`; hidden cases need the key, which students could read there"
        raise SettingError("--platform", platform, ", ".join(AUTOGRADERS), f"--platform {platform}: {reason}")
    require_choice("--platform", platform, AUTOGRADERS)
    found = AUTOGRADERS[platform]
    job = found.job(found.default_root if root is None else root)
    job.close()
    found.begin(job)
    instructions = Instructions.read(job.package, platform)
    course = Course.open(job.package / COURSE)
    assignment = course.assignment(instructions.assignment)
    if course.settings.per_student and not job.student:
        raise DataError(f"{job.root}: nothing says who the student is; every student of this course has a variant")
    try:
        data = read_files(assignment, job.submission)
    except UngradableError as error:
        outcome = Outcome(
            assignment=assignment.id,
            term=course.settings.term,
            student=job.student,
            gradable=False,
            reason=str(error),
        )
    else:
        if grade is None:
            chosen = choose_isolation(isolation)
            outcome = Grader(course, assignment, chosen).grade(data, student=job.student)
            if missing := missing_protection(chosen):
                outcome = outcome.model_copy(update={"flags": (*outcome.flags, missing)})
        else:
            outcome = grade(course, assignment, data, job.student)
    shown = shown_outcome(outcome, course.settings.feedback)
    found.finish(job, instructions, outcome, shown, sys.stdout if out is None else out)
    return outcome
