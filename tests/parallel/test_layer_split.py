"""Layers and minibatches divided among ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hybridnn.comm.blocks import block_bounds, block_sizes, block_slice
from hybridnn.data import ArrayRows
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.dense import MODEL_SPLITS, split_layers
from hybridnn.parallel.grid import ProcessGrid, fitting_grids
from hybridnn.training.data_split import ScatterDistributor
from reference.ranks import allgather_objects


@given(st.lists(st.integers(1, 20), min_size=2, max_size=7), st.integers(1, 5), st.sampled_from(MODEL_SPLITS))
def test_every_parameter_is_owned_by_exactly_one_rank(sizes: list[int], ranks: int, split: str) -> None:
    layers = MLP(sizes).layers
    owners = [(np.zeros((layer.outputs, layer.inputs), int), np.zeros(layer.outputs, int)) for layer in layers]
    for rank in range(ranks):
        for (weight, bias), item in zip(owners, split_layers(layers, split, ranks, rank), strict=True):
            weight[item.rows, item.columns] += 1
            bias[item.bias_rows] += 1
    assert all((weight == 1).all() and (bias == 1).all() for weight, bias in owners)


@pytest.mark.parametrize(
    ("layers", "kinds"),
    [
        (2, ["outputs", "inputs"]),
        (3, ["outputs", "inputs", "outputs, gathered"]),
        (4, ["outputs", "inputs", "outputs", "inputs"]),
    ],
)
def test_alternating_pairs_column_and_row_splits(layers: int, kinds: list[str]) -> None:
    splits = split_layers(MLP([6] * (layers + 1)).layers, "alternating", 3, 0)
    named = ["inputs" if item.by_inputs else "outputs" + ", gathered" * item.gathers for item in splits]
    assert named == kinds


@given(st.integers(0, 500), st.integers(1, 40))
def test_blocks_cover_all_items_once_in_order(items: int, parts: int) -> None:
    dealt = [index for part in range(parts) for index in range(items)[block_slice(items, parts, part)]]
    assert dealt == list(range(items))


@given(st.integers(0, 500), st.integers(1, 40))
def test_first_parts_get_one_more(items: int, parts: int) -> None:
    sizes = block_sizes(items, parts)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [stop - start for start, stop in (block_bounds(items, parts, part) for part in range(parts))]


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
        sent.append(sum(allgather_objects(comm, grid.recorder.bytes_sent)))
    block = 4 * sample_bytes
    assert sent == [3 * block, block + 2 * block]
