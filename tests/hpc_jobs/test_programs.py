"""Programs of the batch scripts: run_step, and the searches for a launcher and for a failed node."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from hybridnn.batch_jobs import NOTICE_SECONDS, find_lost_node
from hybridnn.utils.processes import ChildResult
from mpi_runner.launch import JobResult, run_job
from mpi_runner.slowness import deadline, wait_until

pytestmark = pytest.mark.timeout(600)

RUN_STEP = [sys.executable, "-m", "hybridnn.batch_jobs", "run_step"]
COUNTS_SIGNALS = """
import signal, sys
from pathlib import Path
def note(number, frame):
    with open("signals", "a") as file:
        print(signal.Signals(number).name, file=file)
    if number == signal.SIGTERM:
        sys.exit(75)
signal.signal(signal.SIGUSR1, note)
signal.signal(signal.SIGTERM, note)
Path("ready").touch()
while True:
    signal.pause()
"""


@pytest.mark.parametrize(("script", "code"), [("exit 75", 75), ("kill -KILL $$", 137)])
def test_exit_code_is_returned_and_written(tmp_path: Path, script: str, code: int) -> None:
    for file in (str(tmp_path / "code"), ""):
        command = [*RUN_STEP, file, "bash", "-c", script]
        assert subprocess.run(command, timeout=deadline(60)).returncode == code
    assert (tmp_path / "code").read_text() == f"{code}\n"


def test_signals_of_the_parent_alone_are_forwarded_once(tmp_path: Path) -> None:
    """Slurm sends those of others to the command as well."""
    command = [*RUN_STEP, str(tmp_path / "code"), sys.executable, "-c", COUNTS_SIGNALS]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        wait_until((tmp_path / "ready").exists, 60)
        process.send_signal(signal.SIGUSR1)
        seen = tmp_path / "signals"
        wait_until(lambda: seen.exists() and "SIGUSR1\n" in seen.read_text(), 60)
        subprocess.run(["bash", "-c", f"kill -USR1 {process.pid}"], check=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(deadline(60)) == 75
    assert seen.read_text().split() == ["SIGUSR1", "SIGTERM"]
    assert (tmp_path / "code").read_text() == "75\n"


FAKE_SRUN = """#!/bin/sh
case "$1" in
  --mpi=list) echo "MPI plugin types are... none pmi2 pmix" >&2 ;;
  --mpi={works}) echo "$@" >>calls; exit 0 ;;
  *) echo "noise"; echo "MPI sees 1 ranks on 1 nodes, not 4 on 2" >&2; echo "srun: error" >&2; exit 2 ;;
