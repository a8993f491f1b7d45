"""`hybridnn course grade | report | export | …`: what an assistant, or Gradescope, does with submissions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hybridnn.cli.options import count, option
from hybridnn.cli.output import make_console, new_table
from hybridnn.utils.text import counted, shown_path
from hybridnn_course_staff.cli.lecturer import HERE, CourseFolder

if TYPE_CHECKING:
    from hybridnn_course_staff.batch import Graded
    from hybridnn_course_staff.grading import Grader

AssignmentName = Annotated[str, typer.Argument(help="An assignment of the course.", metavar="A")]
Submissions = Annotated[Path, typer.Argument(help="A folder of zip files.", metavar="SUBMISSIONS")]
Out = Annotated[Path, option("Folder of the grades.", "FOLDER", "--out")]
Isolation = Annotated[
    str,
    option("Isolation of submissions: auto, bwrap, or user (root in a container).", "MODE", "--isolation"),
]
Roster = Annotated[
    Path | None,
    option(
        "CSV file with a column student: who has to hand in, and who may be named (default: nobody is missed or "
        "refused).",
        "FILE",
        "--roster",
    ),
]
T = TypeVar("T")
GRADES, TERM, EXPORT, GRADESCOPE = Path("grades"), Path("term"), Path("export"), Path("/")


def grade(
    assignment: AssignmentName,
    submissions: Submissions,
    course: CourseFolder = HERE,
    out: Out = GRADES,
    roster: Roster = None,
    received: Annotated[
        Path | None,
        option(
            "CSV file with columns submission and received: when they were handed in (default: when each zip file was "
            "changed).",
            "FILE",
            "--received",
        ),
    ] = None,
    names: Annotated[
        Path | None,
        option(
            "CSV file with columns submission and student, of the learning platform (default: whom each submission "
            "names).",
            "FILE",
            "--names",
        ),
    ] = None,
    jobs: Annotated[int, count("Submissions graded at the same time.", "--jobs")] = 1,
    isolation: Isolation = "auto",
    trusted: Annotated[
        bool,
        typer.Option("--trust-submissions", help="Isolate nothing: run submissions with your rights, and say so."),
    ] = False,
    case_seconds: Annotated[
        float, option("Processor time that a rank has for a case.", "S", "--case-seconds", least=0.1)
    ] = 10.0,
) -> None:
    """Grade a folder of submissions; what is graded already is kept, and the points of a rubric are added.

    Exit code 1 where the machine failed, so that submissions are to be graded again.
    """
    from hybridnn.errors import SettingError
    from hybridnn_course.isolation import TRUSTED, close_to_others
    from hybridnn_course_staff.batch import (
        find_submissions,
        grade_folder,
        other_files,
        read_names,
        read_times,
        times_received,
    )

    if isolation == "none":
        raise SettingError("--isolation", isolation, "--trust-submissions runs submissions without isolation")
    grader = _grader(course, assignment, "none" if trusted else isolation, case_seconds)
    console, progress = make_console(), Progress()
    students = _students(roster)
    find_submissions(submissions)
    times = {**times_received(submissions), **_stored(read_times, received, out / "received.csv", submissions)}
    whose = _stored(read_names, names, out / "names.csv", submissions)
    for folder in (submissions, course) if grader.isolation == "user" else ():
        close_to_others(folder)
    if grader.isolation == "none":
        console.print(TRUSTED, style="yellow", soft_wrap=True)
    if grader.isolation == "user" and jobs > 1:
        raise SettingError("--jobs", jobs, "with users as isolation, a container holds one submission at a time")
    graded = grade_folder(grader, submissions, out, jobs=jobs, students=whose, begun=progress.begin, told=progress.tell)
    _write_reports(grader, graded, out, students, times)
    if others := other_files(submissions):
        console.print(f"not graded, as they are no zip files: {', '.join(map(shown_path, others))}")
    if again := sum(bool(item.outcome.again) for item in graded):
        console.print(f"{counted(again, 'submission')} to be graded again, by the same command", soft_wrap=True)
        raise typer.Exit(1)


class Progress:
    """Prints what is graded, and from time to time how much is left."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._console, self._seconds = make_console(), seconds

    def begin(self, kept: int, new: int) -> None:
        """Say how many outcomes are kept."""
        self._all, self._done, self._start = new, 0, time.monotonic()
        self._told = self._start
        if kept:
            self._console.print(f"{kept} of {kept + new} kept from before: nothing that decides has changed")

    def tell(self, graded: Graded) -> None:
        """Print one line of an outcome."""
        outcome, now = graded.outcome, time.monotonic()
        points = f"{outcome.points:g}" if outcome.tasks else "received"
        refused = f"{'' if outcome.again else 'not gradable: '}{outcome.ungraded}"
        result = refused if outcome.ungraded else points
        self._console.print(f"{shown_path(graded.name)}: {result}", soft_wrap=True)
        self._done += 1
        if now - self._told >= self._seconds and self._done < self._all:
            left = (now - self._start) / self._done * (self._all - self._done)
            minutes = counted(max(1, math.ceil(left / 60)), "minute")
            self._console.print(f"{self._done} of {self._all}, {minutes} left")
            self._told = now


