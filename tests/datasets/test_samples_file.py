"""Samples without targets: what is read, and what is refused with the place of the mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.datasets.samples_file import load_samples
from hybridnn.errors import DataError, SettingError

X = np.arange(6.0).reshape(3, 2)


def test_array_x_is_taken_or_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, x=X, other=X + 1)
    assert load_samples(path, 2).x.tolist() == X.tolist()
    np.savez(path, whatever=X.astype(np.int32))
    assert load_samples(path, 2).x.tolist() == X.tolist()


def test_columns_of_targets_are_left_out_where_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("\ufeffa, y ,b\n0,9,1\n2,9,3\n\n4,9,5\n", encoding="utf-8")
    assert load_samples(path, 2, ["y", "absent"]).x.tolist() == X.tolist()
    assert load_samples(path, 3).x.tolist() == [[0, 9, 1], [2, 9, 3], [4, 9, 5]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,4\n", "the first line holds numbers; it must name the columns"),
        ("", "the first line is empty; it must name the columns"),
        ("a,b\n", "no line of data"),
        ("a,b\n1,2\n1,2,3\n", "line 3: 3 cells, the header line has 2"),
        ("a,b\n1,two\n", "line 2, column 'b': 'two' is not a finite number"),
        ("a,b,c\n1,2,3\n", "samples of 3 features; the network takes 2"),
        ("a,y\n1,2\n", "samples of 1 features; the network takes 2"),
        ("y\n1\n", r"shape \(1, 0\): at least one sample and one feature"),
        ("a,b\n1,\x00\n", "samples.csv"),
    ],
)
def test_wrong_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_samples(path, 2, ["y"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": X, "b": X}, "which array holds the samples.*found a, b"),
        ({}, "found nothing"),
        ({"x": np.ones((3, 4))}, "samples of 4 features; the network takes 2"),
        ({"x": np.ones(3)}, r"x has shape \(3,\)"),
        ({"x": np.float64(3)}, r"x has shape \(\)"),
        ({"x": np.array([["a", "b"]])}, "dtype"),
        ({"x": np.array([[1, np.inf]])}, "x is inf in row 0, column 1"),
        ({"x": np.empty((0, 2))}, "at least one sample"),
    ],
)
def test_wrong_npz_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=rf"samples\.npz: .*{message}"):
        load_samples(path, 2)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.npz: no such file"):
        load_samples(tmp_path / "absent.npz", 2)
    with pytest.raises(SettingError, match=r"must end in \.npz or \.csv"):
        load_samples(tmp_path / "samples.txt", 2)
    (tmp_path / "samples.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match=r"not an \.npz file"):
        load_samples(tmp_path / "samples.npz", 2)
    (tmp_path / "samples.csv").write_bytes(b"a,b\n\xff\xfe\n")
    with pytest.raises(DataError, match="is not a text file"):
        load_samples(tmp_path / "samples.csv", 2)
