"""Grading of folders: every score is that of the catalogue, and a grading that is killed goes on where it was."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from course.made import course_of, submission_zip, wrong_files
from course.rewritten import LAYOUTS, rewritten_files
from hybridnn.cli.course.assistant import grade
from hybridnn.course import grading, isolation
from hybridnn.course.assignment import Assignment, Mistake, Task, load_assignment
from hybridnn.course.batch import SUFFIX, Graded, grade_folder, read_outcomes, with_student_flags
from hybridnn.course.checks import TaskKey, TrustedRunner, check_task
from hybridnn.course.grading import Grader, Limits
from hybridnn.course.isolation import choose_isolation
from hybridnn.course.outcome import Outcome
from hybridnn.course.reports import FEEDBACK, GRADES, PAGE, write_reports
from hybridnn.course.submission import Submission, UngradableError
from hybridnn.course.term import KEY, Course
from hybridnn.errors import DataError, EnvironmentProblem
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
CODE = ("a1", "a2", "a3", "a4", "a5", "a6", "a7")
"""Assignments whose tasks are functions."""

JOBS = 2
SECONDS = 10  # of a submission and job, on an idle machine
MISTAKES = [(task.name, mistake.name) for task in A2.tasks for mistake in task.mistakes]


class Catalogue:
    """Points of each task by the functions of the kit, in this process, without submissions."""

    def __init__(self, course: Course, assignment: Assignment) -> None:
        self._course, self._assignment = course, assignment
        self._points: dict[tuple[str, str], float] = {}

    def points(self, mistakes: Mapping[str, str]) -> float:
        """Points of a submission with the mistakes of some tasks, by task, and the reference for all others."""
        return round(sum(self._of_task(task, mistakes.get(task.name, "")) for task in self._assignment.tasks), 2)

    def _of_task(self, task: Task, mistake: str) -> float:
        if (task.name, mistake) not in self._points:
            variant = self._course.variant(self._assignment)
            functions = {known.name: known.function for known in task.mistakes}
            function = functions.get(mistake, task.solution)(variant)
            key = TaskKey(self._assignment, task, variant, self._course.key)
            self._points[task.name, mistake] = check_task(TrustedRunner({task.name: function}), key).points
        return self._points[task.name, mistake]


def _make(
    folder: Path, course: Course, chosen: Sequence[Mapping[str, str]], assignment: Assignment = A2
) -> dict[str, float]:
    """Write submissions, and return their expected points by name."""
    folder.mkdir()
    variant = course.variant(assignment)
    catalogue, expected = Catalogue(course, assignment), {}
    for number, mistakes in enumerate(chosen):
        if assignment is A2:
            files = rewritten_files(assignment, variant, mistakes, number)
        else:
            known = {task: _mistake(assignment, task, name) for task, name in mistakes.items()}
            files = wrong_files(assignment, variant, known, LAYOUTS[number % len(LAYOUTS)])
        name = f"student-{number:03}.zip"
        (folder / name).write_bytes(submission_zip(assignment, variant, files, student=f"student {number}"))
        expected[name] = catalogue.points(mistakes)
    return expected


def _mistake(assignment: Assignment, task: str, name: str) -> Mistake:
    return next(mistake for mistake in assignment.task(task).mistakes if mistake.name == name)


def _combined(assignment: Assignment) -> list[dict[str, str]]:
    """Submissions with a mistake in every task, so many that each mistake is in one of them."""
    known = {
        task.name: [mistake.name for mistake in task.mistakes if mistake.applies(assignment.standard)]
        for task in assignment.tasks
    }
    most = max(map(len, known.values()))
    return [{task: names[number % len(names)] for task, names in known.items()} for number in range(most)]


def _made_submissions(assignment: Assignment) -> list[dict[str, str]]:
    """Mistakes by task: none, one in every task, and where submissions are code of their own, one alone."""
    alone = [{task: name} for task, name in MISTAKES] if assignment is A2 else []
    return [{}, {}, {}, {}, *_combined(assignment), *alone, *alone]


def _rows(text: str) -> dict[str, dict[str, str]]:
    return {row["submission"]: row for row in csv.DictReader(io.StringIO(text))}


def _isolation() -> str:
    try:
        return choose_isolation("auto")
    except EnvironmentProblem:
        return "none"


@dataclass(frozen=True)
class Folder:
    """Submissions of a course, which the command grades.

    Attributes
    ----------
    limit : float
        Seconds to grade all of them.
    """

    course: Course
    name: str
    submissions: Path
    limit: float

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the command."""
        return {**os.environ, "OPENBLAS_NUM_THREADS": "1"}

    def command(self, out: Path) -> list[str]:
        """The command that grades them."""
        command = [sys.executable, "-m", "hybridnn", "course", "grade", self.name, str(self.submissions)]
        command += ["--course", str(self.course.folder), "--out", str(out), "--jobs", str(JOBS)]
        return [*command, "--isolation", _isolation()]

    def grade(self, out: Path) -> None:
        """Grade all of them in time."""
        subprocess.run(
            self.command(out), env=self.environment, stdout=subprocess.DEVNULL, check=True, timeout=self.limit
        )

    def grade_until_killed(self, out: Path, count: int) -> None:
        """Grade until there are so many outcomes, and kill the command."""
        with subprocess.Popen(self.command(out), env=self.environment, stdout=subprocess.DEVNULL) as process:
            end = time.monotonic() + self.limit
            while len(list(out.glob(f"*{SUFFIX}"))) < count and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)


