"""Groups, sizes and held-out sizes; short measurements: all operations, and the same samples on every rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.recorder import Recorder
from hybridnn.cost.calibration import communication
from hybridnn.cost.calibration.communication import (
    LEAST_RANGE,
    MOST_BYTES,
    largest_size,
    measure_communication,
    measure_overhead,
    measure_overlap,
    measure_reduction,
    measured_groups,
    plan_cases,
)
from hybridnn.parallel.grid import ProcessGrid


@pytest.mark.mpi(ranks=[3])
def test_every_operation_is_measured_in_every_group_with_the_same_samples_on_every_rank(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, recorder=Recorder(1 << 20))
    told: list[str] = []
    samples = measure_communication(grid, 0.2, 0, told.append)
    assert len(told) == 2
    assert not any(sample.spans_nodes for sample in samples)
    assert {sample.ranks for sample in samples} == {2, 3}
    for ranks in (2, 3):
        own = [sample for sample in samples if sample.ranks == ranks]
        assert {sample.operation for sample in own} == operations_of(ranks)
        assert sum(sample.held_out for sample in own) >= 20
        # The quickest all-reduce of many bytes takes longer than that of few, whatever the machine and its load.
        reduced = [one for one in own if one.operation == "allreduce"]
        large = [one.seconds for one in reduced if one.nbytes >= 1 << 16]
        assert min(large) > min(one.seconds for one in reduced if one.nbytes <= 64)
    assert all(np.isfinite(sample.seconds) and 0 < sample.seconds < 10 for sample in samples)
    assert comm.allgather(samples) == [samples] * comm.size
    # All are in the group of all; only two of them send messages from rank to rank.
    calls = Counter(event.name for event in grid.recorder.events if event.axis == "calibration")
    assert min(calls[name] for name in ("barrier", "allreduce", "allgather", "broadcast")) > 0
    assert (calls["send"] > 0) == (calls["receive"] > 0) == (grid.rank < 2)


def operations_of(ranks: int) -> set[str]:
    return {"barrier", "allreduce", "iallreduce", "allgather", "broadcast"} | ({"send"} if ranks == 2 else set())


@pytest.mark.mpi(ranks=[2])
def test_overlap_and_reduction_are_within_their_bounds(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    hidden, slowdown = measure_overlap(grid.world, 0.1)
    assert 0 <= hidden <= 1
    assert 1 <= slowdown < 1000
    gamma = measure_reduction(grid.world)
    assert 1e-13 < gamma < 1e-6
    assert {(hidden, slowdown, gamma)} == set(comm.allgather((hidden, slowdown, gamma)))


@pytest.mark.mpi(ranks=[3])
def test_overheads_are_measured_between_the_first_two_nodes(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communication, "_nodes_of_ranks", lambda grid: [0, 0, 2])
    grid = ProcessGrid(comm, recorder=Recorder(1 << 20))
    found = measure_overhead(grid, 0.1)
    assert [nbytes for nbytes, _ in found] == list(communication.OVERHEAD_BYTES)
    assert all(0 <= seconds < 10 for _, seconds in found)
    assert any(seconds > 0 for _, seconds in found)
    assert comm.allgather(found) == [found] * comm.size
    calls = Counter(event.name for event in grid.recorder.events if event.axis == "calibration")
    assert (calls["send"] > 0) == (calls["receive"] > 0) == (grid.rank in (0, 2))


# -- groups, operations and sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 3, 4]), (6, [2, 3, 4, 6]), (16, [2, 3, 4, 8, 16])],
)
def test_groups_of_one_node(ranks: int, expected: list[int]) -> None:
    groups = measured_groups([0] * ranks)
    assert [group.members for group in groups] == [tuple(range(size)) for size in expected]
    assert not any(group.spans_nodes for group in groups)


def test_groups_of_several_nodes() -> None:
    groups = measured_groups([5, 5, 0, 0, 0, 0, 9, 9])
    assert [group.members for group in groups if not group.spans_nodes] == [(2, 3), (2, 3, 4), (2, 3, 4, 5)]
    # One rank for each node, and all.
    between = [(group.members, group.ranks_per_node) for group in groups if group.spans_nodes]
    assert between == [((0, 2), 1), ((0, 2, 6), 1), (tuple(range(8)), 4)]
    alone = measured_groups([3, 1, 2])
    assert [(group.members, group.spans_nodes) for group in alone] == [((0, 1), True), ((0, 1, 2), True)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_sizes_cover_the_range_and_a_third_inside_it_is_held_out(ranks: int) -> None:
    cases = plan_cases(ranks, MOST_BYTES, np.random.default_rng(0))
    operations = Counter(case.operation for case in cases)
    assert set(operations) == operations_of(ranks)
    for operation in set(operations) - {"barrier"}:
        own = [case for case in cases if case.operation == operation]
        assert sum(case.held_out for case in own) == len(own) / 3
        fitted = [case.nbytes for case in own if not case.held_out]
        held_out = [case.nbytes for case in own if case.held_out]
        assert not set(fitted) & set(held_out)
        assert min(fitted) < min(held_out)
        assert max(held_out) < max(fitted) <= 2**26 + 4 * ranks
        assert min(fitted) < 32
        assert max(fitted) > 2**24
        assert all(case.nbytes % 4 == 0 and case.nbytes > 0 for case in own)
        # Evenly on a logarithmic scale: between a fifth and a third of the octaves 8 B to 64 MiB in each quarter.
        quarters = Counter(min(int((np.log2(case.nbytes) - 3) / (23 / 4)), 3) for case in own)
        assert all(len(own) / 6 <= quarters[quarter] <= len(own) / 3 for quarter in range(4))


def test_the_largest_size_is_what_fits_the_time_and_the_network() -> None:
    link = 25e6  # bytes per second: 200 Mbit/s
    trial = 2 * LEAST_RANGE / link
    assert largest_size(10.0, trial) == int(10 * link / 2 / 80)
    assert largest_size(20.0, trial) == 2 * largest_size(10.0, trial)
    assert largest_size(0.1, trial) == LEAST_RANGE
    assert largest_size(60.0, 1e-5) == MOST_BYTES


def test_short_measurements_have_smaller_distinct_messages_and_repeat_with_the_seed() -> None:
    short = plan_cases(3, LEAST_RANGE, np.random.default_rng(0))
    assert max(case.nbytes for case in short) <= 2**18 + 8
    assert len(short) == len({(case.operation, case.nbytes) for case in short})
    assert short == plan_cases(3, LEAST_RANGE, np.random.default_rng(0))
    assert short != plan_cases(3, LEAST_RANGE, np.random.default_rng(1))
