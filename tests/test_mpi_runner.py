"""The runner of the MPI tests reports every kind of failure, always ends, and leaves no processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from mpi_runner.launch import JobResult, job_environment, marked_processes, started_job
from mpi_runner.outer import wait_for_job
from mpi_runner.slowness import SLOWNESS, deadline
from mpi_runner.verdicts import JobEnd, judge

pytestmark = pytest.mark.slow

CASES = Path(__file__).parent / "mpi_runner_cases"


@contextmanager
def started_suite(tmp_path: Path, case: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start pytest on a file of cases; yield the process and the mark in the environment of all its processes."""
    name, value = "HYBRIDNN_TEST_OF_RUNNER", uuid.uuid4().hex
    plain = ["-v", "--color=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", str(CASES / case), *plain, *options]
    environment = job_environment({name: value, "TMPDIR": str(tmp_path), "COLUMNS": "120"})
    with (
        (tmp_path / "output").open("wb") as out,
        started_job(command, stdout=out, environment=environment, folder=CASES.parent.parent) as process,
    ):
        yield process, f"{name}={value}"


def run_suite(tmp_path: Path, case: str, *options: str) -> tuple[dict[str, str], str]:
    """Run pytest on a file of cases; return the outcome of each test and all the output."""
    with started_suite(tmp_path, case, *options) as (process, mark):
        process.wait(deadline(60))
        assert marked_processes(mark) == []
    text = (tmp_path / "output").read_text()
    outcomes = re.findall(r"^\S+::(.+?) (PASSED|FAILED|SKIPPED|XFAIL)", text, re.MULTILINE)
    return dict(outcomes), text


def test_serial_tests_go_on_in_the_file_after_an_mpi_test(tmp_path: Path) -> None:
    outcomes, text = run_suite(tmp_path, "case_mixed.py", str(CASES / "case_serial.py"))
    assert set(outcomes.values()) == {"PASSED"}
    assert "3 passed" in text


def test_green_suite_is_green(tmp_path: Path) -> None:
    outcomes, text = run_suite(tmp_path, "case_green.py")
    assert outcomes == {
        "test_ranks[np2]": "PASSED",
        "test_ranks[np3]": "PASSED",
        "test_shared_folder[np3-plain]": "PASSED",
        "test_shared_folder[np3-with space]": "PASSED",
        "test_skipped[np2]": "SKIPPED",
        "test_expected_failure[np2]": "XFAIL",
        "test_serial": "PASSED",
    }
    assert "5 passed, 1 skipped, 1 xfailed" in text
    assert "the reason of the skip" in text


def test_each_failure_is_reported_and_the_tests_around_it_pass(tmp_path: Path) -> None:
    start = time.monotonic()
    outcomes, text = run_suite(tmp_path, "case_broken.py")
    assert time.monotonic() - start < deadline(60)
    assert outcomes == {
        "test_before[np2]": "PASSED",
        "test_one_rank_asserts[np2]": "FAILED",
        "test_between[np2]": "PASSED",
        "test_deadlock[np2]": "FAILED",
        "test_exits[np2]": "FAILED",
        "test_segmentation_fault[np2]": "FAILED",
        "test_after[np2]": "PASSED",
    }
    assert "--- rank 1 of 2, call ---" in text
    assert "assert comm.rank == 17" in text
    assert "printed by the failing rank" in text
    assert "in test_deadlock\n    comm.recv(source=1 - comm.rank)" in text
    assert "exit code 3" in text


def test_limits_are_multiplied_by_the_slowness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "1000")
    outcomes, text = run_suite(tmp_path, "case_limits.py", "-o", "timeout=0.3")
    assert len(outcomes) == 4
    assert set(outcomes.values()) == {"PASSED"}, text
    assert "deadlines: x 1000.0" in text


def test_selection_and_stop_at_the_first_failure(tmp_path: Path) -> None:
    outcomes, text = run_suite(tmp_path, "case_broken.py", "-x", "-k", "asserts or between or after")
    assert outcomes == {"test_one_rank_asserts[np2]": "FAILED"}
    assert "stopping after 1 failures" in text


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most `seconds` on an idle machine."""
    end = time.monotonic() + deadline(seconds)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def both_ranks_began(folder: Path) -> bool:
    """Return whether the two ranks of a job have written their first record."""
    return len(list(folder.glob("hybridnn-mpi-*/*.jsonl"))) == 2


def all_gone(mark: str) -> bool:
    """Return whether no process carries the mark."""
    return not marked_processes(mark)


def test_no_process_outlives_an_ended_run(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGKILL)
    folders = [tmp_path / number.name for number in numbers]
    with ExitStack() as stack:
        suites = []
        for folder in folders:
            folder.mkdir()
            suites.append(stack.enter_context(started_suite(folder, "case_stalled.py")))
        for (process, mark), folder, number in zip(suites, folders, numbers, strict=True):
            wait_until(partial(both_ranks_began, folder), 30)
            assert len(marked_processes(mark)) >= 4
            os.kill(process.pid, number)
        for process, mark in suites:
            process.wait(deadline(20))
            wait_until(partial(all_gone, mark), 10)
    assert [process.returncode for process, _ in suites] == [128 + signal.SIGTERM, -signal.SIGKILL]


def test_job_without_progress_is_ended_by_the_outer_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with (
        (tmp_path / "output").open("wb") as out,
        started_job(command, stdout=out, environment=job_environment()) as process,
    ):
        assert wait_for_job(process, tmp_path, seconds=0.5) == "killed after 0.5 s in which no test began or finished"
    assert process.returncode == -signal.SIGTERM


def test_started_job_is_killed_at_its_limit(run_mpi: Callable[..., JobResult]) -> None:
    result = run_mpi(
        2, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)", timeout=1
    )
    assert result.timed_out
    assert result.seconds < deadline(10)


def test_started_job_returns_its_output_and_exit_code(run_mpi: Callable[..., JobResult]) -> None:
    program = """
