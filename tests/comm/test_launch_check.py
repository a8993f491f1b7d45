"""Errors for launches that start one job per process instead of one job."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hybridnn.comm import launch_check, mpi
from hybridnn.comm.launch_check import launch_problem
from hybridnn.comm.mpi import detect_launch, srun_option
from mpi_runner.launch import run_job

if TYPE_CHECKING:
    from mpi4py import MPI

OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"
BATCH_SCRIPT = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0"}
"""Variables of the shell of a job of four tasks in Slurm 22.05."""
STEP = {**BATCH_SCRIPT, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
UNDER_MPIRUN_ON_ANOTHER_NODE = {
    **BATCH_SCRIPT,
    "SLURM_NTASKS": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
}
"""mpirun started two of its four ranks on the second node inside a step of one task."""


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        (BATCH_SCRIPT, 1),  # a single process in a batch script may be intended
        (STEP, 4),
        (STEP | {"PMI_SIZE": "4", "PMI_RANK": "2"}, 4),
        (BATCH_SCRIPT | {"OMPI_COMM_WORLD_SIZE": "2"}, 2),  # fewer ranks than were allocated
        (UNDER_MPIRUN_ON_ANOTHER_NODE, 4),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "8"}, 8),  # MPICH's mpiexec inside a step
        (STEP | {"SLURM_HET_SIZE": "2"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "many", "SLURM_PROCID": "0"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "4"}, 1),  # left over in a shell: srun sets both
    ],
)
def test_right_launch_is_no_problem(environment: dict[str, str], size: int) -> None:
    assert launch_problem(environment, size, OPEN_MPI) is None


@pytest.mark.parametrize(("library", "option"), [(OPEN_MPI, "pmix"), (MPICH, "pmi2"), ("Intel(R) MPI Library", "pmi2")])
@pytest.mark.parametrize("more", [{}, {"PMI_SIZE": "4", "PMI_RANK": "1"}])
def test_srun_with_a_wrong_option_is_named(library: str, option: str, more: dict[str, str]) -> None:
    problem = launch_problem(STEP | more, 1, library)
    assert problem is not None
    assert problem.startswith("srun started 4 processes, but MPI sees 1 rank: ")
    assert f"srun --mpi={option} " in problem
    assert "\n" not in problem
    assert srun_option(library) == option


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "the mpirun of Open MPI started 3 processes, but MPI sees 1 rank: "),
        ({"PMI_SIZE": "3"}, "the mpiexec of MPICH or one of its kind started 3 processes, but MPI sees 1 rank: "),
        (UNDER_MPIRUN_ON_ANOTHER_NODE, "the mpirun of Open MPI started 4 processes, but MPI sees 1 rank: "),
    ],
)
def test_mpirun_of_another_library_is_named(environment: dict[str, str], text: str) -> None:
    problem = launch_problem(environment, 1, MPICH)
    assert problem is not None
    assert problem.startswith(text)
    assert MPICH in problem


def test_innermost_launcher_counts() -> None:
    launch = detect_launch(STEP | {"OMPI_COMM_WORLD_SIZE": "2"})
    assert launch is not None
    assert (launch.ranks, launch.by_srun) == (2, False)


@pytest.mark.mpi(ranks=[2])
def test_a_launcher_can_be_tried(comm: MPI.Intracomm, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch_check._main(["2", "1"]) == 0
    assert launch_check._main(["3", "1"]) == 2
    printed = "MPI sees 2 ranks on 1 nodes, not 3 on 1\n" if comm.rank == 0 else ""
    assert capfd.readouterr().err == printed


def test_process_that_mpi_leaves_alone_is_refused() -> None:
    program = "from hybridnn.comm.launch_check import require_complete_launch; require_complete_launch()"
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    wrong = run_job([sys.executable, "-c", program], env=step)
    assert wrong.returncode != 0
    assert "EnvironmentProblem: srun started 2 processes, but MPI sees 1 rank" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Open MPI v5.0.11, package: Open MPI root@build Distribution, ident: 5.0.11\0", OPEN_MPI),
        ("MPICH Version:      5.0.2\nMPICH Release date: Tue Mar 31\n\0", MPICH),
    ],
)
def test_the_version_of_a_library_is_one_short_line(text: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "import_mpi", lambda: SimpleNamespace(Get_library_version=lambda: text))
    assert mpi.library_version() == version
