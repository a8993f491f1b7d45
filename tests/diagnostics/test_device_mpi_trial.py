"""Trial of device-aware MPI: messages of the program, and the result from its output and exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.comm.transports.device import Device
from hybridnn.diagnostics.device_mpi_probe import find_problem
from hybridnn.diagnostics.device_mpi_trial import GRACE_SECONDS, DeviceMpiTrial, try_device_mpi
from hybridnn.errors import EnvironmentProblem
from hybridnn.kernels.cupy_loading import load_cupy
from hybridnn.utils.processes import ChildResult
from mpi_runner.slowness import deadline
from reference.stand_in_device import StandInCupy

if TYPE_CHECKING:
    from mpi4py import MPI

TWO, ONE = "between two processes", "from a process to itself, as no two could be started"
SENT = "a process that sent from GPU memory "
ABORTED = "prterun noticed that process rank 1 with PID 7 on node n exited on signal {} (a name)\n----\n"


def tried(*ends: ChildResult) -> DeviceMpiTrial:
    """The result of a trial whose processes end like this, one after the other."""
    left = list(ends)
    trial = try_device_mpi(os.environ, 60, ["a", "b"], run=lambda *arguments: left.pop(0))
    assert not left
    return trial


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ChildResult(0, "ranks: 2\nGPUs: 2\n", "", False), DeviceMpiTrial("", f"{TWO} with a GPU each")),
        (ChildResult(0, "ranks: 2\nGPUs: 1\n", "", False), DeviceMpiTrial("", f"{TWO} on one GPU")),
        (
            ChildResult(1, "ranks: 2\nGPUs: 1\nproblem: other values\n", "prterun: non-zero exit\n", False),
            DeviceMpiTrial(f"{SENT}says: other values", f"{TWO} on one GPU"),
        ),
        (
            ChildResult(139, "ranks: 2\nGPUs: 2\n", ABORTED.format(int(signal.SIGSEGV)), False),
            DeviceMpiTrial(f"{SENT}was ended by SIGSEGV", f"{TWO} with a GPU each"),
        ),
        (
            ChildResult(142, "ranks: 2\nGPUs: 2\n", ABORTED.format(int(signal.SIGALRM)), False),
            DeviceMpiTrial(f"{SENT}did not end in time", f"{TWO} with a GPU each"),
        ),
        (
            ChildResult(-9, "ranks: 2\nranks: 2\n", "", True),
            DeviceMpiTrial(f"{SENT}did not end in time", TWO),
        ),
    ],
)
def test_two_processes(end: ChildResult, expected: DeviceMpiTrial) -> None:
    assert tried(end) == expected


@pytest.mark.parametrize(
    "not_started", [ChildResult(1, "", "there are not enough slots", False), ChildResult(-9, "", "", True)]
)
def test_one_process_where_two_cannot_start(not_started: ChildResult) -> None:
    assert tried(not_started, ChildResult(0, "ranks: 1\nGPUs: 1\n", "", False)) == DeviceMpiTrial("", ONE)
    crashed = ChildResult(-int(signal.SIGSEGV), "ranks: 1\nGPUs: 1\n", "", False)
    assert tried(not_started, crashed) == DeviceMpiTrial(f"{SENT}was ended by SIGSEGV", ONE)
    hung = ChildResult(-int(signal.SIGALRM), "ranks: 1\nGPUs: 1\n", "", False)
    assert tried(not_started, hung).problem == f"{SENT}did not end in time"


def test_its_processes_get_the_bus_ids_and_no_variables_of_the_launcher() -> None:
    commands: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def run(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
        commands.append((command, environment))
        return ChildResult(0, "", "", False)

    try_device_mpi({"PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "HOME": "/h"}, 60, ["0:1", "0:2"], run)
    assert [command[-3:] for command, _ in commands] == [["50", "0:1", "0:2"]] * 2
    assert commands[1][1] == {"HOME": "/h"}
    assert not any(name.startswith(("PMIX_", "OMPI_COMM_")) for name in commands[0][1])


def test_a_hanging_process_is_ended_by_its_alarm_which_the_launcher_reports(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("import signal\nsignal.pause()\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    trial = try_device_mpi({**os.environ, "PYTHONPATH": path}, GRACE_SECONDS + deadline(2))
    assert trial == DeviceMpiTrial(f"{SENT}did not end in time", TWO)


@pytest.mark.mpi(ranks=[1, 2])
def test_damaged_messages_are_found(comm: MPI.Intracomm) -> None:
    cupy = StandInCupy(comm)
    assert find_problem(comm, Device(cupy), cupy.compute, cupy.numbers) == ""

    def damaged(array: Any) -> Any:
        numbers = cupy.numbers(array)
        numbers[-1:] += numbers.size > 1 << 18  # the last number of the long message
        return numbers

    wrong = find_problem(comm, Device(cupy), cupy.compute, damaged)
    assert wrong == "a message of 1,048,577 elements arrived with other values than were sent"


@pytest.mark.mpi(ranks=[2])
def test_two_processes_start_beside_a_running_job(comm: MPI.Intracomm) -> None:
    """Without a GPU they fail to load CuPy; with one, the result depends on the MPI library."""
    try:
        load_cupy()
        here = True
    except EnvironmentProblem:
        here = False
    if comm.rank == 0:
        trial = try_device_mpi(os.environ, deadline(50))
        assert trial.endpoints.startswith(TWO)
        assert here or trial.problem.startswith(f"{SENT}says: ")
    comm.Barrier()
