"""Division of layers into shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
