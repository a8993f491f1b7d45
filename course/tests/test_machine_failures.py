"""A failure of the machine is never a grade: it is tried again, then stored as to be graded again."""

from __future__ import annotations

import csv
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course.tests.made import course_of, submission_zip
from hybridnn.errors import DataError
from hybridnn_course import carrier, isolation
from hybridnn_course.answers import Failure
from hybridnn_course.assignment import Case
from hybridnn_course.carrier import Worker
from hybridnn_course.execution import MachineError
from hybridnn_course.outcome import Outcome
from hybridnn_course_staff import reading
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.batch import SUFFIX, stored_outcome
from hybridnn_course_staff.gradescope import UNFINISHED, gradescope_results
from hybridnn_course_staff.grading import Grader, Limits
from hybridnn_course_staff.term_report import term_report
from mpi_runner.slowness import deadline
from reference.command_line import Run

A2 = load_assignment("a2")
BOUNDS = replace(A2, tasks=(replace(A2.task("bounds"), whole=None),))
"""The task alone, whose cases are quick."""

RIGHT = """
def block_bounds(items, parts, part):
    size, longer = divmod(items, parts)
    first = part * size + min(part, longer)
    return first, first + size + (part < longer)
"""
HEAD = "import os, signal, time\nimport numpy as np\ndef block_bounds(items, parts, part):\n    "
PROVED = {
    "    while True: pass": "no end",
    "    signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n    while True: pass": "no end",
    "    os.fork()\n    while True: pass": "no end",
    "    os._exit(3)": "ended",
    "    os.kill(os.getpid(), signal.SIGSEGV)": "ended",
    "    os.closerange(3, 64)\n    time.sleep(100)": "ended",
    "    np.empty(2 ** 40)": "memory",
}
UNKNOWN = {
    "    time.sleep(1000)": r"no result after [\d.]+ s, of which 0\.\d s of processor time",
    "    os.kill(os.getpid(), signal.SIGSTOP)": "no result after",
    "    os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL, which no limit of a submission sends",
}


def answer_of(body: str) -> Failure:
    with Worker(A2, {"blocks.py": HEAD + body.strip() + "\n", "gradient.py": ""}, limit=deadline(0.5)) as worker:
        found = worker.run(A2.task("bounds"), Case("", ({"of": [3, 1]},)), A2.standard).failure
        assert found is not None
        return found


@pytest.mark.parametrize("body", PROVED)
def test_what_a_submission_did_is_proved_by_the_kernel(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr(carrier, "WALL_FACTOR", 10 if "fork" in body else 60)
    assert answer_of(body).kind == PROVED[body]


@pytest.mark.parametrize("body", UNKNOWN)
def test_what_another_program_may_have_done_blames_nobody(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr(carrier, "WALL_FACTOR", 2)
    with pytest.raises(MachineError, match=UNKNOWN[body]):
        answer_of(body)


def test_memory_that_only_the_machine_can_have_refused_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "MEMORY_LEFT", 1 << 60)
    with pytest.raises(MachineError, match="memory was refused"):
        answer_of("    np.empty(2 ** 40)")


class Grading:
    """Grades a right submission of one task with limits that no machine is too slow for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = Limits(case=deadline(10), submission=deadline(120))
        self.grader = Grader(course_of(folder, "a2"), BOUNDS, "none", limits)
        self._patch, self._run = monkeypatch, Worker.run
        self.archive = submission_zip(A2, A2.standard, {"blocks.py": RIGHT}, student="ada")

    def lose(self, workers: int) -> None:
        """Lose the worker of the next gradings in their second case."""
        left, cases = [workers], [0]

        def run(worker: Worker, *arguments: Any) -> Any:
            cases[0] += 1
            if left[0] and cases[0] > 1:
                left[0], cases[0] = left[0] - 1, 0
                os.kill(worker._process.pid, signal.SIGKILL)
            return self._run(worker, *arguments)

        self._patch.setattr(Worker, "run", run)

    def grade(self) -> Outcome:
        return self.grader.grade(self.archive)


@pytest.fixture
def grading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grading:
    return Grading(tmp_path / "term", monkeypatch)


def test_a_worker_that_is_lost_once_costs_nothing(grading: Grading) -> None:
    grading.lose(1)
    outcome = grading.grade()
    assert (outcome.ungraded, outcome.points, outcome.student) == ("", 17, "ada")


def test_a_machine_that_fails_twice_gives_no_grade(grading: Grading) -> None:
    grading.lose(2)
    outcome = grading.grade()
    assert "the process that starts those of the submission was lost" in outcome.ungraded
    assert outcome.tasks == ()
    assert gradescope_results(outcome)["output"] == UNFINISHED


def test_a_worker_that_does_not_start_gives_no_grade(grading: Grading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "PROGRAM", "{paths!r}")
    assert "the process for submissions did not start" in grading.grade().ungraded


def test_a_reader_that_is_lost_gives_no_grade(grading: Grading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "read_submission", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert "the process that reads it was lost" in grading.grade().ungraded


def test_what_has_no_grade_is_counted_and_graded_by_the_same_command(
    tmp_path: Path, run_hybridnn: Run, grading: Grading, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/ada.zip").write_bytes(grading.archive)
    command = ("course", "grade", "a2", "in", "--course", "term", "--trust-submissions")
    grade = Grader.grade
    monkeypatch.setattr(Grader, "grade", lambda *_, **__: Outcome(assignment="a2", again="the worker was lost"))
    code, out, _ = run_hybridnn(*command)
    assert code == 1
    assert "ada.zip: to be graded again: the worker was lost" in out
    assert out.splitlines()[-1] == "1 submission to be graded again, by the same command"
    (row,) = csv.DictReader((tmp_path / "grades/grades.csv").read_text().splitlines())
    assert (row["points"], row["gradable"], row["reason"]) == ("", "again", "to be graded again: the worker was lost")
    with pytest.raises(DataError, match=r"ada\.zip is to be graded again"):
        term_report(grading.grader.course, [tmp_path / "grades"])
    monkeypatch.setattr(Grader, "grade", grade)
    assert run_hybridnn(*command)[0] == 0
    (stored,) = map(stored_outcome, (tmp_path / "grades").glob(f"*{SUFFIX}"))
    assert stored is not None
    assert (stored.ungraded, stored.points > 0) == ("", True)
