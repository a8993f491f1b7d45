"""Files of a checkpoint: blocks written in any order, and the ranks that write them."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.checkpoints.file_io import (
    Rectangle,
    file_sha256,
    npy_header,
    read_npy_header,
    read_rectangle,
    write_rectangle,
)
from hybridnn.checkpoints.shards import assign_files, divide_rows

WHOLE = np.arange(77, dtype=np.float32).reshape(7, 11)
BLOCKS = [
    (slice(0, 7), slice(0, 11)),
    (slice(2, 5), slice(0, 11)),
    (slice(0, 7), slice(3, 8)),
    (slice(6, 7), slice(10, 11)),
]


@pytest.fixture(params=[None, 7], ids=["whole calls", "7 bytes a call"])
def _short_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        pwrite, preadv = os.pwrite, os.preadv
        monkeypatch.setattr("os.pwrite", lambda file, data, offset: pwrite(file, data[: request.param], offset))
        monkeypatch.setattr("os.preadv", lambda file, into, at: preadv(file, [into[0][: request.param]], at))


@pytest.mark.usefixtures("_short_calls")
def test_blocks_written_in_any_order_are_a_file_that_numpy_reads_and_blocks_of_it_are_read(tmp_path: Path) -> None:
    path, header = tmp_path / "array.npy", npy_header((7, 11), WHOLE.dtype)
    for rows, columns in ((slice(5, 7), slice(0, 11)), (slice(0, 5), slice(4, 11)), (slice(0, 5), slice(0, 4))):
        write_rectangle(path, WHOLE[rows, columns].copy(), Rectangle((7, 11), rows, columns), header)
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), WHOLE)
    assert file_sha256(path) == hashlib.sha256(path.read_bytes()).digest()
    with open(path, "rb") as file:
        shape, dtype, offset = read_npy_header(file)
    assert (shape, dtype) == ((7, 11), np.dtype("float32"))
    for rows, columns in BLOCKS:
        block = np.empty_like(WHOLE[rows, columns], order="C")
        read_rectangle(path, block, Rectangle((7, 11), rows, columns), offset)
        np.testing.assert_array_equal(block, WHOLE[rows, columns])


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, WHOLE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends after"):
        read_rectangle(path, np.empty_like(WHOLE), Rectangle((7, 11), slice(0, 7), slice(0, 11)), 128)


def test_other_orders_and_formats_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "fortran.npy", np.asfortranarray(WHOLE))
    with open(tmp_path / "fortran.npy", "rb") as file, pytest.raises(ValueError, match="Fortran"):
        read_npy_header(file)
    with open(tmp_path / "other.npy", "wb") as file:
        np.lib.format.write_array(file, WHOLE, version=(3, 0))
    with open(tmp_path / "other.npy", "rb") as file, pytest.raises(ValueError, match=r"version 1\.0"):
        read_npy_header(file)


ARRAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), max_size=12)
"""Rows of each array, and bytes of such a row."""


@given(arrays=ARRAYS, replicas=st.integers(1, 9), uncut=st.integers(0, 2000))
def test_every_row_is_written_once_and_replicas_write_about_equally(arrays, replicas, uncut) -> None:
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
