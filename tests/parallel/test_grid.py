"""The process grid: placement of the ranks, groups along the axes, and grids that do not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hybridnn.comm import kept as kept_with
from hybridnn.comm.threads import threads_for
from hybridnn.errors import GridError
from hybridnn.parallel.grid import ProcessGrid, fitting_grids
from hybridnn.parallel.nodes import NodeMemory, place_ranks
from reference import machines


@pytest.mark.in_process(ranks=[3])
def test_a_grid_that_does_not_fit_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(GridError, match=rf"does not fit {comm.size} ranks.*{comm.size} x 1, 1 x {comm.size}"):
        ProcessGrid(comm, batch=5, model=5)
    comm.Barrier()


@pytest.mark.in_process(ranks=[1])
def test_too_few_ranks_are_refused_with_the_number_needed(comm: MPI.Intracomm) -> None:
    with pytest.raises(GridError) as caught:
        ProcessGrid(comm, pipeline=2)
    assert str(caught.value) == (
        "the process grid pipeline 2 x model 1 does not fit 1 rank: "
        "start it on 2 or a multiple of that, as with -n 2, "
        "or in a notebook with hybridnn.in_process.run_ranks(2, program)"
    )
    with pytest.raises(GridError, match=r": start it on 12, as with -n 12, or in a notebook with .*\(12, program\)$"):
        ProcessGrid(comm, pipeline=2, batch=2, model=3)


@pytest.mark.mpi(ranks=[3])
def test_node_memory_is_shared_by_all_ranks_of_the_node(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    memory = NodeMemory(grid.node_group)
    shared, empty = memory.allocate((comm.size, 4), "float32"), memory.allocate((0, 4), "float64")
    assert shared.dtype == np.float32
    assert empty.shape == (0, 4)
    shared[comm.rank] = comm.rank
    memory.publish()
    np.testing.assert_array_equal(shared, np.repeat(np.arange(comm.size), 4).reshape(-1, 4))
    memory.publish()
    memory.free()


@pytest.mark.mpi(ranks=[2])
def test_a_grid_outlives_its_communicator_whose_parts_the_next_one_frees(comm, monkeypatch) -> None:
    freed: list[object] = []
    free = kept_with._free_with_parts
    monkeypatch.setattr(kept_with, "_free_with_parts", lambda part: [freed.append(part), free(part)])

    def total(grid: ProcessGrid) -> float:
        values = np.ones(1)
        grid.batch_group.allreduce(values)
        return float(values[0])

    parent = comm.Dup()
    grid = ProcessGrid(parent)
    parent.Free()
    ProcessGrid(comm)
    assert total(grid) == 2
    kept = grid if comm.rank == 0 else None
    del grid
    next_parent = comm.Dup()
    ProcessGrid(next_parent)
    assert freed == [], "rank 0 still uses them"
    del kept
    assert total(ProcessGrid(next_parent)) == 2
    assert len(freed) == 3, "of all ranks, of the batch ranks, and of the node"
    next_parent.Free()


@pytest.mark.in_process(ranks=[1, 4, 6])
def test_groups_contain_the_ranks_along_their_axis(comm: MPI.Intracomm) -> None:
    """Also of stages with different widths."""
    widths = {4: [[(2, 1), (1, 1), (1, 1)], [(1, 2), (2, 1)]], 6: [[(2, 2), (1, 1), (1, 1)], [(1, 1), (1, 3), (2, 1)]]}
    grids = [ProcessGrid(comm, stages=stages) for stages in widths.get(comm.size, ())]
    for pipeline in (1, 2):
        for batch, model in fitting_grids(comm.size, pipeline):
            grids.append(ProcessGrid(comm, pipeline=pipeline, batch=batch, model=model))
            assert grids[-1].stages == ((batch, model),) * pipeline
    for grid in grids:
        place = (grid.pipeline_rank, grid.batch_rank, grid.model_rank)
        assert grid.shape == (len(grid.stages), *grid.stages[grid.pipeline_rank])
        assert grid.rank == grid.rank_at(*place)
        places = np.zeros((comm.size, 3), np.int64)
        places[grid.rank] = place
        grid.world.allreduce(places)
        stages = enumerate(grid.stages)
        assert places.tolist() == [
            [k, b, m] for k, (width, parts) in stages for b in range(width) for m in range(parts)
        ]
        for axis, group in enumerate((grid.pipeline_group, grid.batch_group, grid.model_group)):
            members = np.zeros((group.size, 3), np.int64)
            members[group.rank] = place
            group.allgather_rows(members)
            same = (np.delete(places, axis, 1) == np.delete(place, axis)).all(axis=1)
            same &= (axis == 0) | (places[:, 0] == place[0])
            assert members.tolist() == places[same].tolist()


@pytest.mark.in_process(ranks=[2])
def test_stages_with_the_wrong_number_of_ranks_are_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(GridError, match=r"parallel\.stages: .* 2 x 1 \+ 1 x 1 are 3 in all, the job has 2"):
        ProcessGrid(comm, stages=[(2, 1), (1, 1)])


def crossing_groups(nodes: list[int], model: int) -> int:
    """Model groups whose ranks are not all on one node."""
    order = place_ranks(nodes, model)
    groups = [order[start : start + model] for start in range(0, len(order), model)]
    return sum(len({nodes[rank] for rank in group}) > 1 for group in groups)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(1, 6))
def test_placement_is_a_permutation_with_as_few_crossings_as_possible(nodes: list[int], model: int) -> None:
    assert place_ranks(nodes, model) == machines.place_ranks(nodes, model)
    assert sorted(place_ranks(nodes, model)) == list(range(len(nodes)))
    if len(nodes) % model == 0:
        whole = sum(nodes.count(node) // model for node in set(nodes))
        assert crossing_groups(nodes, model) <= len(nodes) // model - whole


def test_fitting_grids() -> None:
    assert fitting_grids(6) == [(6, 1), (3, 2), (2, 3), (1, 6)]
    assert fitting_grids(8, pipeline=2) == [(4, 1), (2, 2), (1, 4)]
    assert fitting_grids(7, pipeline=2) == []


@pytest.mark.parametrize(
    ("ranks", "node", "own", "threads"), [(2, 8, 8, 4), (8, 8, 8, 1), (16, 8, 8, 1), (3, 8, 8, 2), (4, 8, 1, 1)]
)
def test_ranks_times_threads_fit_the_node(ranks: int, node: int, own: int, threads: int) -> None:
    assert threads_for(ranks, node, own) == threads
    assert threads == 1 or ranks * threads <= node