import os, sys
from mpi4py import MPI
print("out", MPI.COMM_WORLD.size, os.environ["GIVEN"], os.environ.get("OMP_NUM_THREADS"))
print("complaint", file=sys.stderr)
sys.stdout.flush()
MPI.COMM_WORLD.Barrier()
MPI.COMM_WORLD.Abort(7)
"""
    result = run_mpi(2, program, env={"GIVEN": "value", "OMP_NUM_THREADS": None}, timeout=20)
    assert not result.timed_out
    assert result.returncode == 7
    assert result.stdout.splitlines() == ["out 2 value None"] * 2
    assert result.stderr.count("complaint") == 2  # the line may contain other output


def test_mpi_mark_refuses_unknown_arguments(tmp_path: Path) -> None:
    case = tmp_path / "test_case.py"
    case.write_text("import pytest\n@pytest.mark.mpi(sizes=[2])\ndef test_a(): pass\n")
    command = [sys.executable, "-m", "pytest", "-c", str(CASES.parent.parent / "pyproject.toml"), str(case)]
    result = subprocess.run(
        [*command, "-p", "mpi_runner.plugin", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": str(CASES.parent)},
        capture_output=True,
        text=True,
        timeout=deadline(60),
        check=False,
    )
    assert result.returncode != 0
    assert "mpi takes only ranks=[...] and min_size=, by name" in result.stdout + result.stderr


class TestJudge:
    """Outcomes from given records, without a job."""

    GOOD = JobEnd(True, "mpirun ended with exit code 0", "")
    BAD = JobEnd(False, "mpirun ended with exit code 9", "the output")

    @staticmethod
    def events(
        test: str, *, outcome: str | None = "passed", text: str = "", finish: bool = True
    ) -> list[dict[str, object]]:
        report: dict[str, object] = {"skipped_at": None, "text": text, "seconds": 0.5}
        report |= {"expected_failure": None, "sections": []}
        written: list[dict[str, object]] = [{"event": "start", "test": test}]
        if outcome is not None:
            written.append({"event": "report", "test": test, "when": "call", "outcome": outcome, **report})
        if finish:
            written.append({"event": "finish", "test": test})
        return written

    def test_all_passed(self) -> None:
        records = [self.events("a") + self.events("b")] * 2
        verdicts = judge(["a", "b"], records, self.GOOD)
        assert {name: verdict.outcome for name, verdict in verdicts.items()} == {"a": "passed", "b": "passed"}

    def test_reports_after_a_failure_are_ignored(self) -> None:
        records = [self.events("a") + self.events("b"), self.events("a", outcome="failed")]
        assert {name: v.outcome for name, v in judge(["a", "b"], records, self.BAD).items()} == {"a": "failed"}

    def test_the_running_test_fails(self) -> None:
        records = [self.events("a") + self.events("b", outcome=None, finish=False), self.events("a")]
        verdicts = judge(["a", "b", "c"], records, self.BAD)
        assert {name: verdict.outcome for name, verdict in verdicts.items()} == {"a": "passed", "b": "failed"}
        assert "ranks [0] of 2 did not finish" in verdicts["b"].text
        assert "the output" in verdicts["b"].text

    def test_ranks_that_fail_at_the_same_place_are_shown_once(self) -> None:
        records = [self.events("a", outcome="failed", text=f"value {rank}\nfile.py:3: Error") for rank in range(3)]
        text = judge(["a"], records, self.BAD)["a"].text
        assert text == "--- rank 0 of 3, call (at the same place: ranks [1, 2]) ---\nvalue 0\nfile.py:3: Error"

    def test_a_job_that_never_began_fails_all_its_tests(self) -> None:
        verdicts = judge(["a", "b"], [[], []], self.BAD)
        assert {name: verdict.outcome for name, verdict in verdicts.items()} == {"a": "failed", "b": "failed"}

    def test_an_end_between_tests_fails_the_next_test(self) -> None:
        verdicts = judge(["a", "b", "c"], [self.events("a")] * 2, self.BAD)
        assert {name: verdict.outcome for name, verdict in verdicts.items()} == {"a": "passed", "b": "failed"}

    def test_a_bad_end_after_the_last_test_is_a_failure(self) -> None:
        verdicts = judge(["a"], [self.events("a")] * 2, self.BAD)
        assert verdicts["a"].outcome == "failed"
