"""Grading of folders: mistakes are found as themselves, and a grading that is killed goes on where it was."""

from __future__ import annotations

import csv
import io
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.tests.made import KIT, allow_kit, course_of, reference_files, submission_zip, wrong_files
from hybridnn.errors import DataError
from hybridnn_course import isolation
from hybridnn_course.carrier import Worker
from hybridnn_course.checks import check_task
from hybridnn_course.outcome import CheckOutcome, Outcome, TaskOutcome
from hybridnn_course.submission import Submission, UngradableError
from hybridnn_course_staff import batch, grading
from hybridnn_course_staff.assignment import Assignment, Mistake, load_assignment
from hybridnn_course_staff.batch import SUFFIX, Graded, grade_folder, with_student_flags
from hybridnn_course_staff.cli import assistant
from hybridnn_course_staff.cli.assistant import grade
from hybridnn_course_staff.grading import Grader, Limits
from hybridnn_course_staff.regrading import Change, changed_checks, read_outcomes
from hybridnn_course_staff.reports import FEEDBACK, GRADES, PAGE, write_reports
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.term import Course, create_course
from hybridnn_course_staff.trusted import TrustedRunner
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line

A2 = load_assignment("a2")
CODE = ("a1", "a2", "a3", "a4", "a5", "a6", "a7")
"""Assignments whose tasks are functions."""


def _combined(assignment: Assignment) -> list[dict[str, Mistake]]:
    """Submissions with a mistake in every task, so many that each mistake is in one of them."""
    known = {
        task.name: [mistake for mistake in task.mistakes if mistake.applies(assignment.standard)]
        for task in assignment.tasks
    }
    most = max(map(len, known.values()))
    return [{task: mistakes[number % len(mistakes)] for task, mistakes in known.items()} for number in range(most)]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", CODE)
def test_mistakes_of_submissions_are_found_as_themselves(name: str) -> None:
    """In processes as in this one."""
    assignment = load_assignment(name)
    keys = [TaskKey(assignment, task, assignment.standard) for task in assignment.tasks]
    for mistakes in _combined(assignment):
        files = wrong_files(assignment, assignment.standard, mistakes)
        with Worker(assignment, files, limit=deadline(10), modules=[KIT]) as worker:
            for key in keys:
                mistake = mistakes[key.task.name]
                runner = TrustedRunner({key.task.name: mistake.function(assignment.standard)})
                found, expected = (check_task(one, key, whole=False) for one in (worker, runner))
                assert {check.mistake for check in found.checks if check.mistake} == {mistake.name}, found
                assert [check.points for check in found.checks] == [check.points for check in expected.checks]


