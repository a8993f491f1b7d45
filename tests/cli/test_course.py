"""`hybridnn course`: the commands of students, lecturers and assistants, and their wrong input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console

from course.made import allow_kit, course_of, reference_files, submission_zip
from hybridnn.cli.course import student
from hybridnn.cli.output import new_table
from hybridnn.course.assignment import load_assignment
from hybridnn.course.work_folder import WorkFolder
from mpi_runner.slowness import deadline

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

Course = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Run a command in the test's folder."""

    def run(*arguments: str, folder: str = ".", text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hybridnn", "course", *arguments],
            cwd=tmp_path / folder,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=deadline(120),
            env={**os.environ, "COLUMNS": "100"},
        )

    return run


def _refused(run: subprocess.CompletedProcess[str], message: str) -> None:
    assert run.returncode == 2, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
    assert message in run.stderr


def test_a_term_from_its_beginning_to_the_grades(course: Course, tmp_path: Path) -> None:
    made = course("new", "term", "a2", "--term", "Spring 2027")
    assert made.returncode == 0, made.stderr
    allow_kit(tmp_path / "term")
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada\nbob,Bob\n")
    made = course("make", "a2", "--course", "term", "--roster", "roster.csv", "--for", "students")
    assert sorted(path.name for path in (tmp_path / "term/build").iterdir()) == ["a2-ada.zip", "a2-bob.zip"]
    assert course("start", "term/build/a2-ada.zip").returncode == 0
    checked = course("check", folder="a2")
    assert checked.returncode == 1
    assert "a2 bounds: not written yet" in checked.stdout
    assert "0 of 53 points; hidden cases are worth 47 more" in checked.stdout

    from hybridnn.course.term import Course as Term

    files = reference_files(A2, Term.open(tmp_path / "term").variant(A2))
    for name, text in files.items():
        (tmp_path / "a2" / name).write_text(text)
    checked = course("check", "gradient", "-q", folder="a2")
    assert (checked.returncode, checked.stdout) == (0, "18 of 18 points; hidden cases are worth 12 more\n")
    trained = course("run", "gradient", folder="a2")
    assert trained.returncode == 0, trained.stderr
    assert "equal to the training without your function" in trained.stdout
    packed = course("submit", folder="a2")
    assert packed.returncode == 0, packed.stderr
    (tmp_path / "in").mkdir()
    (tmp_path / "a2/a2-submission.zip").rename(tmp_path / "in/ada.zip")
    graded = course("grade", "a2", "in", "--course", "term", "--out", "grades", "--isolation", "none")
    assert graded.returncode == 0, graded.stderr
    assert "ada.zip: 100" in graded.stdout
    other_limit = ("--out", "grades", "--isolation", "none", "--case-seconds", "5")
    _refused(
        course("report", "a2", "in", "--course", "term", *other_limit), "none of these submissions is graded there"
    )
    assert "ada.zip,ada,100.0,100,yes" in (tmp_path / "grades/grades.csv").read_text()
    known = ("--roster", "roster.csv", "--out", "grades", "--isolation", "none")
    reported = course("report", "a2", "in", "--course", "term", *known)
    assert reported.returncode == 0, reported.stderr
    assert "no submission that can be graded: bob" in reported.stdout
    compared = course("similar", "a2", "in", "--course", "term")
    assert "1 submission compared, 0 pairs" in compared.stdout
    printed = course("solution", "a2", "--course", "term")
    assert "def bounds_solution" in printed.stdout


def test_check_and_submit_say_what_the_grader_refuses(course: Course, tmp_path: Path) -> None:
    assert course("start", "a2", "work").returncode == 0
    path = tmp_path / "work/blocks.py"
    path.write_text(f"import os\n{path.read_text()}")
    checked = course("check", "bounds", folder="work")
    assert checked.returncode == 1
    assert "the grader refuses blocks.py, line 1: imports os; you may import __future__, abc, " in checked.stdout
    _refused(course("submit", folder="work"), "blocks.py, line 1: imports os; you may import")


