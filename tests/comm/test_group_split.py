"""Groups divided further."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_ranks_of_one_color_are_a_group_in_the_same_order(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    color = int(grid.rank in (1, 2))
    part = grid.world.split(color, "part")
    members = [rank for rank in range(grid.size) if (rank in (1, 2)) == bool(color)]
    assert (part.axis, part.size, part.rank) == ("part", len(members), members.index(grid.rank))
    ranks = np.full(len(members), -1)
    ranks[part.rank] = grid.rank
    part.allgather_rows(ranks)
    assert ranks.tolist() == members
    assert part.size == 1 or grid.recorder.events[-1].axis == "part"