@pytest.mark.slow
def test_a_grading_that_is_killed_and_repeated_gives_the_tables_of_one_that_is_not(tmp_path: Path) -> None:
    course, submissions = course_of(tmp_path / "course", "a2"), tmp_path / "submissions"
    submissions.mkdir()
    for number, mistake in enumerate(A2.task("bounds").mistakes[:5]):  # and a second file that is not written
        blocks = wrong_files(A2, A2.standard, {"bounds": mistake})["blocks.py"]
        archive = submission_zip(A2, A2.standard, {"blocks.py": blocks}, student=f"student {number}")
        (submissions / f"student-{number}.zip").write_bytes(archive)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "hybridnn", "course", "grade", "a2", str(submissions)]
    command += ["--course", str(course.folder), "--jobs", "2", "--trust-submissions", "--out"]
    with subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + deadline(60)
        while len(list(killed.glob(f"*{SUFFIX}"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = {path: path.stat().st_mtime_ns for path in killed.glob(f"*{SUFFIX}")}
    assert 2 <= len(before) < 5
    assert not (killed / GRADES).exists()
    for out in (killed, whole):
        subprocess.run([*command, str(out)], stdout=subprocess.DEVNULL, check=True, timeout=deadline(60))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for table in (GRADES, PAGE):
        assert (killed / table).read_bytes() == (whole / table).read_bytes()


def _points(course: Course, mistakes: Mapping[str, Mistake]) -> float:
    """Points of A2 by the functions of the kit, in this process: with some mistakes, and else the reference."""
    variant, points = course.variant(A2), 0.0
    for task in A2.tasks:
        function = mistakes[task.name].function if task.name in mistakes else task.solution
        key = TaskKey(A2, task, variant, course.key)
        points += check_task(TrustedRunner({task.name: function(variant)}), key).points
    return round(points, 2)


def _rows(text: str) -> dict[str, dict[str, str]]:
    return {row["submission"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.fixture
def grader(tmp_path: Path) -> Grader:
    limits = Limits(case=deadline(10), submission=deadline(120))
    return Grader(course_of(tmp_path / "course", "a2"), A2, "none", limits)


@pytest.mark.slow
def test_a_folder_is_graded_once_and_reported(tmp_path: Path, grader: Grader) -> None:
    known = {mistake.name: mistake for task in A2.tasks for mistake in task.mistakes}
    chosen: list[dict[str, Mistake]] = [
        {},
        {"bounds": known["remainder-lost"]},
        {"gradient": known["average-of-averages"], "buckets": known["one-bucket"]},
    ]
    (tmp_path / "submissions").mkdir()
    for number, mistakes in enumerate(chosen):
        files = wrong_files(A2, A2.standard, mistakes)
        archive = submission_zip(A2, A2.standard, files, student=f"student {number}")
        (tmp_path / "submissions" / f"student-{number}.zip").write_bytes(archive)
    expected = {f"student-{number}.zip": _points(grader.course, mistakes) for number, mistakes in enumerate(chosen)}
    (tmp_path / "submissions" / "broken.zip").write_bytes(b"no zip")
    (tmp_path / "submissions" / "formula.zip").write_bytes(
        submission_zip(A2, A2.standard, {}, student='=HYPERLINK("x")')
    )
    out = tmp_path / "grades"
    seen: list[str] = []
    graded = grade_folder(grader, tmp_path / "submissions", out, jobs=2, told=lambda item: seen.append(item.name))
    assert sorted(seen) == ["broken.zip", "formula.zip", *sorted(expected)]
    points = {item.name: item.outcome.points for item in graded if item.outcome.gradable}
    assert points == {**expected, "formula.zip": 0.0}
    assert points["student-0.zip"] == 100
    write_reports(A2, graded, out, "hints")
    rows = _rows((out / GRADES).read_text())
    assert rows["broken.zip"]["gradable"] == "no"
    assert "not a readable zip file" in rows["broken.zip"]["reason"]
    assert rows["student-2.zip"]["mistakes"] == "gradient.average-of-averages buckets.one-bucket"
    assert rows["formula.zip"]["student"].startswith("'=")
    page = (out / PAGE).read_text()
    assert "not written yet" not in page.partition("<h2>Tasks")[0]
    assert "gradient.average-of-averages" in page
    assert "<script" not in page
    assert "<td>student-1.zip<td>" in page
    assert "<td>bounds.remainder-lost<td>" in page
    feedback = (out / FEEDBACK / "student-1.md").read_text()
    assert known["remainder-lost"].hint in feedback
    assert "costs no attempt" in (out / FEEDBACK / "broken.md").read_text()

    again: list[str] = []
    before = {path: path.stat().st_mtime_ns for path in out.glob(f"*{SUFFIX}")}
    repeated = grade_folder(grader, tmp_path / "submissions", out, told=lambda item: again.append(item.name))
    assert repeated == graded
    assert {path: path.stat().st_mtime_ns for path in out.glob(f"*{SUFFIX}")} == before


def test_a_folder_with_the_grades_of_another_assignment_is_refused(tmp_path: Path, grader: Grader) -> None:
    out = tmp_path / "grades"
    out.mkdir()
    (tmp_path / "submissions").mkdir()
    (tmp_path / "submissions/a.zip").write_bytes(b"")
    (out / f"ada-0123{SUFFIX}").write_text(Outcome(assignment="a1").model_dump_json())
    with pytest.raises(DataError, match=r"has the grades of a1; give another folder for a2"):
        grade_folder(grader, tmp_path / "submissions", out)


def test_students_who_are_named_twice_or_not_on_the_roster_are_flagged() -> None:
    named = {"a.zip": "ada", "b.zip": "bob", "c.zip": "ada", "d.zip": "", "e.zip": "eva"}
    graded = [
        Graded(name, Outcome(assignment="a2", student=student, flags=("one",))) for name, student in named.items()
    ]
    found = {item.name: item.outcome.flags[1:] for item in with_student_flags(graded)}
    twice = {"a.zip": ("names the same student as c.zip",), "c.zip": ("names the same student as a.zip",)}
    assert found == {**dict.fromkeys(named, ()), **twice}
    unknown = "names no student of the roster"
    found = {item.name: item.outcome.flags[1:] for item in with_student_flags(graded, ["ada", "bob"])}
    assert found == {**twice, "b.zip": (), "d.zip": (unknown,), "e.zip": (unknown,)}


def test_submissions_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch, grader: Grader) -> None:
    """Syntax trees that two threads build at the same time raise SystemError in Python before 3.11.8 and 3.12.2."""
    reading: list[int] = []
    together: list[int] = []

    def read(*_: object) -> Submission:
        reading.append(1)
        time.sleep(0.01)
        together.append(len(reading))
        reading.pop()
        raise UngradableError("read")

    monkeypatch.setattr(grading, "read_in_time", read)
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(grader.grade, [b""] * 8))
    assert [outcome.reason for outcome in outcomes] == ["read"] * 8
    assert together == [1] * 8


def test_a_regrade_lists_what_changed_and_why(tmp_path: Path) -> None:
    def grades(folder: str, *checks: CheckOutcome, **about: Any) -> dict[str, Outcome]:
        about = {"assignment": "a2", "tasks": (TaskOutcome(name="bounds", checks=checks),), **about}
        outcome = Outcome(submission="ada.zip", **about)
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"ada-{'0' * 24}{SUFFIX}").write_text(outcome.model_dump_json())
        return read_outcomes(tmp_path / folder)

    same = CheckOutcome(name="one", kind="public", points=1, possible=1)
    wrong = CheckOutcome(name="two", kind="hidden", points=0, possible=2, message="wrong outputs")
    before, after = (
        grades("old", same, wrong),
        grades("new", same, wrong.model_copy(update={"points": 2, "message": ""})),
    )
    assert list(changed_checks(before, after)) == [
        Change("ada.zip", "bounds, hidden, two", 0, 2, "before: wrong outputs")
    ]
    assert list(changed_checks(after, after)) == []
    worth = grades("worth", same.model_copy(update={"points": 4, "possible": 4}))
    assert [(change.check, change.why) for change in changed_checks(after, worth)] == [
        ("bounds, public, one", "it is worth 4, not 1"),
        ("bounds, hidden, two", "no longer a check"),
    ]
    broken = grades("broken", gradable=False, reason="no zip")
    assert list(changed_checks(broken, after)) == [Change("ada.zip", "all", 0, 3, "had no grade: no zip")]
    with pytest.raises(DataError, match="the gradings are of a1 and a2"):
        list(changed_checks(grades("other", assignment="a1"), after))
    with pytest.raises(DataError, match="has no outcomes"):
        read_outcomes(tmp_path)


def test_submissions_of_the_same_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: Grader) -> None:
    """A learning platform packs the file of each student, which all call the same, into a folder."""
    check = CheckOutcome(name="one", kind="public", points=0, possible=1, message="raised <script>")
    outcome = Outcome(assignment="a2", tasks=(TaskOutcome(name="bounds", checks=(check,)),))
    monkeypatch.setattr(Grader, "grade", lambda *_, **__: outcome)
    names = ["Ada_1_file/a2-submission.zip", "Ben_2_file/a2-submission.zip"]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_bytes(b"the same")
    graded = grade_folder(grader, tmp_path / "in", tmp_path / "out")
    assert [item.name for item in graded] == names
    assert sorted(read_outcomes(tmp_path / "out")) == names
    write_reports(A2, graded, tmp_path / "out", "hints")
    for name in names:
        text = (tmp_path / "out" / FEEDBACK / name).with_suffix(".md").read_text()
        assert "raised &lt;script>" in text


def test_a_damaged_outcome_is_graded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: Grader) -> None:
    outcome = Outcome(assignment="a2", student="ada")
    monkeypatch.setattr(Grader, "grade", lambda *_, **__: outcome)
    (tmp_path / "submissions").mkdir()
    (tmp_path / "submissions/a.zip").write_bytes(b"")
    first = grade_folder(grader, tmp_path / "submissions", tmp_path / "grades")
    assert first == [Graded("a.zip", outcome.model_copy(update={"submission": "a.zip"}))]
    (file,) = (tmp_path / "grades").glob(f"*{SUFFIX}")
    file.write_text(file.read_text()[:100])
    assert grade_folder(grader, tmp_path / "submissions", tmp_path / "grades") == first