def test_watch_checks_again_after_a_change(course: Course, tmp_path: Path) -> None:
    assert course("start", "a2", "work").returncode == 0
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


def test_watch_sees_a_change_during_a_check(course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert course("start", "a2", "work").returncode == 0
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


def test_a_deadlock_is_explained_and_drawn_and_can_be_debugged(course: Course, tmp_path: Path) -> None:
    assert course("start", "a3", "work").returncode == 0
    (tmp_path / "work/collectives.py").write_text(RING)
    checked = course("check", "allreduce", folder="work")
    assert checked.returncode == 1
    assert "wait for one another" in checked.stdout
    assert "collectives.py:15 in allreduce" in checked.stdout
    drawn = course("picture", "allreduce", "--out", "ring.svg", folder="work")
    assert drawn.returncode == 0, drawn.stderr
    assert "deadlock" in drawn.stdout
    assert (tmp_path / "work/ring.svg").read_text().startswith("<svg")
    debugged = course("debug", "allreduce", "--ranks", "2", "--rank", "1", folder="work", text="ranks\nq\n")
    assert "rank 1: here" in debugged.stdout
    assert "rank 0: waits in send" in debugged.stdout


def test_wrong_input_of_students(course: Course, tmp_path: Path) -> None:
    _refused(course("check"), "assignment.toml: no such file; make the folder with: hybridnn course start")
    _refused(course("start", "b1"), "one of a1, a2")
    _refused(course("start", "none.zip"), "none.zip: cannot be read")
    (tmp_path / "bad.zip").write_bytes(b"PK")
    _refused(course("start", "bad.zip"), "not a readable zip file")
    (tmp_path / "other.zip").write_bytes(submission_zip(A2, A2.standard, {}))
    _refused(course("start", "other.zip"), "an assignment has")
    assert course("start", "a2").returncode == 0
    _refused(course("start", "a2"), "exists already; nothing was written")
    _refused(course("check", "nothing", folder="a2"), "of a2: bounds, minibatches, gradient, buckets, reducer")
    _refused(course("picture", "bounds", folder="a2"), "has no messages to draw")
    _refused(course("debug", "gradient", "--case", "9", folder="a2"), "public cases 1 to 4")
    _refused(course("debug", "gradient", "--ranks", "7", folder="a2"), "public cases on 1, 3, 4 ranks")
    (tmp_path / "a2/blocks.py").write_text("def broken(:\n")
    _refused(course("submit", folder="a2"), "blocks.py, line 1: cannot be parsed")
    assert not (tmp_path / "a2/a2-submission.zip").exists()
    (tmp_path / "a2/blocks.py").write_text("from hybridnn.comm.blocks import block_bounds\n")
    _refused(course("submit", folder="a2"), "write the functions without hybridnn")
    (tmp_path / "a2/blocks.py").unlink()
    _refused(course("check", folder="a2"), "blocks.py: cannot be read")
    manifest = tmp_path / "a2/assignment.toml"
    manifest.write_text(manifest.read_text().replace('longer_parts = "first"', 'longer_parts = "middle"'))
    _refused(course("check", folder="a2"), "variant.longer_parts = 'middle': of a2: first, last")


def test_a_name_is_beside_the_first_line_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table(("assignment", "variant"), (), [("a5", "in_flight: fewest, messages: beside")], wraps=True)
    Console(width=40).print(table)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[3:5]] == [
        ["a5", "in_flight:", "fewest,"],
        ["messages:", "beside"],
    ]


