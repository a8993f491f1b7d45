"""Every distribution method gives every rank exactly its block of the samples."""

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.blocks import block_slice
from hybridnn.data import ArrayRows
from hybridnn.parallel.distribution import ScatterDistributor
from hybridnn.parallel.grid import ProcessGrid, fitting_grids
from reference.ranks import allgather_objects


@pytest.mark.in_process(ranks=[1, 2, 4, 6])
def test_every_rank_gets_its_block(comm: MPI.Intracomm) -> None:
    x = np.arange(60.0, dtype=np.float32).reshape(20, 3)
    labels, values = np.arange(20) * 7, np.arange(40.0, dtype=np.float32).reshape(20, 2)
    for batch, model in fitting_grids(comm.size):
        grid = ProcessGrid(comm, batch=batch, model=model)
        for broadcast in (False, True):
            fetch = ScatterDistributor(grid, broadcast).fetch
            for targets in (labels, values):
                rows = ArrayRows(x, targets) if grid.rank == 0 else None
                for indices in (np.array([3, 19, 0, 7, 7, 12, 5]), np.array([4]), np.arange(20)[::-1]):
                    own = indices[block_slice(len(indices), batch, grid.batch_rank)]
                    got_x = np.full((len(own), 3), -1, np.float32)
                    got_y = np.full((len(own), *targets.shape[1:]), -1, targets.dtype)
                    fetch(rows, indices, got_x, got_y)
                    np.testing.assert_array_equal(got_x, x[own])
                    np.testing.assert_array_equal(got_y, targets[own])


@pytest.mark.in_process(ranks=[4])
def test_bytes_of_the_two_scatter_methods(comm: MPI.Intracomm) -> None:
    # Laugier et al. 2018, section 7: method one sends the block of every other rank from rank 0; method two sends one
    # copy of every block and then broadcasts it.
    x, y = np.zeros((8, 5)), np.zeros(8, np.int64)
    sample_bytes = 5 * 8 + 8
    sent = []
    for broadcast in (False, True):
        grid = ProcessGrid(comm, batch=2, model=2)
        rows = ArrayRows(x, y) if grid.rank == 0 else None
        ScatterDistributor(grid, broadcast).fetch(rows, np.arange(8), np.empty((4, 5)), np.empty(4, np.int64))
        sent.append(sum(allgather_objects(comm, grid.recorder.totals.bytes_sent)))
    block = 4 * sample_bytes
    assert sent == [3 * block, block + 2 * block]
