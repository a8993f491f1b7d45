"""Search for a launcher inside a Slurm job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridnn.hpc_jobs.launcher import candidates, find_launcher
from mpi_runner.slowness import deadline

LIST = (
    "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4"
)
FAKE_SRUN = """#!/bin/sh
case "$1" in
  --mpi=list) echo "MPI plugin types are... none pmi2 pmix" >&2 ;;
  --mpi={works}) echo "$@" >>calls; exit 0 ;;
  *) echo "noise"; echo "MPI sees 1 ranks on 1 nodes, not 4 on 2" >&2; echo "srun: error" >&2; exit 2 ;;
esac
"""


@pytest.mark.parametrize(
    ("plugins", "programs", "expected"),
    [
        (LIST, ["srun", "mpirun"], ["srun -n", "srun --mpi=pmix -n", "srun --mpi=pmi2 -n", "mpirun --bind-to none -n"]),
        ("none pmi2", ["srun"], ["srun -n", "srun --mpi=pmi2 -n"]),
        ("specific pmix plugin versions available: pmix_v4", ["srun"], ["srun -n", "srun --mpi=pmix -n"]),
        ("", ["mpirun"], ["mpirun --bind-to none -n"]),
        ("", [], []),
    ],
)
def test_only_available_launchers_are_tried(plugins: str, programs: list[str], expected: list[str]) -> None:
    assert [" ".join(launcher) for launcher in candidates(plugins, programs)] == expected


def test_first_working_launcher_is_used() -> None:
    tried: list[str] = []

    def attempt(launcher: Sequence[str]) -> str | None:
        tried.append(launcher[0])
        return None if launcher[0] == "b" else f"{launcher[0]} does not work"

    found, failures = find_launcher(iter([("a", "-n"), ("b", "-n"), ("c", "-n")]), attempt)
    assert (found, failures, tried) == (("b", "-n"), ["a: a does not work"], ["a", "b"])
    assert find_launcher(iter([("a", "-x", "-n")]), attempt) == (None, ["a -x: a does not work"])


def _run(tmp_path: Path, works: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    srun = tmp_path / "srun"
    srun.write_text(FAKE_SRUN.replace("{works}", works))
    srun.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "hybridnn.hpc_jobs.launcher", *arguments],
        env=environment | {"PATH": f"{tmp_path}:/usr/bin:/bin"} | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=deadline(60),
        check=False,
    )


def test_launcher_is_printed_to_stdout_and_failures_to_stderr(tmp_path: Path) -> None:
    result = _run(tmp_path, "pmi2", SLURM_NTASKS="4", SLURM_JOB_NUM_NODES="2")
    assert (result.returncode, result.stdout) == (0, "srun --mpi=pmi2 -n\n")
    assert "launcher: not srun --mpi=pmix: MPI sees 1 ranks on 1 nodes, not 4 on 2\n" in result.stderr
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call == f"--mpi=pmi2 -n 4 {sys.executable} -m hybridnn.comm.launch_check 4 2"


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
