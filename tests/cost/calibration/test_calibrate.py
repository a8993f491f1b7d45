"""A whole calibration with little time: what the machine has for one, two and three ranks, and for several nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.cost.calibration import calibrate as module
from hybridnn.cost.calibration import communication
from hybridnn.cost.calibration.calibrate import Calibration, calibrate, memory_bytes_per_rank
from hybridnn.cost.machine.file import read_machine
from hybridnn.errors import SettingError
from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from mpi4py import MPI

COMPUTE = read_machine("cluster-1024").compute


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put known computing costs in the place of measured ones; returns what they were asked for."""
    asked: list[Any] = []

    def stand_in(grid: ProcessGrid, dtypes: Any, seconds: float, seed: int, time_step: Any) -> Any:
        asked.append((tuple(dtypes), seconds, seed, time_step))
        return COMPUTE, []

    monkeypatch.setattr(module, "calibrate_compute", stand_in)
    return asked


def quick(grid: ProcessGrid, **options: Any) -> Calibration:
    return calibrate(grid, 0.4, 7, time_step=None, **options)  # type: ignore[arg-type]  # the stand-in times nothing


@pytest.mark.mpi(ranks=[2, 3])
def test_a_machine_of_several_ranks_has_everything(comm: MPI.Intracomm, calls: list[Any]) -> None:
    grid = ProcessGrid(comm)
    found = quick(grid, name="here")
    machine = found.machine
    groups = {2: {2}, 3: {2, 3}}[comm.size]
    operations = {"allreduce", "allgather", "broadcast", "barrier"}
    assert {(cost.operation, cost.ranks) for cost in machine.collectives} == {
        (operation, ranks) for operation in operations for ranks in groups
    }
    assert {fit.operation for fit in found.fits} == operations | {"send", "iallreduce"}
    assert (machine.name, machine.nodes, machine.between_nodes, found.missing) == ("here", 1, None, ())
    assert machine.ranks_per_node >= comm.size
    assert machine.inside_node.seconds(1000) > 0
    assert machine.gamma_seconds_per_byte > 0
    assert machine.overlap.nonblocking_factor > 0
    assert (machine.compute, len(calls)) == (COMPUTE, 1)
    # Four tenths of the time are left for computing.
    assert calls[0][:3] == (("float32", "float64"), pytest.approx(0.16), 7)
    assert machine.about["ranks"] == str(comm.size)
    assert {"date", "host", "processor", "mpi", "numpy", "threads_per_rank", "load_average"} <= set(machine.about)
    # A plan asks for collectives of any size and group.
    assert machine.collective_seconds("allreduce", 10**8, comm.size) > machine.collective_seconds("allreduce", 8, 2)
    errors = [cost.held_out_error for cost in machine.collectives if cost.operation == "allreduce"]
    assert all(error is not None and error >= 0 for error in errors)
    assert comm.allgather(machine.collectives) == [machine.collectives] * comm.size


@pytest.mark.mpi(ranks=[1])
def test_one_rank_says_what_is_missing_and_measures_the_rest(comm: MPI.Intracomm, calls: list[Any]) -> None:
    found = quick(ProcessGrid(comm))
    assert [text.split(" need")[0] for text in found.missing] == ["messages", "collectives", "overlap"]
    machine = found.machine
    assert machine.about["not_measured"] == "; ".join(found.missing)
    assert "alpha 5e-06 s and beta 2e-10 s per byte" in found.missing[0]
    assert machine.inside_node.seconds(10**6) == pytest.approx(5e-6 + 1e6 * 2e-10)
    assert (machine.collectives, found.fits) == ((), ())
    assert machine.overlap.hidden_fraction == 0
    assert machine.gamma_seconds_per_byte > 0
    assert calls[0][1] == pytest.approx(0.4)  # all of the time


@pytest.mark.mpi(ranks=[3])
def test_two_nodes_are_measured_inside_and_across(
    comm: MPI.Intracomm, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communication, "_nodes_of_ranks", lambda grid: [0, 0, 2])
    grid = ProcessGrid(comm)
    grid.nodes = 2
    machine = quick(grid).machine
    assert machine.nodes == 2
    assert machine.between_nodes is not None
    groups = {(cost.ranks, cost.spans_nodes) for cost in machine.collectives if cost.operation == "allreduce"}
    assert groups == {(2, False), (2, True), (3, True)}


@pytest.mark.mpi(ranks=[2])
def test_nodes_of_one_rank_lend_their_link(
    comm: MPI.Intracomm, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communication, "_nodes_of_ranks", lambda grid: [0, 1])
    found = quick(ProcessGrid(comm))
    assert found.machine.between_nodes is not None
    assert found.machine.inside_node == found.machine.between_nodes
    assert found.missing == ("messages inside a node need 2 ranks there: those between nodes stand for them",)


@pytest.mark.mpi(ranks=[1, 2])
def test_memory_is_what_is_free_for_each_rank(comm: MPI.Intracomm) -> None:
    memory = memory_bytes_per_rank(ProcessGrid(comm))
    assert 1e6 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / comm.size


def test_a_system_that_does_not_say_its_memory(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(module, "_proc_value", lambda path, key: "")
    monkeypatch.setattr(os, "sysconf", unknown)
    with pytest.raises(SettingError, match="--memory = None: this system does not say how much is free"):
        quick(ProcessGrid())
    assert quick(ProcessGrid(), memory_bytes=5e9).machine.memory_bytes_per_rank == 5e9