esac
"""


def test_the_process_that_forwards_signals_has_one_thread() -> None:
    """Another thread could receive a signal, and the end of the command, in its place."""
    program = "import os; from hybridnn.batch_jobs import run_step; print(len(os.listdir('/proc/self/task')))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "1\n"


def test_the_package_prints_the_folder_of_the_batch_scripts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hybridnn.batch_jobs"]
    folder = Path(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip())
    assert {path.name for path in folder.iterdir()} >= {"train.sbatch", "machines"}


def _run(tmp_path: Path, works: str, *arguments: str, **variables: str) -> JobResult:
    srun = tmp_path / "srun"
    srun.write_text(FAKE_SRUN.replace("{works}", works))
    srun.chmod(0o755)
    command = [sys.executable, "-m", "hybridnn.batch_jobs", "launcher", *arguments]
    return run_job(command, env={"PATH": str(tmp_path)} | variables, cwd=tmp_path)  # no other launcher


def test_launcher_is_printed_to_stdout_and_failures_to_stderr(tmp_path: Path) -> None:
    result = _run(tmp_path, "pmi2", SLURM_NTASKS="4", SLURM_JOB_NUM_NODES="2")
    assert (result.returncode, result.stdout) == (0, "srun --mpi=pmi2 -n\n")
    assert "launcher: not srun --mpi=pmix: MPI sees 1 ranks on 1 nodes, not 4 on 2\n" in result.stderr
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call == f"--mpi=pmi2 -n 4 {sys.executable} -m hybridnn.comm.launcher 4 2"


def test_no_working_launcher_is_an_error(tmp_path: Path) -> None:
    result = _run(tmp_path, "never", SLURM_NTASKS="4", SLURM_JOB_NUM_NODES="2")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("launcher: nothing starts 4 ranks on 2 nodes that see each other\n")


def test_outside_a_job_is_an_error(tmp_path: Path) -> None:
    result = _run(tmp_path, "pmix")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "SLURM_NTASKS is not set: call this in a Slurm job that asked for --ntasks\n"


def test_launcher_is_found_once_and_stored(tmp_path: Path) -> None:
    stored, job = tmp_path / "run" / "launcher-17", {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"}
    for again in range(2):
        result = _run(tmp_path, "pmi2", str(stored), **job)
        assert (result.returncode, result.stdout) == (0, "srun --mpi=pmi2 -n\n")
        assert result.stderr.endswith("launcher: srun --mpi=pmi2" + ", as found before" * again + "\n")
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    stored.write_text("no-such-program -n\n")  # it does not exist: search again
    assert _run(tmp_path, "pmix", str(stored), **job).stdout == "srun --mpi=pmix -n\n"
    assert stored.read_text() == "srun --mpi=pmix -n\n"
    nowhere = _run(tmp_path, "pmix", str(tmp_path / "srun" / "launcher"), **job)
    assert (nowhere.returncode, nowhere.stdout) == (0, "srun --mpi=pmix -n\n")
    assert "cannot be written" in nowhere.stderr


JOB = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}


class Slurm:
    """Stand-in for Slurm, whose list of nodes is the next of `lists`, and then the last."""

    def __init__(self, trial: ChildResult, *lists: str) -> None:
        self.trial, self.lists, self.calls, self.now = trial, list(lists), list[list[str]](), 0.0

    def run(self, command: list[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
        self.calls.append(command)
        if command[0] == "srun":
            return self.trial
        return ChildResult(0, self.lists.pop(0) if len(self.lists) > 1 else self.lists[0], "", False)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def find(self, environment: Mapping[str, str] = JOB) -> str | None:
        clock = SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now)
        with patch.multiple("hybridnn.batch_jobs", run_child=self.run, time=clock):
            return find_lost_node(environment)


WORKS = ChildResult(0, "", "", False)
FAILS = ChildResult(1, "", "srun: error: node2: unable to connect", False)
HANGS = ChildResult(-9, "", "", True)
FINE = "node1 allocated\nnode2 allocated\n"


def test_without_a_failed_node_slurm_is_not_asked() -> None:
    slurm = Slurm(WORKS, "node2 down*\n")
    assert slurm.find() is None
    assert [call[:3] for call in slurm.calls] == [["srun", "--mpi=none", "--nodes=2"]]


@pytest.mark.parametrize("environment", [{}, {**JOB, "SLURM_JOB_NUM_NODES": "1"}])
def test_one_node_is_not_searched(environment: Mapping[str, str]) -> None:
    slurm = Slurm(FAILS, "node1 down*\n")
    assert slurm.find(environment) is None
    assert slurm.calls == []


@pytest.mark.parametrize("trial", [FAILS, HANGS])
@pytest.mark.parametrize("state", ["allocated*", "completing*", "down", "down*", "failing", "error"])
def test_node_is_lost_when_slurm_says_so(trial: ChildResult, state: str) -> None:
    slurm = Slurm(trial, FINE, "", FINE, f"node1 allocated\nnode2 {state}\n")
    assert slurm.find() == f"node2 ({state})"
    assert slurm.calls[1] == ["sinfo", "--noheader", "--Node", "--nodes=node[1-2]", "--format=%N %T"]


def test_trial_that_fails_for_another_reason_loses_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm(FAILS, FINE)
    assert slurm.find() is None
    assert slurm.now >= NOTICE_SECONDS
    assert "all 2 nodes ended with exit code 1: srun: error: node2: unable to connect" in capsys.readouterr().err


def test_without_slurm_no_node_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(command: list[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
        raise FileNotFoundError(2, "No such file or directory", command[0])

    with patch("hybridnn.batch_jobs.run_child", missing):
        assert find_lost_node(JOB) is None
    assert capsys.readouterr().err == "srun: No such file or directory\n"
