"""What would let the suite pass in silence: tests that fail on one rank, that are drawn never, or are skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermetic import LAUNCHERS, needs_the_machine
from mpi_runner.launch import job_environment, marked_processes, started_job
from mpi_runner.outer import wait_for_job
from mpi_runner.slowness import deadline
from mpi_runner.verdicts import JobEnd, judge
from selection import third_of

TESTS = Path(__file__).parent


@pytest.mark.slow
def test_each_failure_under_mpi_is_reported_the_tests_around_it_pass_and_no_process_remains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider"]
    command.append(str(TESTS / "mpi_runner" / "broken_cases.py"))
    mark = {"HYBRIDNN_TEST_OF_RUNNER": str(tmp_path)}
    environment = job_environment(mark | {"TMPDIR": str(tmp_path), "COLUMNS": "120", "PYTEST_ADDOPTS": None})
    with (
        (tmp_path / "output").open("wb") as out,
        started_job(command, stdout=out, environment=environment, folder=TESTS.parent) as process,
    ):
        process.wait(deadline(60))
        assert marked_processes(f"HYBRIDNN_TEST_OF_RUNNER={tmp_path}") == []
    text = (tmp_path / "output").read_text()
    assert dict(re.findall(r"^\S+::(.+?)\[np2\] (PASSED|FAILED|SKIPPED|XFAIL)", text, re.MULTILINE)) == {
        "test_before": "PASSED",
        "test_one_rank_asserts": "FAILED",
        "test_between": "PASSED",
        "test_deadlock": "FAILED",
        "test_exits": "FAILED",
        "test_skipped": "SKIPPED",
        "test_expected_failure": "XFAIL",
        "test_segmentation_fault": "FAILED",
        "test_after": "PASSED",
    }
    assert "--- rank 1 of 2, call ---" in text
    assert "assert comm.rank == 17" in text
    assert "printed by the failing rank" in text
    assert "in test_deadlock\n    comm.recv(source=1 - comm.rank)" in text
    assert "exit code 3" in text
    assert "the reason of the exit" in text
    assert "the reason of the skip" in text


def test_a_job_without_progress_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with (
        (tmp_path / "output").open("wb") as out,
        started_job(command, stdout=out, environment=job_environment()) as process,
    ):
        assert wait_for_job(process, tmp_path, seconds=0.5) == "killed after 0.5 s in which no test began or finished"


RECORD = {"text": "", "skipped_at": None, "seconds": 0.5, "expected_failure": None, "sections": [], "when": "call"}
GOOD, BAD = JobEnd(True, "mpirun ended with exit code 0", ""), JobEnd(False, "mpirun ended with exit code 9", "")


def events(test: str, outcome: str | None = "passed") -> list[dict[str, object]]:
    """Records of a test, which ends if it has an outcome."""
    written: list[dict[str, object]] = [{"event": "start", "test": test}]
    if outcome is not None:
        written += [{"event": "report", "test": test, "outcome": outcome, **RECORD}, {"event": "finish", "test": test}]
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


@pytest.mark.parametrize("seed", [0, 739_000, int("ea81f90" * 5, 16)])
def test_every_name_is_in_the_third_of_one_of_three_seeds(seed: int) -> None:
    assert all(sum(third_of(f"case {case}", seed + day) for day in range(3)) == 1 for case in range(100))


def test_this_process_finds_no_launcher_but_its_own(pytestconfig: pytest.Config) -> None:
    if needs_the_machine(pytestconfig.option.markexpr):
        pytest.skip("the tests of Slurm and of nodes use the machine's launchers")
    found = {name: path for name in LAUNCHERS if (path := shutil.which(name)) is not None}
    assert {Path(path).parent for path in found.values()} <= {Path(sys.executable).parent}


@pytest.mark.parametrize(("there", "printed"), [(True, "required\n"), (False, "")])
def test_a_browser_that_ci_has_is_required(there: bool, printed: str, tmp_path: Path) -> None:
    """Else the tests of pages would be skipped."""
    for name in ("bash", "timeout", "cat", "chmod"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    for name, text in {"id": "echo 1000", "apt-get": "exit 1", **({"chromium": ""} if there else {})}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script, environment = TESTS.parent / ".ci/browser", {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == printed