def report(
    grades: Annotated[list[Path], typer.Argument(help="Folders of grades of an assignment each.", metavar="GRADES…")],
    course: CourseFolder = HERE,
    out: Annotated[Path, option("Folder of the tables.", "FOLDER", "--out")] = TERM,
    roster: Roster = None,
    canvas: Annotated[
        Path | None,
        option("Gradebook that Canvas has exported (default: students are logins).", "FILE", "--canvas"),
    ] = None,
) -> None:
    """Write the term's table, after late days, and tables that Canvas and Moodle read."""
    from hybridnn.utils.files import write_atomically
    from hybridnn_course.work_folder import make_folder
    from hybridnn_course_staff.handing_out import read_table
    from hybridnn_course_staff.term import Course
    from hybridnn_course_staff.term_report import Gradebook, term_report

    found = term_report(Course.open(course), grades, _students(roster))
    gradebook = Gradebook(() if canvas is None else read_table(canvas))
    make_folder(out, 0o700)
    tables = {"term.csv": found.table(), "canvas.csv": found.canvas(gradebook), "moodle.csv": found.moodle()}
    for name, text in tables.items():
        write_atomically(out / name, text.encode())
    console = make_console()
    names = [one.id for one in found.assignments]
    rows = [
        (
            student,
            *(f"{entries[name].points:.4g}" for name in names),
            str(found.late_days(student)),
            f"{found.total(student):.4g}",
        )
        for student, entries in found.entries.items()
    ]
    console.print(new_table(("student",), (*names, "free days used", "total"), rows, wraps=True))
    for about in found.not_in(gradebook):
        console.print(f"{canvas}: {about}", style="yellow", soft_wrap=True)
    for name in tables:
        console.print(str(out / name), soft_wrap=True)


def export(
    assignment: AssignmentName,
    submissions: Submissions,
    course: CourseFolder = HERE,
    out: Annotated[Path, option("A new folder.", "FOLDER", "--out")] = EXPORT,
) -> None:
    """Write the code of all submissions as folders that JPlag and MOSS compare, and what everybody has got."""
    from hybridnn_course.work_folder import write_files
    from hybridnn_course_staff.batch import read_submissions
    from hybridnn_course_staff.similarity import exported_files
    from hybridnn_course_staff.term import Course

    opened = Course.open(course)
    chosen = opened.assignment(assignment)
    read, refused = read_submissions(chosen, submissions, opened.settings.modules)
    for folder, files in exported_files(chosen, opened.variant(chosen), read).items():
        write_files(out / folder, {name: text.encode() for name, text in files.items()})
    console = make_console()
    console.print(f"{out}: {counted(len(read), 'submission')}, with the code that is published", soft_wrap=True)
    for name, reason in refused.items():
        console.print(f"not exported: {shown_path(name)}: {reason}", soft_wrap=True)


