"""The rows and files of a checkpoint are divided among the ranks completely, once, and evenly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.checkpoints.shards import assign_files, divide_rows

ARRAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), max_size=12)
"""Rows of each array, and bytes of such a row."""


@given(arrays=ARRAYS, replicas=st.integers(1, 9), uncut=st.integers(0, 2000))
def test_every_row_is_written_once_and_replicas_write_about_equally(
    arrays: list[tuple[int, int]], replicas: int, uncut: int
) -> None:
    heights, row_bytes = np.array(arrays, np.int64).reshape(-1, 2).T
    writes = [np.zeros(height, int) for height in heights]
    loads = []
    for replica in range(replicas):
        rows = divide_rows(heights, row_bytes, replicas, replica, uncut)
        for count, (first, last) in zip(writes, rows, strict=True):
            count[first:last] += 1
        loads.append((np.diff(rows)[:, 0] * row_bytes).sum())
    assert all((count == 1).all() for count in writes)
    # A boundary is off by less than a row, or than an array that is not divided; a rank has two boundaries.
    assert max(loads) - (heights * row_bytes).sum() / replicas <= 2 * max([0, uncut, *row_bytes])


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), ranks=st.integers(1, 6))
def test_files_are_assigned_evenly(sizes: list[int], ranks: int) -> None:
    owners = assign_files(sizes, ranks)
    assert len(owners) == len(sizes)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert sum(loads) == sum(sizes)
    # Graham's bound for any order: no rank has more than the mean and one file beyond it.
    assert max(loads) <= sum(sizes) / ranks + max([0, *sizes])
