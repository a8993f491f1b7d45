"""`hybridnn course`: the commands of students, lecturers and assistants, and their wrong input."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
import typer
from rich.console import Console

from course.tests.made import allow_kit, course_of, handed_out, reference_files, submission_zip
from hybridnn.cli.main import main
from hybridnn.cli.output import new_table
from hybridnn_course.cli import student
from hybridnn_course.work_folder import WorkFolder
from hybridnn_course_staff.assignment import load_assignment
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line

A2 = load_assignment("a2")
A3 = load_assignment("a3")

RING = """
import numpy as np

def shift(group, array):
    return array

def reduce_scatter(group, array):
    return array

def allgather(group, block, rows=None):
    return block

def allreduce(group, array, operation="sum"):
    left = np.empty_like(array)
    group.isend(array, (group.rank + 1) % group.size, 0).wait()
    group.ireceive(left, (group.rank - 1) % group.size, 0).wait()
"""

BOUNDS = """
def block_bounds(items, parts, part):
    size, longer = divmod(items, parts)
    first = part * size + min(part, longer)
    return first, first + size + (part < longer)
"""


@pytest.fixture
def course(run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command of the class kit in the test's folder, in this process."""
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *arguments: run_hybridnn("course", *arguments)


def _done(result: tuple[int, str, str]) -> str:
    """What a command prints that succeeds."""
    code, out, err = result
    assert code == 0, out + err
    return out


def test_a_term_from_its_beginning_to_the_grades(course: Run, tmp_path: Path) -> None:
    """A student who solves the first two tasks of A2."""
    _done(course("new", "term", "a2", "--term", "Spring 2027"))
    term = allow_kit(tmp_path / "term")
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada\nbob,Bob\n")
    _done(course("make", "a2", "--course", "term", "--roster", "roster.csv"))
    assert sorted(path.name for path in (tmp_path / "term/build").iterdir()) == ["a2-ada.zip", "a2-bob.zip"]
    _done(course("start", "term/build/a2-ada.zip"))
    code, out, _ = course("check", "--folder", "a2")
    assert code == 1
    assert "a2 bounds: not written yet" in out
    assert "0 of 53 points; hidden cases are worth 47 more" in out

    (tmp_path / "a2/blocks.py").write_text(reference_files(A2, term.variant(A2))["blocks.py"])
    checked = _done(course("check", "bounds", "-q", "--folder", "a2"))
    assert checked == "9 of 9 points; hidden cases are worth 11 more\n"
    _done(course("submit", "--folder", "a2"))
    (tmp_path / "in").mkdir()
    (tmp_path / "a2/a2-submission.zip").rename(tmp_path / "in/ada.zip")
    (tmp_path / "in/wrong.zip").write_bytes(submission_zip(A3, A3.standard, {}))
    (tmp_path / "in/ada.7z").write_bytes(b"7z")
    (tmp_path / "in/.listing").write_bytes(b"")
    where = ("a2", "in", "--course", "term", "--out", "grades", "--trust-submissions")
    graded = _done(course("grade", *where, "--jobs", "1"))
    assert "ada.zip: 35" in graded
    assert "wrong.zip: not gradable: it is a submission of a3, not of a2" in graded  # costs no attempt
    assert "not graded, as they are no zip files: ada.7z\n" in graded
    assert "ada.zip,ada,35.0,100,yes" in (tmp_path / "grades/grades.csv").read_text()
    assert "no submission that can be graded: bob" in _done(course("grade", *where, "--roster", "roster.csv"))
    (tmp_path / "times.csv").write_text("submission,received\nada.zip,2026-11-02T12:00:00+00:00\n")
    with (tmp_path / "term/course.toml").open("a") as file:
        file.write("\n[assignments.a2]\ndue = 2026-10-31T12:00:00+00:00\n")
    printed = _done(course("grade", *where, "--received", "times.csv"))
    assert "days late: ada.zip 2\n" in printed
    assert "times.csv: has no row of wrong.zip: what the file itself says is taken" in printed
    _done(course("grade", *where))  # and keeps the times
    received = datetime.fromisoformat((tmp_path / "grades/grades.csv").read_text().splitlines()[1].rpartition(",")[2])
    assert received == datetime(2026, 11, 2, 12, tzinfo=timezone.utc)
    (tmp_path / "times.csv").write_text("submission,received\neva.zip,2026-11-02T12:00:00+00:00\n")
    assert "in has no submission eva.zip" in error_line(course("grade", *where, "--received", "times.csv"))
    assert "export: 1 submission" in _done(course("export", "a2", "in", "--course", "term"))
    (tmp_path / "in/ada-2.zip").write_bytes((tmp_path / "in/ada.zip").read_bytes())
    assert "def bounds_solution" in _done(course("solution", "a2", "--course", "term"))


@pytest.mark.slow
def test_watch_checks_again_after_a_change(course: Run, tmp_path: Path) -> None:
    _done(course("start", handed_out("a2", tmp_path), "work"))
    printed, right = tmp_path / "printed", tmp_path / "right.py"
    right.write_text(BOUNDS)
    command = [sys.executable, "-m", "hybridnn", "course", "check", "bounds", "-q", "--watch"]
    with printed.open("w") as out, subprocess.Popen(command, cwd=tmp_path / "work", stdout=out) as process:
        try:
            _await_results(process, printed, 1)
            right.rename(tmp_path / "work/blocks.py")  # as editors write files
            results = _await_results(process, printed, 2)
            process.send_signal(signal.SIGINT)
            assert process.wait(deadline(60)) == 0
        finally:
            process.kill()
    points = A2.task("bounds").points
    possible = points.total - points.hidden
    assert [line.partition(" points")[0] for line in results] == [f"0 of {possible:g}", f"{possible:g} of {possible:g}"]