def regrade(
    before: Annotated[Path, typer.Argument(help="A folder of grades.", metavar="OLD")],
    after: Annotated[Path, typer.Argument(help="A folder of grades of the same submissions.", metavar="NEW")],
) -> None:
    """List the checks whose points differ between two gradings, with the reason."""
    from hybridnn.errors import one_line
    from hybridnn_course_staff.regrading import changed_checks, read_outcomes

    console = make_console()
    old, new = read_outcomes(before), read_outcomes(after)
    changes = list(changed_checks(old, new))
    for change in changes:
        points = f"{change.before:.4g}, now {change.after:.4g}"
        about = f"{shown_path(change.submission)}: {change.check}: {points}: {one_line(change.why)}"
        console.print(about, soft_wrap=True, markup=False)
    for folder, names in ((before, old.keys() - new.keys()), (after, new.keys() - old.keys())):
        if names:
            console.print(f"only in {shown_path(folder)}: {', '.join(map(shown_path, sorted(names)))}")
    console.print(f"{counted(len(changes), 'check')} with other points")


def autograde(
    root: Annotated[Path, option("Folder of autograder/.", "FOLDER", "--root")] = GRADESCOPE,
) -> None:
    """Grade the submission that Gradescope put in its place, and write the results where it reads them."""
    from hybridnn_course_staff.gradescope import autograde as grade_there

    grade_there(root)


def _stored(read: Callable[[Path], dict[str, T]], given: Path | None, kept: Path, submissions: Path) -> dict[str, T]:
    """A table by submission, which is kept beside the grades for the next call; `DataError` where it fits none."""
    from hybridnn.errors import DataError
    from hybridnn.utils.files import read_bytes, write_atomically
    from hybridnn_course.work_folder import make_folder
    from hybridnn_course_staff.batch import times_received

    if given is None:
        return read(kept) if kept.exists() else {}
    found, known = read(given), times_received(submissions)
    if unknown := sorted(found.keys() - known.keys()):
        raise DataError(f"{given}: {submissions} has no submission {unknown[0]}")
    if missing := sorted(known.keys() - found.keys()):
        listed = ", ".join(map(shown_path, missing))
        make_console().print(f"{given}: has no row of {listed}: what the file itself says is taken")
    make_folder(kept.parent, 0o700)
    write_atomically(kept, read_bytes(given, 1 << 24))
    return found


def _students(roster: Path | None) -> list[str]:
    from hybridnn_course_staff.handing_out import read_roster

    return [] if roster is None else read_roster(roster)


def _write_reports(
    grader: Grader, graded: Sequence[Graded], out: Path, students: Sequence[str], times: Mapping[str, datetime]
) -> None:
    from hybridnn_course_staff.batch import with_student_flags
    from hybridnn_course_staff.reports import write_reports
    from hybridnn_course_staff.term import AssignmentSettings

    console = make_console()
    flagged = with_student_flags(graded, students)
    for path in write_reports(grader.assignment, flagged, out, grader.course.settings.feedback, times):
        console.print(str(path), soft_wrap=True)
    there = {item.outcome.student for item in graded if not item.outcome.ungraded}
    settings = grader.course.settings.assignments.get(grader.assignment.id, AssignmentSettings())
    received = {item.name: item.outcome.student for item in graded if not item.outcome.ungraded}
    days = {name: settings.days_late(student, times[name]) for name, student in received.items()}
    if late := [f"{shown_path(name)} {count}" for name, count in days.items() if count]:
        console.print(f"days late: {', '.join(late)}")
    if absent := [student for student in students if not there.intersection(settings.group_of(student))]:
        console.print(f"no submission that can be graded: {', '.join(map(shown_path, absent))}")


def _grader(course: Path, assignment: str, isolation: str, case_seconds: float) -> Grader:
    from hybridnn_course.isolation import choose_isolation
    from hybridnn_course_staff.grading import Grader, Limits
    from hybridnn_course_staff.term import Course

    opened = Course.open(course)
    return Grader(opened, opened.assignment(assignment), choose_isolation(isolation), Limits(case=case_seconds))