def test_hidden_cases_depend_on_the_key_alone(tmp_path: Path) -> None:
    one, other = course_of(tmp_path / "one", "a2"), course_of(tmp_path / "other", "a2")
    task = A2.task("gradient")
    first, second = (TaskKey(A2, task, A2.standard, course.key) for course in (one, other))
    again = TaskKey(A2, task, A2.standard, one.key)
    assert [str(case) for case in first.hidden] == [str(case) for case in again.hidden]
    assert [str(case) for case in first.hidden] != [str(case) for case in second.hidden]
    assert TaskKey(A2, task, A2.standard).hidden == ()


@pytest.mark.slow
def test_a_solution_of_an_old_term_fails_and_is_flagged(tmp_path: Path) -> None:
    old = course_of(tmp_path / "old", "a2")
    new = create_course(tmp_path / "new", "Next", ["a2"], previous=tmp_path / "old")
    assert all(new.variant(A2)[axis] != choice for axis, choice in old.variant(A2).items())
    files = reference_files(A2, old.variant(A2))
    outcome = Grader(allow_kit(new.folder), A2, "none").grade(submission_zip(A2, old.variant(A2), files))
    assert outcome.points < 60
    lost = {task.name for task in outcome.tasks if task.points < task.possible}
    assert lost == {"bounds", "minibatches", "buckets", "reducer"}
    assert [flag for flag in outcome.flags if flag.startswith("bounds, minibatches, buckets, reducer: solve another")]


