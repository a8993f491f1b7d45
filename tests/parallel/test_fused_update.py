"""Who updates which rows where weight gradients are products, and where that is worth it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.replicas.fused_update import fused_update_pays, owned_rows

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
def test_every_row_has_one_owner_and_the_shares_are_equal(sizes: list[int], split: str, model: int, ranks: int) -> None:
    for model_rank in range(model):
        layout = layout_of(sizes, split, model, model_rank)
        shapes = [shard.weight_shape for shard in layout.shards]
        owned = [list(owned_rows(layout, ranks, rank)) for rank in range(ranks)]

        # One after the other they are all rows in order: disjoint, complete and consecutive in one.
        in_order = [(place, row) for mine in owned for place, rows in mine for row in range(rows.start, rows.stop)]
        assert in_order == [(place, row) for place, (rows, _) in enumerate(shapes) for row in range(rows)]
        assert all(rows.start < rows.stop for mine in owned for _, rows in mine), "no empty pieces"
        assert all(one[0] < other[0] for mine in owned for one, other in pairwise(mine)), "one piece of a layer"

        numbers = [sum((rows.stop - rows.start) * (shapes[place][1] + 1) for place, rows in mine) for mine in owned]
        share = sum(rows * (columns + 1) for rows, columns in shapes) / ranks
        # Each end is moved by half a block of rows at most.
        assert max(abs(number - share) for number in numbers) <= BLOCK * max(columns + 1 for _, columns in shapes)

        for place, rows in (item for mine in owned for item in mine):
            assert rows.start % BLOCK == 0
            assert rows.stop % BLOCK == 0 or rows.stop == shapes[place][0]


def test_layers_of_whole_blocks_are_cut_evenly() -> None:
    layout = layout_of([63, 64, 64, 32], "columns", 1, 0)  # 4096, 4160 and 2080 numbers
    assert list(owned_rows(layout, 1, 0)) == [(0, slice(0, 64)), (1, slice(0, 64)), (2, slice(0, 32))]
    assert list(owned_rows(layout, 2, 0)) == [(0, slice(0, 64)), (1, slice(0, 16))]
    assert list(owned_rows(layout, 2, 1)) == [(1, slice(16, 64)), (2, slice(0, 32))]


def test_ranks_beyond_the_rows_have_nothing_to_do() -> None:
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
def test_products_pay_where_arrays_of_samples_are_small_beside_the_weights(
    sizes: list[int], batch_size: int, batch: int, split: int, pays: bool
) -> None:
    assert fused_update_pays(MLP(sizes), batch_size, batch, split) is pays
