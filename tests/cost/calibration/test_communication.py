"""Measuring with a short time: all groups, all operations, the same samples on every rank; not how long they took."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridnn.comm.recorder import Recorder
from hybridnn.cost.calibration.communication import measure_communication, measure_overlap, measure_reduction
from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_every_operation_is_measured_in_every_group(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    told: list[str] = []
    samples = measure_communication(grid, 0.5, 0, told.append)
    groups = {1: set(), 2: {2}, 3: {2, 3}}[comm.size]
    assert {sample.ranks for sample in samples} == groups
    assert len(told) == len(groups)
    assert not any(sample.spans_nodes for sample in samples)
    for ranks in groups:
        own = [sample for sample in samples if sample.ranks == ranks]
        operations = {"barrier", "allreduce", "iallreduce", "allgather", "broadcast"} | (
            {"send"} if ranks == 2 else set()
        )
        assert {sample.operation for sample in own} == operations
        assert Counter(sample.held_out for sample in own)[True] >= 20
    assert all(np.isfinite(sample.seconds) and 0 < sample.seconds < 10 for sample in samples)
    # The quickest all-reduce of many bytes takes longer than that of few, whatever the machine and its load.
    for ranks in groups:
        reduced = [one for one in samples if (one.operation, one.ranks) == ("allreduce", ranks)]
        large = [one.seconds for one in reduced if one.nbytes >= 1 << 16]
        small = [one.seconds for one in reduced if one.nbytes <= 64]
        assert min(large) > min(small)


@pytest.mark.mpi(ranks=[2, 3])
def test_every_rank_has_the_same_samples_and_members_took_part(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, recorder=Recorder(1 << 20))
    samples = measure_communication(grid, 0.3, 1)
    seconds = np.array([sample.seconds for sample in samples])
    largest, smallest = seconds.copy(), -seconds
    grid.world.allreduce(largest, "max")
    grid.world.allreduce(smallest, "max")
    np.testing.assert_array_equal(largest, -smallest)
    # All are in the group of all; only two of them send messages from rank to rank.
    calls = Counter(event.name for event in grid.recorder.events if event.axis == "calibration")
    assert min(calls[name] for name in ("barrier", "allreduce", "allgather", "broadcast")) > 0
    assert (calls["send"] > 0) == (calls["receive"] > 0) == (grid.rank < 2)


@pytest.mark.mpi(ranks=[2, 3])
def test_overlap_and_reduction_are_within_their_bounds(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    hidden, slowdown = measure_overlap(grid.world, 0.3)
    assert 0 <= hidden <= 1
    assert 1 <= slowdown < 1000
    gamma = measure_reduction(grid.world)
    assert 1e-13 < gamma < 1e-6
    assert {(hidden, slowdown, gamma)} == set(comm.allgather((hidden, slowdown, gamma)))
