"""Work is dealt out completely, once, and evenly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.checkpoints.blocks import deal_files, share_rows

BLOCKS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), max_size=12)


@given(blocks=BLOCKS, sharers=st.integers(1, 9), uncut=st.integers(0, 2000))
def test_every_row_is_written_once_and_all_write_about_the_same(
    blocks: list[tuple[int, int]], sharers: int, uncut: int
) -> None:
    heights, rows_bytes = np.array(blocks, np.int64).reshape(-1, 2).T
    sizes = heights * rows_bytes
    written = [[0] * height for height in heights]
    loads = []
    for sharer in range(sharers):
        rows = share_rows(heights, rows_bytes, sharers, sharer, uncut)
        for place, (first, last) in enumerate(rows.tolist()):
            for row in range(first, last):
                written[place][row] += 1
        loads.append(sum((last - first) * blocks[place][1] for place, (first, last) in enumerate(rows.tolist())))
    assert all(times == 1 for rows in written for times in rows)
    # A boundary lies off by less than a row, or than a block that is not cut; a rank has two.
    assert max(loads) - sizes.sum() / sharers <= 2 * max([0, uncut, *(row for _, row in blocks)])


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), ranks=st.integers(1, 6))
def test_files_are_dealt_evenly(sizes: list[int], ranks: int) -> None:
    readers = deal_files(sizes, ranks)
    assert len(readers) == len(sizes)
    loads = [sum(size for size, reader in zip(sizes, readers, strict=True) if reader == rank) for rank in range(ranks)]
    assert sum(loads) == sum(sizes)
    # Graham's bound for any order: no rank has more than the mean and one file beyond it.
    assert max(loads) <= sum(sizes) / ranks + max([0, *sizes])
