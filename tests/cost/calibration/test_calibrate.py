"""A whole short calibration with one, two and three ranks and with several nodes; its quality."""

import os
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from hybridnn.cost.calibration import calibrate as module
from hybridnn.cost.calibration import communication
from hybridnn.cost.calibration.calibrate import Calibration, assess_quality, calibrate, memory_bytes_per_rank
from hybridnn.cost.calibration.communication import TimedCase
from hybridnn.cost.calibration.computation import ComputeError
from hybridnn.cost.calibration.fit import FittedOperation, fit_operations
from hybridnn.cost.machine_file import read_machine
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.utils import memory

COMPUTE = read_machine("cluster-1024").compute


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put known computing costs in the place of measured ones; returns what they were asked for."""
    asked: list[Any] = []

    def stand_in(grid: ProcessGrid, dtypes: Any, seconds: float, seed: int, time_step: Any) -> Any:
        asked.append((tuple(dtypes), seconds, seed, time_step))
        return COMPUTE, []

    monkeypatch.setattr(module, "calibrate_compute", stand_in)
    monkeypatch.setattr(module, "measure_whole_steps", lambda *_: [])
    monkeypatch.setattr(module, "correct", lambda machine, steps: machine)
    return asked


SECONDS = 0.1


def quick(grid: ProcessGrid, **options: Any) -> Calibration:
    return calibrate(grid, SECONDS, 7, time_step=None, **options)  # type: ignore[arg-type]  # the stand-in times nothing


@pytest.mark.mpi(ranks=[2])
def test_a_machine_of_several_ranks_has_everything(comm: MPI.Intracomm, calls: list[Any]) -> None:
    grid = ProcessGrid(comm)
    found = quick(grid)
    machine = found.machine
    operations = {"allreduce", "allgather", "broadcast", "barrier"}
    assert {(cost.operation, cost.ranks) for cost in machine.collectives} == {(name, 2) for name in operations}
    assert {fit.operation for fit in found.fits} == operations | {"send", "iallreduce"}
    assert (machine.name, machine.nodes, machine.between_nodes, found.missing) == (machine.about["host"], 1, None, ())
    assert machine.ranks_per_node >= comm.size
    assert machine.inside_node.seconds(1000) > 0
    assert machine.gamma_seconds_per_byte > 0
    assert machine.overlap.nonblocking_factor > 0
    assert (machine.compute, len(calls)) == (COMPUTE, 1)
    # Four tenths of the time are left for computing.
    assert calls[0][:3] == (("float32", "float64"), pytest.approx(0.4 * SECONDS), 7)
    assert machine.about["ranks"] == str(comm.size)
    assert {"date", "host", "processor", "mpi", "numpy", "threads_per_rank", "load_average"} <= set(machine.about)
    errors = [cost.held_out_error for cost in machine.collectives if cost.operation == "allreduce"]
    assert all(error is not None and error >= 0 for error in errors)
    assert comm.allgather(machine.collectives) == [machine.collectives] * comm.size


def test_one_rank_reports_what_is_missing_and_measures_computing(calls: list[Any]) -> None:
    found = quick(ProcessGrid())
    assert [text.split(" need")[0] for text in found.missing] == ["messages", "collectives", "overlap"]
    machine = found.machine
    assert machine.about["not_measured"] == "; ".join(found.missing)
    assert "alpha 5e-06 s and beta 2e-10 s per byte" in found.missing[0]
    assert machine.inside_node.seconds(10**6) == pytest.approx(5e-6 + 1e6 * 2e-10)
    assert (machine.collectives, found.fits) == ((), ())
    assert machine.overlap.hidden_fraction == 0
    assert machine.gamma_seconds_per_byte > 0
    assert calls[0][1] == pytest.approx(SECONDS)  # all of the time


@pytest.mark.mpi(ranks=[3])
def test_two_nodes_are_measured_inside_and_between(comm, calls, monkeypatch) -> None:
    monkeypatch.setattr(communication, "_nodes_of_ranks", lambda grid: [0, 0, 2])
    grid = ProcessGrid(comm)
    grid.nodes = 2
    machine = quick(grid).machine
    assert machine.nodes == 2
    assert machine.inside_node.overhead is None
    assert machine.between_nodes.overhead.seconds(1 << 18) > 0
    assert comm.allgather(machine.between_nodes) == [machine.between_nodes] * comm.size
    assert calls[0][1] == pytest.approx(0.35 * SECONDS)
    groups = {(cost.ranks, cost.spans_nodes) for cost in machine.collectives if cost.operation == "allreduce"}
    assert groups == {(2, False), (2, True), (3, True)}


@pytest.mark.mpi(ranks=[2])
def test_the_link_between_nodes_replaces_a_missing_one_inside(comm, calls, monkeypatch) -> None:
    monkeypatch.setattr(communication, "_nodes_of_ranks", lambda grid: [0, 1])
    found = quick(ProcessGrid(comm))
    assert found.machine.inside_node.segments == found.machine.between_nodes.segments
    assert found.missing == ("messages inside a node need 2 ranks there: those between nodes stand for them",)


def test_memory_is_the_available_memory() -> None:
    memory = memory_bytes_per_rank(ProcessGrid())
    assert 1e6 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_system_that_does_not_state_its_free_memory_counts_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "proc_value", lambda path, key: "")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", Path("/nonexistent"))
    assert memory_bytes_per_rank(ProcessGrid()) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fits(wrong: float, from_bytes: int) -> tuple[FittedOperation, ...]:
    """All-reduces on a line; held-out ones from a size on took `wrong` times as long."""
    made = []
    for index, exponent in enumerate(range(3, 25)):
        nbytes, held_out = 2**exponent, index % 3 == 1
        factor = wrong if held_out and nbytes >= from_bytes else 1.0
        made.append(TimedCase("allreduce", 2, False, nbytes, factor * (5e-6 + 1e-9 * nbytes), held_out))
    return fit_operations(made)


def test_held_out_error_is_that_of_large_messages() -> None:
    quality = assess_quality(fits(2.0, 2**16), [], COMPUTE, 0.0, 1)
    assert quality.held_out_error == pytest.approx(0.5, rel=1e-3)
    assert quality.problems == ("held-out error 50% (allreduce among 2 ranks), more than 25%",)
    assert assess_quality(fits(1.0, 8), [], COMPUTE, 0.0, 1).problems == ()


def test_compute_error_is_the_mean_over_the_passes() -> None:
    errors = [
        ComputeError("float32", 1, "forward", 5, 0.1, 1.0),
        ComputeError("float32", 1, "input gradient", 5, 0.4, 1.0),
        ComputeError("float64", 2, "forward", 5, 0.27, 1.0),
        ComputeError("float64", 2, "input gradient", 0, 0.0, 0.0),  # nothing was held out
    ]
    quality = assess_quality((), errors, COMPUTE, 0.0, 1)
    assert (quality.held_out_error, quality.held_out_of) == (0.27, "passes in float64 with 2 busy ranks")
    assert assess_quality((), errors[:2], COMPUTE, 0.0, 1).held_out_error == pytest.approx(0.25)


@pytest.mark.parametrize(("noise", "load", "problems"), [(0.3, 4.0, 0), (0.31, 4.0, 1), (0.0, 4.1, 1), (1.0, 9.0, 2)])
def test_noise_and_load_have_limits(noise: float, load: float, problems: int) -> None:
    compute = [COMPUTE[0].model_copy(update={"noise": each}) for each in (noise / 2, noise)]  # the noisier dtype counts
    quality = assess_quality((), [], compute, load, 4)
    assert len(quality.problems) == problems
    assert quality.summary.startswith("doubtful: " if problems else "good: ")
