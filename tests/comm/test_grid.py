"""Coordinates and groups of the process grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridnn.comm.agreement import agree
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.node_memory import NodeMemory
from hybridnn.comm.placement import fitting_grids
from hybridnn.errors import DataError, GridError, HybridnnError

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.mpi(ranks=[1, 2, 4, 6])
def test_groups_hold_the_ranks_that_differ_on_their_axis_alone(comm: MPI.Intracomm) -> None:
    for pipeline in (1, 2):
        for batch, model in fitting_grids(comm.size, pipeline):
            grid = ProcessGrid(comm, pipeline=pipeline, batch=batch, model=model)
            place = np.array([grid.pipeline_rank, grid.batch_rank, grid.model_rank], np.int64)
            assert grid.rank == (place[0] * batch + place[1]) * model + place[2]
            for axis, group in enumerate((grid.pipeline_group, grid.batch_group, grid.model_group)):
                assert group.size == grid.shape[axis]
                assert group.rank == place[axis]
                members = np.zeros((group.size, 3), np.int64)
                members[group.rank] = place
                group.allgather_rows(members)
                assert (members[:, axis] == np.arange(group.size)).all()
                others = [other for other in range(3) if other != axis]
                assert (members[:, others] == place[others]).all()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_grid_that_does_not_fit_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(GridError, match=rf"does not fit {comm.size} ranks.*{comm.size} x 1, 1 x {comm.size}"):
        ProcessGrid(comm, batch=5, model=5)
    comm.Barrier()


@pytest.mark.mpi(ranks=[1, 3])
def test_a_mistake_found_by_one_rank_is_raised_on_all(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    finder = comm.size - 1

    def look() -> int:
        if comm.rank == finder:
            raise DataError("row 7 is torn")
        return comm.rank

    with pytest.raises(HybridnnError, match=r"^row 7 is torn$") as found:
        agree(group, look)
    assert isinstance(found.value, DataError) == (comm.rank == finder)
    assert agree(group, lambda: comm.rank) == comm.rank


@pytest.mark.mpi(ranks=[1, 3])
def test_node_memory_is_one_array_for_all_ranks_of_the_node(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    memory = NodeMemory(grid)
    shared, empty = memory.allocate((comm.size, 4), "float32"), memory.allocate((0, 4), "float64")
    assert shared.dtype == np.float32
    assert empty.shape == (0, 4)
    shared[comm.rank] = comm.rank
    memory.publish()
    np.testing.assert_array_equal(shared, np.repeat(np.arange(comm.size), 4).reshape(-1, 4))
    memory.publish()
    memory.free()
