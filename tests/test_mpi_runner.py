"""The runner of the MPI tests reports every kind of failure, always ends, and leaves no processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpi_runner.launch import (
    JobResult,
    MpirunNotFound,
    find_mpirun,
    job_environment,
    marked_processes,
    started_job,
)
from mpi_runner.outer import wait_for_job
from mpi_runner.plugin import pytest_generate_tests
from mpi_runner.slowness import SLOWNESS, deadline, wait_until
from mpi_runner.verdicts import JobEnd, judge

CASES = Path(__file__).parent / "mpi_runner_cases"


@contextmanager
def started_suite(
    tmp_path: Path, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start pytest with files of cases; yield the process and the mark in the environment of all its processes."""
    name, value = "HYBRIDNN_TEST_OF_RUNNER", uuid.uuid4().hex
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *arguments]
    changes = {name: value, "TMPDIR": str(tmp_path), "COLUMNS": "120", "PYTEST_ADDOPTS": None, **(environment or {})}
    with (
        (tmp_path / "output").open("wb") as out,
        started_job(command, stdout=out, environment=job_environment(changes), folder=CASES.parent.parent) as process,
    ):
        yield process, f"{name}={value}"


def run_suite(tmp_path: Path, *arguments: str, environment: dict[str, str] | None = None) -> tuple[dict[str, str], str]:
    """Run pytest with files of cases; return the outcome of each test and all the output."""
    with started_suite(tmp_path, *arguments, environment=environment) as (process, mark):
        process.wait(deadline(60))
        assert marked_processes(mark) == []
    text = (tmp_path / "output").read_text()
    outcomes = re.findall(r"^\S+::(.+?) (PASSED|FAILED|SKIPPED|XFAIL)", text, re.MULTILINE)
    return dict(outcomes), text


@pytest.mark.slow
def test_green_suite_is_green_within_limits_that_are_multiplied_by_the_slowness(tmp_path: Path) -> None:
    """Serial tests go on in the file after an MPI test; tests take longer than their limits on an idle machine."""
    files = [str(CASES / name) for name in ("case_green.py", "case_serial.py")]
    outcomes, text = run_suite(tmp_path, *files, "-o", "timeout=0.3", environment={SLOWNESS: "1000"})
    passed = ("test_serial", "test_by_name", "test_in_the_next_file", "test_ranks[np2]", "test_ranks[np3]")
    passed += ("test_shared_folder[np3-plain]", "test_shared_folder[np3-with space]")
    expected = {"test_skipped[np2]": "SKIPPED", "test_expected_failure[np2]": "XFAIL"}
    assert outcomes == dict.fromkeys(passed, "PASSED") | expected, text
    assert "7 passed, 1 skipped, 1 xfailed" in text
    assert "the reason of the skip" in text


@pytest.mark.slow
def test_each_failure_is_reported_and_the_tests_around_it_pass(tmp_path: Path) -> None:
    outcomes, text = run_suite(tmp_path, str(CASES / "case_broken.py"))
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
    assert "the reason of the exit" in text


@pytest.mark.slow
def test_selection_and_stop_at_the_first_failure(tmp_path: Path) -> None:
    outcomes, text = run_suite(tmp_path, str(CASES / "case_broken.py"), "-x", "-k", "asserts or between or after")
    assert outcomes == {"test_one_rank_asserts[np2]": "FAILED"}
    assert "stopping after 1 failures" in text


@pytest.mark.slow
def test_no_process_outlives_an_ended_run(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGKILL)
    with ExitStack() as stack:
        suites = []
        for number in numbers:
            folder = tmp_path / number.name
            folder.mkdir()
            suites.append(stack.enter_context(started_suite(folder, str(CASES / "case_stalled.py"))))
        for (process, mark), number in zip(suites, numbers, strict=True):
            records = (tmp_path / number.name).glob
            wait_until(lambda: len(list(records("hybridnn-mpi-*/*.jsonl"))) == 2, 30)  # noqa: B023 - both ranks began
            assert len(marked_processes(mark)) >= 4
            os.kill(process.pid, number)
        for process, mark in suites:
            process.wait(deadline(20))
            wait_until(lambda: not marked_processes(mark), 10)  # noqa: B023
    assert [process.returncode for process, _ in suites] == [128 + signal.SIGTERM, -signal.SIGKILL]


