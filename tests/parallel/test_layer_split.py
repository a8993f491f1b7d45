"""Division of layers into shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.nn.mlp import MLP
from hybridnn.parallel.dense import MODEL_SPLITS, split_layers


@given(
    st.lists(st.integers(5, 20), min_size=2, max_size=7),
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


def test_columns_gathers_outputs_of_every_layer() -> None:
    splits = split_layers(MLP([4, 5, 6, 7]).layers, "columns", 2, 1)
    assert [(item.by_inputs, item.gathers) for item in splits] == [(False, True)] * 3
    assert [item.rows for item in splits] == [slice(3, 5), slice(3, 6), slice(4, 7)]


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


@pytest.mark.parametrize(
    ("split", "shapes"),
    [
        ("columns", [[(1, 8), (1, 2)], [(1, 8), (0, 2)], [(0, 8), (0, 2)]]),
        ("alternating", [[(1, 8), (1, 1)], [(1, 8), (1, 1)], [(0, 8), (1, 0)]]),
    ],
)
def test_last_ranks_have_nothing_of_a_narrow_layer(split: str, shapes: list[list[tuple[int, int]]]) -> None:
    layers = MLP([8, 2, 1]).layers
    assert [[item.weight_shape for item in split_layers(layers, split, 3, rank)] for rank in range(3)] == shapes