def _await_results(process: subprocess.Popen[bytes], printed: Path, count: int) -> list[str]:
    """The lines with points, once there are so many."""
    end = time.monotonic() + deadline(60)
    while len(found := [line for line in printed.read_text().splitlines() if "points" in line]) < count:
        assert process.poll() is None
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_watch_sees_a_change_during_a_check(course: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _done(course("start", handed_out("a2", tmp_path), "work"))
    checked: list[str] = []

    def check(work: WorkFolder, *_: object) -> bool:
        checked.append(work.sources()["blocks.py"])
        if len(checked) > 1:
            raise KeyboardInterrupt
        (work.folder / "blocks.py").write_text(BOUNDS)
        return False

    monkeypatch.setattr(student, "_check", check)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits for another change"))
    with pytest.raises(typer.Exit):
        student.check("bounds", tmp_path / "work", watch=True)
    assert checked[1] == BOUNDS


@pytest.mark.slow
def test_a_deadlock_is_explained_and_can_be_debugged(
    course: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _done(course("start", handed_out("a3", tmp_path), "work"))
    (tmp_path / "work/collectives.py").write_text(RING)
    code, out, _ = course("check", "allreduce", "--folder", "work")
    assert code == 1
    assert "wait for one another" in out
    assert "collectives.py:15 in allreduce" in out
    answers = iter(["ranks", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    with pytest.raises(SystemExit, match="the debugger was left on rank 1"):
        main(["course", "debug", "allreduce", "--ranks", "2", "--rank", "1", "--folder", "work"])
    out = capsys.readouterr().out
    assert "rank 1: here" in out
    assert "rank 0: waits in send" in out


def test_wrong_input_of_students(course: Run, tmp_path: Path) -> None:

    def refused(message: str, *arguments: str) -> None:
        assert message in error_line(course(*arguments))

    refused("assignment.toml: no such file; make the folder with: hybridnn course start", "check")
    refused("none.zip: cannot be read", "start", "none.zip")
    (tmp_path / "bad.zip").write_bytes(b"PK")
    refused("not a readable zip file", "start", "bad.zip")
    (tmp_path / "other.zip").write_bytes(submission_zip(A2, A2.standard, {}))
    refused("other.zip: is not the zip file of an assignment", "start", "other.zip")
    _done(course("start", handed_out("a2", tmp_path)))
    refused("exists already; nothing was written", "start", "a2.zip")
    here = ("--folder", "a2")
    refused("of a2: bounds, minibatches, gradient, buckets, reducer", "check", "nothing", *here)
    refused("public cases 1 to 5", "debug", "gradient", "--case", "9", *here)
    refused("public cases on 1, 2, 3, 4 ranks", "debug", "gradient", "--ranks", "7", *here)
    blocks = tmp_path / "a2/blocks.py"
    text = blocks.read_text()
    blocks.write_text("def broken(:\n")
    refused("blocks.py, line 1: cannot be parsed", "submit", *here)
    assert not (tmp_path / "a2/a2-submission.zip").exists()
    blocks.write_text(f"from hybridnn.comm.blocks import block_bounds\n{text}")
    flag = "a person will look at blocks.py, line 1: imports hybridnn.comm.blocks.block_bounds"
    for command in (("check", "bounds", "-q"), ("submit",)):
        assert flag in course(*command, *here)[1]
    blocks.unlink()
    refused("blocks.py: cannot be read", "check", *here)
    cases = tmp_path / "a2/cases.bin"
    cases.write_bytes(cases.read_bytes()[:-1])
    refused("cases.bin: is not the file of cases of an assignment: not a whole frame", "check", *here)


def test_a_name_is_beside_the_first_line_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table(("assignment", "variant"), (), [("a5", "in_flight: fewest, messages: beside")], wraps=True)
    Console(width=40).print(table)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[3:5]] == [
        ["a5", "in_flight:", "fewest,"],
        ["messages:", "beside"],
    ]


def test_wrong_input_of_lecturers_and_assistants(course: Run, tmp_path: Path) -> None:
    def refused(message: str, *arguments: str) -> None:
        assert message in error_line(course(*arguments))

    term = ("--course", "term")
    grade = ("grade", "a2", "in", *term)
    refused("the name of the term", "new", "term", "a2")
    refused("one of a1, a2", "new", "term", "a2", "b2", "--term", "x")
    assert not (tmp_path / "term").exists()
    course_of(tmp_path / "term", "a2")
    refused("there is a course already", "new", "term", "a2", "--term", "x")
    refused("assignment = 'a3': this course has a2", "make", "a3", *term)
    refused("after_published", "make", "a2", *term, "--gradescope", "--hidden-cases", "soon")
    (tmp_path / "roster.csv").write_text("name\nAda\n")
    refused("needs a column student", "make", "a2", *term, "--roster", "roster.csv")
    refused("nowhere/course.toml: no such file; `course new` makes", "grade", "a2", "in", "--course", "nowhere")
    refused("no such folder", *grade, "--trust-submissions")
    (tmp_path / "in").mkdir()
    refused("no zip files", *grade, "--trust-submissions")
    refused("isolation", *grade, "--isolation", "vm")
    refused("--trust-submissions runs submissions without isolation", *grade, "--isolation", "none")
    refused("no such folder", "autograde", "--root", "nothing")
    refused("one of a1, a2", "verify", "a9")
    (tmp_path / "term/term.key").write_text("short")
    refused("is not a key", *grade)
    (tmp_path / "term/term.key").unlink()
    refused("no such file; grading needs the key", *grade)
    (tmp_path / "term/course.toml").write_text('term = "x"\nvariants = 3\n')
    refused("course.toml: variants", "solution", "a2", *term)
