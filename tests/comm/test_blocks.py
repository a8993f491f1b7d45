"""The block partition: every item once, sizes at most one apart, larger parts first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridnn.comm.blocks import block_bounds, block_sizes, block_slice


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