def _folder(tmp_path: Path, name: str, chosen: Sequence[Mapping[str, str]]) -> tuple[Folder, dict[str, float]]:
    """A folder of submissions, and their expected points."""
    course = course_of(tmp_path / "course", name)
    (course.folder / KEY).write_text("00112233445566778899aabbccddeeff")
    course = Course.open(course.folder)
    expected = _make(tmp_path / "submissions", course, chosen, load_assignment(name))
    return Folder(course, name, tmp_path / "submissions", deadline(SECONDS * len(chosen) / JOBS)), expected


def test_two_hundred_submissions_are_made() -> None:
    assert sum(len(_made_submissions(load_assignment(name))) for name in CODE) >= 200


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", CODE)
def test_submissions_get_the_points_of_the_catalogue(name: str, tmp_path: Path) -> None:
    chosen = _made_submissions(load_assignment(name))
    folder, expected = _folder(tmp_path, name, chosen)
    folder.grade(tmp_path / "grades")
    rows = _rows((tmp_path / "grades" / GRADES).read_text())
    assert {submission: float(row["points"]) for submission, row in rows.items()} == expected
    for number, mistakes in enumerate(chosen):
        named = set(rows[f"student-{number:03}.zip"]["mistakes"].split())
        assert named == {f"{task}.{mistake}" for task, mistake in mistakes.items()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["a2", "a3"])
def test_a_grading_that_is_killed_and_repeated_gives_the_tables_of_one_that_is_not(name: str, tmp_path: Path) -> None:
    chosen = _made_submissions(load_assignment(name))[:12]
    folder, _ = _folder(tmp_path, name, chosen)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    folder.grade_until_killed(killed, 4)
    before = {path: path.stat().st_mtime_ns for path in killed.glob(f"*{SUFFIX}")}
    assert 4 <= len(before) < len(chosen)
    assert not (killed / GRADES).exists()
    folder.grade(killed)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    folder.grade(whole)
    for table in (GRADES, PAGE):
        assert (killed / table).read_bytes() == (whole / table).read_bytes()


@pytest.fixture
def grader(tmp_path: Path) -> Grader:
    limits = Limits(case=deadline(10), submission=deadline(120))
    return Grader(course_of(tmp_path / "course", "a2"), A2, "none", limits)


