"""Fused update: the rows that each rank updates, and when it is chosen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import split_layers
from hybridnn.parallel.fused_update import owned_rows
from hybridnn.parallel.replica import fused_update_pays

BLOCK = 16

widths = st.one_of(st.integers(4, 40), st.sampled_from((64, 100, 256, 1000)))


def layout_of(sizes: list[int], split: str, ranks: int, rank: int) -> ParameterLayout:
    return ParameterLayout(split_layers(MLP(sizes).layers, split, ranks, rank))


@given(
    st.lists(widths, min_size=2, max_size=6),
    st.sampled_from(("columns", "alternating")),
    st.integers(1, 4),
    st.sampled_from((1, 2, 3, 4, 7, 40, 300)),
)
def test_every_row_has_one_owner_and_shares_are_equal(sizes: list[int], split: str, model: int, ranks: int) -> None:
    for model_rank in range(model):
        layout = layout_of(sizes, split, model, model_rank)
        shapes = [shard.weight_shape for shard in layout.shards]
        owned = [list(owned_rows(layout, ranks, rank)) for rank in range(ranks)]

        # Concatenated, they are all rows in order: disjoint, complete and consecutive.
        pieces = [piece for rank_pieces in owned for piece in rank_pieces]
        in_order = [(layer, row) for layer, rows in pieces for row in range(rows.start, rows.stop)]
        assert in_order == [(layer, row) for layer, (rows, _) in enumerate(shapes) for row in range(rows)]
        assert all(rows.start < rows.stop for _, rows in pieces), "no empty pieces"
        assert all(piece[0] < following[0] for rank_pieces in owned for piece, following in pairwise(rank_pieces))

        sizes_of_ranks = [
            sum((rows.stop - rows.start) * (shapes[layer][1] + 1) for layer, rows in rank_pieces)
            for rank_pieces in owned
        ]
        share = sum(rows * (columns + 1) for rows, columns in shapes) / ranks
        # Each end is moved by half a block of rows at most.
        assert max(abs(size - share) for size in sizes_of_ranks) <= BLOCK * max(columns + 1 for _, columns in shapes)

        for layer, rows in pieces:
            assert rows.start % BLOCK == 0
            assert rows.stop % BLOCK == 0 or rows.stop == shapes[layer][0]


def test_shares_of_layers_with_full_blocks() -> None:
    layout = layout_of([63, 64, 64, 32], "columns", 1, 0)  # 4096, 4160 and 2080 numbers
    assert list(owned_rows(layout, 1, 0)) == [(0, slice(0, 64)), (1, slice(0, 64)), (2, slice(0, 32))]
    assert list(owned_rows(layout, 2, 0)) == [(0, slice(0, 64)), (1, slice(0, 16))]
    assert list(owned_rows(layout, 2, 1)) == [(1, slice(16, 64)), (2, slice(0, 32))]


def test_more_ranks_than_rows() -> None:
    layout = layout_of([4, 5, 4], "columns", 1, 0)
    shares = [list(owned_rows(layout, 50, rank)) for rank in range(50)]
    assert sum(map(len, shares)) == 2
    assert [item for share in shares for item in share] == [(0, slice(0, 5)), (1, slice(0, 4))]


@pytest.mark.parametrize(
    ("sizes", "batch_size", "batch", "split", "pays"),
    [
        ([255, 256], 64, 1, 1, True),  # 2^16 parameters, and 2 * 64 * 511 = 65,408
        ([254, 256], 1, 1, 1, False),  # 256 fewer
        ([255, 256], 65, 1, 1, False),  # 2 * 65 * 511 = 66,430
        ([255, 256], 128, 2, 1, True),
        ([255, 256], 129, 2, 1, False),  # one rank has 65 samples
        ([255, 256], 192, 3, 1, True),
        ([255, 256], 1, 1, 2, False),
        ([255, 512], 42, 1, 2, True),  # 2^17, and 2 * 2 * 42 * 767 = 128,856
        ([255, 512], 43, 1, 2, False),  # 131,924
        ([255, 512], 84, 2, 2, True),
        ([16, 1024, 1024, 1024, 1024, 2], 100, 1, 1, True),
        ([784, 128, 127, 126, 125, 124, 123, 10], 128, 1, 1, False),
    ],
)
def test_fused_update_pays_if_activations_are_small_compared_with_the_weights(
    sizes: list[int], batch_size: int, batch: int, split: int, pays: bool
) -> None:
    assert fused_update_pays(MLP(sizes), batch_size, batch, split) is pays
