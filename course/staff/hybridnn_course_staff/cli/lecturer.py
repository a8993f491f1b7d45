"""`hybridnn course new | make | verify | solution`: what a lecturer does before and in a term."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import count, option
from hybridnn.cli.output import make_console, new_table
from hybridnn.errors import SettingError
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from hybridnn_course_staff.assignment import Assignment
    from hybridnn_course_staff.term import Course

Assignments = Annotated[list[str] | None, typer.Argument(help="Assignments: a1, a2, … (default: all).", metavar="A…")]
CourseFolder = Annotated[Path, option("Folder of the course.", "FOLDER", "--course")]
HERE = Path()


def new(
    folder: Annotated[Path, typer.Argument(help="A new folder.", metavar="FOLDER")],
    assignments: Assignments = None,
    term: Annotated[str, option("Name of the term.", "TEXT", "--term")] = "",
    previous: Annotated[
        Path | None,
        option(
            "An earlier course, so that every assignment gets another variant (default: any variant).",
            "FOLDER",
            "--previous",
        ),
    ] = None,
    per_student: Annotated[
        bool, typer.Option("--per-student", help="Every student of a roster gets a variant of their own.")
    ] = False,
) -> None:
    """Start a term: write course.toml, the key of the term, and the AI policy that handouts quote."""
    from hybridnn_course_staff.assignment import assignment_packages
    from hybridnn_course_staff.term import create_course

    if not term:
        raise SettingError("--term", term, "the name of the term, for example --term 'Spring 2027'")
    names = assignments or list(assignment_packages())
    course = create_course(folder, term, names, previous=previous, per_student=per_student)
    rows = [
        (name, ", ".join(f"{axis}: {choice}" for axis, choice in variant.items()) or "-")
        for name, variant in course.settings.variants.items()
    ]
    console = make_console()
    console.print(new_table(("assignment", "variant"), (), rows, wraps=True))
    console.print(f"{folder}: keep term.key secret, and a copy of it: hidden cases are made from it.", soft_wrap=True)


def make(
    assignment: Annotated[str, typer.Argument(help="An assignment of the course.", metavar="A")],
    course: CourseFolder = HERE,
    out: Annotated[
        Path | None, option("Folder of the result (default: build in the course's).", "FOLDER", "--out")
    ] = None,
    roster: Annotated[
        Path | None,
        option(
            "CSV file with a column student, for a zip file for each of them (default: there is one for all).",
            "FILE",
            "--roster",
        ),
    ] = None,
    gradescope: Annotated[
        bool, typer.Option("--gradescope", help="Make the autograder to upload to Gradescope instead.")
    ] = False,
    pip: Annotated[
        str, option("What pip installs on Gradescope (default: wheels of this installation).", "TEXT", "--pip")
    ] = "",
    hidden_cases: Annotated[
        str,
        option(
            "When Gradescope shows hidden cases: visible, after_due_date, after_published.", "WHEN", "--hidden-cases"
        ),
    ] = "visible",
) -> None:
    """Make the zip files for students, or the package for Gradescope."""
    from hybridnn.utils.files import write_atomically
    from hybridnn_course_staff.gradescope import build_package
    from hybridnn_course_staff.handing_out import make_student_archives, read_roster
    from hybridnn_course_staff.term import Course

    opened = Course.open(course)
    chosen = opened.assignment(assignment)
    place = out or course / "build"
    if gradescope:
        paths = [place / f"{chosen.id}-gradescope.zip"]
        write_atomically(paths[0], build_package(opened, chosen, pip, hidden_cases))
    else:
        students = [""] if roster is None else read_roster(roster)
        paths = make_student_archives(opened, chosen, students, place)
    console = make_console()
    for path in paths:
        console.print(str(path), soft_wrap=True)


def verify(
    assignments: Assignments = None,
    variants: Annotated[int, count("Variants of each assignment: the standard one, then others.", "--variants")] = 1,
) -> None:
    """Prove the kit: references earn all points, stubs none, every known mistake is found as itself."""
    from hybridnn_course_staff.assignment import assignment_packages, load_assignment
    from hybridnn_course_staff.verify import verify_assignment

    names = assignments or list(assignment_packages())
    chosen = [load_assignment(name) for name in names]
    console = make_console()
    table = new_table(("assignment", "variant"), ("tasks", "mistakes", "problems", "s"), wraps=True)
    problems: list[str] = []
    catalogue = 0
    for assignment in chosen:
        start = time.perf_counter()
        for proof in verify_assignment(assignment, variants):
            seconds, start = time.perf_counter() - start, time.perf_counter()
            variant = ", ".join(proof.variant.values()) or "-"
            cells = (proof.tasks, proof.mistakes, len(proof.problems))
            table.add_row(assignment.id, variant, *map(str, cells), f"{seconds:.1f}")
            problems += [f"{assignment.id} ({variant}): {problem}" for problem in proof.problems]
        catalogue += sum(len(task.mistakes) for task in assignment.tasks)
    console.print(table)
    proved = counted(len(chosen), "assignment")
    console.print(f"{proved}, {catalogue} known mistakes besides the solutions of other variants")
    for problem in problems:
        console.print(problem, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


def solution(
    assignment: Annotated[str, typer.Argument(help="An assignment of the course.", metavar="A")],
    course: CourseFolder = HERE,
) -> None:
    """Print the reference solution, and the variant of this course that it is made for."""
    from hybridnn_course_staff.term import Course

    opened = Course.open(course)
    chosen = opened.assignment(assignment)
    _print_solution(opened, chosen)


def guide(assignment: Annotated[str, typer.Argument(help="An assignment, such as a1.", metavar="A")]) -> None:
    """Print objectives, prerequisites, hours and common mistakes of an assignment, for the lecturer."""
    from hybridnn_course_staff.assignment import load_assignment
    from hybridnn_course_staff.guide import guide_text

    print(guide_text(load_assignment(assignment)), end="")


def _print_solution(course: Course, assignment: Assignment) -> None:
    for axis, choice in course.variant(assignment).items():
        print(f"# {axis}: {choice}: {assignment.axes[axis][choice]}")
    print((assignment.folder() / "solution.py").read_text(encoding="utf-8"), end="")