def test_a_folder_is_graded_once_and_reported(tmp_path: Path, grader: Grader) -> None:
    chosen = [{}, {"bounds": "remainder-lost"}, {"gradient": "average-of-averages", "buckets": "one-bucket"}]
    expected = _make(tmp_path / "submissions", grader.course, chosen)
    (tmp_path / "submissions" / "broken.zip").write_bytes(b"no zip")
    (tmp_path / "submissions" / "started.zip").write_bytes(submission_zip(A2, A2.standard, {}))
    (tmp_path / "submissions" / "formula.zip").write_bytes(
        submission_zip(A2, A2.standard, rewritten_files(A2, A2.standard, {}, 0), student='=HYPERLINK("x")')
    )
    out = tmp_path / "grades"
    seen: list[str] = []
    graded = grade_folder(grader, tmp_path / "submissions", out, jobs=2, told=lambda item: seen.append(item.name))
    assert sorted(seen) == ["broken.zip", "formula.zip", "started.zip", *sorted(expected)]
    points = {item.name: item.outcome.points for item in graded if item.outcome.gradable}
    assert points == {**expected, "formula.zip": 100.0, "started.zip": 0.0}
    assert points["student-000.zip"] == 100
    write_reports(A2, graded, out, "hints")
    rows = _rows((out / GRADES).read_text())
    assert rows["broken.zip"]["gradable"] == "no"
    assert "not a readable zip file" in rows["broken.zip"]["reason"]
    assert rows["student-002.zip"]["mistakes"] == "gradient.average-of-averages buckets.one-bucket"
    assert rows["formula.zip"]["student"].startswith("'=")
    page = (out / PAGE).read_text()
    assert "not written yet" not in page.partition("<h2>Tasks")[0]
    assert "gradient.average-of-averages" in page
    assert "<script" not in page
    assert "<td>student-001.zip<td>" in page
    assert "<td>bounds.remainder-lost<td>" in page
    feedback = (out / FEEDBACK / "student-001.md").read_text()
    assert next(m.hint for m in A2.task("bounds").mistakes if m.name == "remainder-lost") in feedback
    assert "costs no attempt" in (out / FEEDBACK / "broken.md").read_text()

    again: list[str] = []
    before = {path: path.stat().st_mtime_ns for path in out.glob(f"*{SUFFIX}")}
    repeated = grade_folder(grader, tmp_path / "submissions", out, told=lambda item: again.append(item.name))
    assert repeated == graded
    assert {path: path.stat().st_mtime_ns for path in out.glob(f"*{SUFFIX}")} == before
    stored, missing = read_outcomes(grader, tmp_path / "submissions", out)
    assert stored == graded
    assert missing == []


def test_a_folder_with_the_grades_of_another_assignment_is_refused(tmp_path: Path, grader: Grader) -> None:
    _make(tmp_path / "submissions", grader.course, [{}])
    out = tmp_path / "grades"
    out.mkdir()
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

    monkeypatch.setattr(grading, "read_submission", read)
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(grader.grade, [b""] * 8))
    assert [outcome.reason for outcome in outcomes] == ["read"] * 8
    assert together == [1] * 8


def test_a_damaged_outcome_is_graded_again(tmp_path: Path, grader: Grader) -> None:
    _make(tmp_path / "submissions", grader.course, [{}])
    first = grade_folder(grader, tmp_path / "submissions", tmp_path / "grades")
    (file,) = (tmp_path / "grades").glob(f"*{SUFFIX}")
    file.write_text(file.read_text()[:100])
    assert read_outcomes(grader, tmp_path / "submissions", tmp_path / "grades")[1] == ["student-000.zip"]
    assert grade_folder(grader, tmp_path / "submissions", tmp_path / "grades") == first


def test_hidden_cases_depend_on_the_key_alone(tmp_path: Path) -> None:
    one, other = course_of(tmp_path / "one", "a2"), course_of(tmp_path / "other", "a2")
    task = A2.task("gradient")
    first, second = (TaskKey(A2, task, A2.standard, course.key) for course in (one, other))
    again = TaskKey(A2, task, A2.standard, one.key)
    assert [str(case) for case in first.hidden] == [str(case) for case in again.hidden]
    assert [str(case) for case in first.hidden] != [str(case) for case in second.hidden]
    assert TaskKey(A2, task, A2.standard).hidden == ()


def test_a_solution_of_an_old_term_fails_and_is_flagged(tmp_path: Path) -> None:
    from hybridnn.course.term import create_course

    old = course_of(tmp_path / "old", "a2")
    new = create_course(tmp_path / "new", "Next", ["a2"], previous=tmp_path / "old")
    assert all(new.variant(A2)[axis] != choice for axis, choice in old.variant(A2).items())
    files = rewritten_files(A2, old.variant(A2), {}, 1)
    outcome = Grader(new, A2, "none").grade(submission_zip(A2, old.variant(A2), files))
    assert outcome.points < 60
    lost = {task.name for task in outcome.tasks if task.points < task.possible}
    assert lost == {"bounds", "minibatches", "buckets", "reducer"}
    assert len([flag for flag in outcome.flags if "variant" in flag]) >= 3


def test_grade_says_first_what_the_isolation_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    course_of(tmp_path / "term", "a2")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.zip").write_bytes(b"no zip")
    monkeypatch.setattr(isolation, "missing_protection", lambda mode: f"{mode}: no namespaces")
    grade("a2", tmp_path / "in", tmp_path / "term", tmp_path / "out", isolation="none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "none: no namespaces"
    assert lines[1].startswith("broken.zip: not gradable")
