"""Files of arrays, right and wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridnn.errors import DataError
from hybridnn.utils.files import read_npz

NAME = "layers.0.weight"


def saved(folder: Path) -> Path:
    path = folder / "weights.npz"
    np.savez_compressed(path, **{NAME: np.random.default_rng(0).normal(size=(30, 20))})
    return path


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)
    weights = read_npz(path)
    assert list(weights) == [NAME]
    np.testing.assert_array_equal(weights[NAME], np.random.default_rng(0).normal(size=(30, 20)))


def test_npy_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.ones(3))
    with pytest.raises(DataError, match=r"^model\.init_from: not an \.npz file \(numpy\.savez writes them\)$"):
        read_npz(tmp_path / "weights.npy", "model.init_from")


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz: there is no such file"):
        read_npz(tmp_path / "gone.npz")
    with pytest.raises(DataError, match="Is a directory"):
        read_npz(tmp_path)


def test_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[500:600] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"weights\.npz: cannot read layers\.0\.weight: "):
        read_npz(path)


@pytest.mark.parametrize(
    ("field", "value", "message"), [(10, 99, "That compression method is not supported"), (8, 1, ".* is encrypted")]
)
def test_what_zipfile_refuses_is_refused(tmp_path: Path, field: int, value: int, message: str) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + field] = value  # compression method or flags in the central directory
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"weights\.npz: cannot read layers\.0\.weight: {message}"):
        read_npz(path)