def test_a_changed_assignment_or_kit_gives_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: Grader
) -> None:
    assignment, other, kit = tmp_path / "assignments/a2", tmp_path / "assignments/a3", tmp_path / "batch.py"
    for path in (assignment / "cases.py", other / "cases.py", kit):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    monkeypatch.setattr(batch, "__file__", str(kit))

    def digest() -> str:
        batch.kit_digest.cache_clear()
        return batch.kit_digest(assignment)

    first = digest()
    (other / "cases.py").write_text("x = 2\n")
    assert digest() == first
    found = {first}
    for path in (assignment / "cases.py", kit):
        path.write_text("x = 2\n")
        found.add(digest())
    assert len(found) == 3
    monkeypatch.setattr(batch, "kit_digest", lambda _: "one")
    one = batch.outcome_digest(grader, "a.zip", b"")
    monkeypatch.setattr(batch, "kit_digest", lambda _: "two")
    assert batch.outcome_digest(grader, "a.zip", b"") != one


def test_what_is_kept_is_one_line_and_what_is_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], grader: Grader
) -> None:
    monkeypatch.setattr(Grader, "grade", lambda *_, **__: Outcome(assignment="a2"))
    (tmp_path / "in").mkdir()
    names = ["a.zip", "b\nana.zip: 100\x1b[2J.zip", "c.zip"]
    for name in names:
        (tmp_path / "in" / name).write_bytes(b"")
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(assistant.time, "monotonic", lambda: next(clock))
    for _ in range(2):
        progress = assistant.Progress()
        grade_folder(grader, tmp_path / "in", tmp_path / "out", begun=progress.begin, told=progress.tell)
    assert capsys.readouterr().out.splitlines() == [
        *("a.zip: received", "1 of 3, 4 minutes left"),
        *("'b\\nana.zip: 100\\x1b[2J.zip': received", "2 of 3, 2 minutes left", "c.zip: received"),
        "3 of 3 kept from before: nothing that decides has changed",
    ]


def test_a_platform_knows_whose_a_submission_is(tmp_path: Path, run_hybridnn: Run) -> None:
    course_of(tmp_path / "term", "a2")
    (tmp_path / "in").mkdir()
    for name in ("bob.zip", "late.zip"):
        (tmp_path / "in" / name).write_bytes(submission_zip(A2, A2.standard, {"blocks.py": "("}, student="ada"))
    (tmp_path / "names.csv").write_text("submission,student\nbob.zip,bob\n")
    command = ("course", "grade", "a2", "in", "--course", "term", "--trust-submissions")
    for names in (["--names", "names.csv"], []):  # which are kept
        code, out, err = run_hybridnn(*command, *names)
        assert code == 0, err
        assert ("names.csv: has no row of late.zip" in out) == bool(names)
        rows = _rows((tmp_path / "grades" / GRADES).read_text())
        assert {name: row["student"] for name, row in rows.items()} == {"bob.zip": "bob", "late.zip": "ada"}
    (tmp_path / "names.csv").write_text("submission,name\nbob.zip,bob\n")
    assert "needs columns submission and student" in error_line(run_hybridnn(*command, "--names", "names.csv"))


def test_a_right_answer_by_another_method_has_half_of_its_points() -> None:
    """An all-reduce that gathers at rank 0 and sends the sum back."""
    a3 = load_assignment("a3")

    def allreduce(group: Any, array: Any, operation: str = "sum") -> None:
        if group.rank:
            group.isend(array, 0, 0).wait()
            group.ireceive(array, 0, 1).wait()
            return
        for rank in range(1, group.size):
            other = array.copy()
            group.ireceive(other, rank, 0).wait()
            array[...] = array + other if operation == "sum" else np.maximum(array, other)
        for rank in range(1, group.size):
            group.isend(array, rank, 1).wait()

    key = TaskKey(a3, a3.task("allreduce"), a3.standard, b"a key of 16 byte")
    outcome = check_task(TrustedRunner({"allreduce": allreduce}), key, whole=False)
    cases = [check for check in outcome.checks if check.kind in ("public", "hidden")]
    halves = [check for check in cases if check.message.startswith("right by another method")]
    assert len(halves) > len(cases) / 2
    assert {check.points / check.possible for check in halves} == {0.5}
    assert {check.message for check in halves if check.kind == "hidden"} == {"right by another method"}
    assert outcome.points < 0.6 * outcome.possible


def test_grade_says_first_that_submissions_are_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    course_of(tmp_path / "term", "a2")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.zip").write_bytes(b"no zip")
    grade("a2", tmp_path / "in", tmp_path / "term", tmp_path / "out", trusted=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == isolation.TRUSTED
    assert lines[1].startswith("broken.zip: not gradable")
