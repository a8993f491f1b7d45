"""Blocks of items, and layers split into them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.comm.blocks import block_bounds, block_sizes, block_slice
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.dense import MODEL_SPLITS, split_layers


@given(
    st.lists(st.integers(1, 20), min_size=2, max_size=7),
    st.integers(1, 5),
    st.sampled_from(MODEL_SPLITS),
)
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


def test_eleven_layers_over_three_stages() -> None:
    # Kang 2019, section 3.1: ResNet20's 11 layers over 3 devices are 4, 4 and 3.
    assert block_sizes(11, 3) == [4, 4, 3]
