"""What would let the suite pass in silence: tests that fail on one rank, that are drawn never, or are skipped."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermetic import LAUNCHERS, needs_the_machine
from mpi_runner.launch import job_environment, marked_processes, started_job
from mpi_runner.outer import judge, wait_for_job
from mpi_runner.slowness import deadline
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


@pytest.mark.parametrize(
    ("begun", "trouble", "outcomes"),
    [
        ("ab", None, {"a": "passed", "b": "passed"}),
        ("a", None, {"a": "passed", "b": "failed"}),
        ("", None, {"a": "failed", "b": "failed"}),
        ("a", "exit code 9", {"a": "failed"}),
        ("ab", "exit code 9", {"a": "passed", "b": "failed"}),
        ("", "exit code 9", {"a": "failed", "b": "failed"}),
    ],
)
def test_a_test_of_a_job_passes_only_if_a_later_one_has_begun_or_the_job_ended_well(begun, trouble, outcomes) -> None:
    reports = {test: [pytest.TestReport(test, ("", None, ""), {}, "passed", None, "call")] for test in begun}
    found = judge("ab", reports, trouble)
    assert {test: report.outcome for test, (report,) in found.items()} == outcomes


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
