"""run_step, which runs the command of a batch script."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpi_runner.slowness import deadline

pytestmark = pytest.mark.timeout(600)

RUN_STEP = [sys.executable, "-m", "hybridnn.hpc_jobs.run_step"]
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


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -KILL $$", 137)])
def test_exit_code_is_returned_and_written(tmp_path: Path, script: str, code: int) -> None:
    file = tmp_path / "code"
    assert subprocess.run([*RUN_STEP, str(file), "bash", "-c", script], timeout=deadline(60)).returncode == code
    assert file.read_text() == f"{code}\n"


def test_without_a_file_the_exit_code_is_returned() -> None:
    assert subprocess.run([*RUN_STEP, "", "bash", "-c", "exit 75"], timeout=deadline(60)).returncode == 75


def test_signals_of_the_parent_are_forwarded_once(tmp_path: Path) -> None:
    command = [*RUN_STEP, str(tmp_path / "code"), sys.executable, "-c", COUNTS_SIGNALS]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        _wait_for(tmp_path / "ready")
        process.send_signal(signal.SIGUSR1)
        _wait_for(tmp_path / "signals", "SIGUSR1\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(deadline(60)) == 75
    assert (tmp_path / "signals").read_text().split() == ["SIGUSR1", "SIGTERM"]
    assert (tmp_path / "code").read_text() == "75\n"


def test_signals_of_other_processes_are_not_forwarded(tmp_path: Path) -> None:
    """Slurm sends them to the command as well."""
    command = [*RUN_STEP, str(tmp_path / "code"), sys.executable, "-c", COUNTS_SIGNALS]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        _wait_for(tmp_path / "ready")
        subprocess.run(["bash", "-c", f"kill -USR1 {process.pid}"], check=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(deadline(60)) == 75
    assert (tmp_path / "signals").read_text().split() == ["SIGTERM"]


def _wait_for(file: Path, text: str = "") -> None:
    end = time.monotonic() + deadline(60)
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
