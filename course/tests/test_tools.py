"""Tools of students and lecturers where the student's code or the input fails: one clear message, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.tests.made import course_of
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn_course.answers import Answer, Failure, answer_digest
from hybridnn_course.checks import check_task
from hybridnn_course.execution import run_programs
from hybridnn_course.tools import StudentCodeError, debug_case
from hybridnn_course.work_folder import Manifest, WorkFolder, write_files
from hybridnn_course_staff.assignment import Task, load_assignment
from hybridnn_course_staff.handing_out import make_student_archives, read_roster, start_files
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.term import create_course
from hybridnn_course_staff.trusted import TrustedRunner

A3 = load_assignment("a3")
A5 = load_assignment("a5")


def work_folder(folder: Path, code: str) -> tuple[WorkFolder, Task]:
    """A folder of A3 in which `allreduce` has another body."""
    write_files(folder, start_files(A3, Manifest(assignment="a3", variant=A3.standard)))
    path = folder / "collectives.py"
    path.write_text(f"{path.read_text()}\n\ndef allreduce(group, array, operation='sum'):\n    {code}\n")
    return WorkFolder.open(folder), A3.task("allreduce")


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("array[1_000_000] = 1", r"^IndexError: .*(\n.*)*\n  collectives\.py:\d+ in allreduce$"),
        ("pass\n\nimport a_module_of_no_one", r"a_module_of_no_one'\n  collectives\.py:\d+ in <module>$"),
    ],
)
def test_an_exception_of_the_students_code_is_shown_with_its_lines_only(tmp_path: Path, code: str, shown: str) -> None:
    work, task = work_folder(tmp_path, code)
    case = task.public(work.variant)[0]
    with pytest.raises(StudentCodeError, match=shown) as caught:
        debug_case(work, task, case, case.ranks - 1)
    assert caught.value.exit_code == 1


def test_leaving_the_debugger_is_no_deadlock_of_the_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, task = work_folder(tmp_path, "group.isend(array, (group.rank + 1) % group.size, 0).wait()")
    commands = iter(["ranks", "q"])
    monkeypatch.setattr("builtins.input", lambda _="": next(commands))
    with pytest.raises(SystemExit, match="the debugger was left on rank 0"):
        debug_case(work, task, max(task.public(work.variant), key=lambda case: case.ranks), 0)
    assert "rank 0: here\nrank 1: can continue\n" in capsys.readouterr().out


def test_exceptions_with_other_messages_are_other_failures() -> None:
    one, same, spaced, other = (
        Answer(failure=Failure("raised ValueError", text))
        for text in ("ValueError: shapes\n  layer.py:3 in forward", "ValueError: shapes", "ValueError: shapes \n", "V")
    )
    first, second, third, fourth = (answer_digest(answer, Answer(), b"") for answer in (one, same, spaced, other))
    assert first == second == third != fourth


def test_exceptions_of_the_kit_and_of_submissions_have_the_same_first_line() -> None:
    def program(_: object) -> dict[str, object]:
        raise ValueError("shapes")

    failure = run_programs(1, program).failure
    assert failure is not None
    assert failure.text.splitlines()[0] == "ValueError: shapes"


def test_values_that_are_no_measures_do_not_say_that_orders_cannot_run() -> None:
    key = TaskKey(A5, A5.task("measure"), A5.standard)
    assert check_task(TrustedRunner({"measure": lambda *_: ()}), key, whole=False).points == 0


def test_every_student_of_a_roster_gets_a_file_of_their_own(tmp_path: Path) -> None:
    roster = tmp_path / "roster.csv"
    students = ["Jürgen", "Jörgen", "李雷", "a b", "a_b", "A_b", "x" * 150 + "1", "x" * 150 + "2", "ü" * 200]
    roster.write_bytes(("\ufeffstudent,mail\r\n" + "".join(f"{name},m\r\n" for name in students)).encode())
    assert read_roster(roster) == students
    paths = make_student_archives(course_of(tmp_path / "course", "a2"), load_assignment("a2"), students, tmp_path / "o")
    assert len({path.name.casefold() for path in paths}) == len(students)
    assert paths[0].name == "a2-Jürgen.zip"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("student;mail\nann;x\n", "needs a column student"),
        ("student\nann\nann\n", "ann: is there twice"),
        ("student\n" + "x" * 201 + "\n", "at most 200 characters"),
        ("student,note\nann," + "x" * 200_000 + "\n", "is not a table"),
    ],
)
def test_a_roster_that_is_none_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "roster.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_roster(tmp_path / "roster.csv")
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be made as a folder"):
        create_course(tmp_path / "file" / "course", "Term", ["a2"])
    with pytest.raises(EnvironmentProblem, match="cannot be made as a folder"):
        write_files(tmp_path / "file" / "a2", {"x.py": b""})