def test_job_without_progress_is_ended_by_the_outer_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with (
        (tmp_path / "output").open("wb") as out,
        started_job(command, stdout=out, environment=job_environment()) as process,
    ):
        assert wait_for_job(process, tmp_path, seconds=0.5) == "killed after 0.5 s in which no test began or finished"
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_started_job_is_killed_at_its_limit(run_mpi: Callable[..., JobResult]) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    assert run_mpi(2, program, timeout=1).timed_out


@pytest.mark.slow
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
    assert (result.timed_out, result.returncode) == (False, 7)
    assert result.stdout.splitlines() == ["out 2 value None"] * 2
    assert result.stderr.count("complaint") == 2  # the line may contain other output


def test_mpi_mark_refuses_unknown_arguments() -> None:
    def mark(name: str) -> object:
        return pytest.mark.mpi(sizes=[2]).mark if name == "mpi" else None

    with pytest.raises(pytest.UsageError, match=r"mpi takes only ranks=\[...\] and min_size=, by name"):
        pytest_generate_tests(SimpleNamespace(definition=SimpleNamespace(get_closest_marker=mark, nodeid="test")))  # type: ignore[arg-type]


def test_mpirun_beside_the_interpreter_precedes_the_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("on path", "beside python"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").write_text("#!/bin/sh\n")
        (tmp_path / folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "on path"))
    for folder in ("beside python", "elsewhere"):
        monkeypatch.setattr(sys, "executable", str(tmp_path / folder / "python"))
        found = tmp_path / ("on path" if folder == "elsewhere" else folder) / "mpirun"
        assert find_mpirun() == str(found)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MpirunNotFound):
        find_mpirun()


RECORD = {"skipped_at": None, "seconds": 0.5, "expected_failure": None, "sections": [], "when": "call"}
GOOD, BAD = (
    JobEnd(True, "mpirun ended with exit code 0", ""),
    JobEnd(False, "mpirun ended with exit code 9", "the output"),
)


def events(test: str, outcome: str | None = "passed", text: str = "") -> list[dict[str, object]]:
    """Records of a test, which ends if it has an outcome."""
    written: list[dict[str, object]] = [{"event": "start", "test": test}]
    if outcome is not None:
        written.append({"event": "report", "test": test, "outcome": outcome, "text": text, **RECORD})
        written.append({"event": "finish", "test": test})
    return written


@pytest.mark.parametrize(
    ("tests", "records", "end", "outcomes"),
    [
        ("ab", [events("a") + events("b")] * 2, GOOD, {"a": "passed", "b": "passed"}),
        ("ab", [events("a") + events("b"), events("a", "failed")], BAD, {"a": "failed"}),
        ("abc", [events("a") + events("b", None), events("a")], BAD, {"a": "passed", "b": "failed"}),
        ("ab", [[], []], BAD, {"a": "failed", "b": "failed"}),
        ("abc", [events("a")] * 2, BAD, {"a": "passed", "b": "failed"}),
        ("a", [events("a")] * 2, BAD, {"a": "failed"}),
    ],
    ids=["all passed", "reports after a failure are ignored", "the running test fails", "a job that never began",
         "an end between tests fails the next one", "a bad end after the last test"],
)  # fmt: skip
def test_outcomes_follow_from_the_records_of_a_job(
    tests: str, records: list[list[dict[str, object]]], end: JobEnd, outcomes: dict[str, str]
) -> None:
    assert {name: verdict.outcome for name, verdict in judge([*tests], records, end).items()} == outcomes


def test_reports_name_the_ranks_that_failed_or_did_not_finish() -> None:
    text = judge("ab", [events("a") + events("b", None), events("a")], BAD)["b"].text
    assert "ranks [0] of 2 did not finish" in text
    assert "the output" in text
    at_one_place = [events("a", "failed", f"value {rank}\nfile.py:3: Error") for rank in range(3)]
    text = judge("a", at_one_place, BAD)["a"].text
    assert text == "--- rank 0 of 3, call (at the same place: ranks [1, 2]) ---\nvalue 0\nfile.py:3: Error"