def test_wrong_input_of_lecturers_and_assistants(course: Course, tmp_path: Path) -> None:
    _refused(course("new", "term", "a2"), "the name of the term")
    _refused(course("new", "term", "a2", "b2", "--term", "x"), "one of a1, a2")
    assert not (tmp_path / "term").exists()
    course_of(tmp_path / "term", "a2")
    _refused(course("new", "term", "a2", "--term", "x"), "there is a course already")
    _refused(course("make", "a3", "--course", "term"), "assignment = 'a3': this course has a2")
    _refused(course("make", "a2", "--course", "term", "--for", "moodle"), "one of students")
    (tmp_path / "roster.csv").write_text("name\nAda\n")
    _refused(course("make", "a2", "--course", "term", "--roster", "roster.csv"), "needs a column student")
    _refused(
        course("grade", "a2", "in", "--course", "nowhere"), "nowhere/course.toml: no such file; `course new` makes"
    )
    _refused(course("grade", "a2", "in", "--course", "term", "--isolation", "none"), "no such folder")
    (tmp_path / "in").mkdir()
    _refused(course("grade", "a2", "in", "--course", "term", "--isolation", "none"), "no zip files")
    _refused(course("grade", "a2", "in", "--course", "term", "--isolation", "vm"), "isolation")
    _refused(course("verify", "a9"), "one of a1, a2")
    (tmp_path / "term/term.key").write_text("short")
    _refused(course("grade", "a2", "in", "--course", "term"), "is not a key")
    (tmp_path / "term/term.key").unlink()
    _refused(course("grade", "a2", "in", "--course", "term"), "no such file; grading needs the key")
    (tmp_path / "term/course.toml").write_text('term = "x"\nvariants = 3\n')
    _refused(course("solution", "a2", "--course", "term"), "course.toml: variants")


def test_submissions_of_another_assignment_and_other_archives_cost_no_attempt(course: Course, tmp_path: Path) -> None:
    course_of(tmp_path / "term", "a2")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/wrong.zip").write_bytes(submission_zip(A3, A3.standard, {}))
    (tmp_path / "in/ada.7z").write_bytes(b"7z")
    (tmp_path / "in/.listing").write_bytes(b"")
    graded = course("grade", "a2", "in", "--course", "term", "--isolation", "none")
    assert graded.returncode == 0, graded.stderr
    assert "wrong.zip: not gradable: it is a submission of a3, not of a2" in graded.stdout
    assert "not graded, as they are no zip files: ada.7z\n" in graded.stdout


def test_a_case_runs_under_mpi_too(course: Course, tmp_path: Path) -> None:
    assert course("start", "a3", "work").returncode == 0
    for name, text in reference_files(A3, A3.standard).items():
        (tmp_path / "work" / name).write_text(text)
    done = course("run", "allreduce", "-n", "2", folder="work")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("equal to the reference, under MPI\n")
    (tmp_path / "work/collectives.py").write_text("def allreduce(group, array, operation='sum'):\n    pass\n")
    done = course("run", "allreduce", "-n", "2", folder="work")
    assert done.returncode == 1
    assert "rank 0: array: element [0]: yours " in done.stdout


def test_a_deadlock_under_mpi_ends_with_the_line_of_every_rank(course: Course, tmp_path: Path) -> None:
    """Each rank receives before it sends, so that no buffer of the library helps."""
    assert course("start", "a3", "work").returncode == 0
    ring = RING.replace("    group.isend(array, (group.rank + 1) % group.size, 0).wait()\n", "")
    (tmp_path / "work/collectives.py").write_text(ring)
    done = course("run", "allreduce", "-n", "2", folder="work")
    assert done.returncode == 1
    for text in ("rank 0", "rank 1", "collectives.py:15"):
        assert text in done.stderr, done.stderr


def test_wrong_numbers_of_ranks_and_tasks_under_mpi(course: Course) -> None:
    assert course("start", "a3", "work").returncode == 0
    _refused(course("run", "allreduce", "-n", "31", folder="work"), "--ranks = 31: allreduce has public cases on")
    assert course("start", "a1", "layer").returncode == 0
    _refused(course("run", "forward", "-n", "2", folder="layer"), "")
