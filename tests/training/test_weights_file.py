"""A file of initial weights, right and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.errors import DataError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import check_weights, parameter_shapes
from hybridnn.training.weights_file import read_weights

NAME = "layers.0.weight"


def saved(folder: Path) -> Path:
    path = folder / "weights.npz"
    np.savez_compressed(path, **{NAME: np.random.default_rng(0).normal(size=(30, 20))})
    return path


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path)
    weights = read_weights(path)
    assert list(weights) == [NAME]
    np.testing.assert_array_equal(weights[NAME], np.random.default_rng(0).normal(size=(30, 20)))


def test_npy_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.ones(3))
    with pytest.raises(DataError, match=r"^model\.init_from = '.*weights\.npy': not an \.npz file$"):
        read_weights(tmp_path / "weights.npy")


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz': there is no such file"):
        read_weights(tmp_path / "gone.npz")
    with pytest.raises(DataError, match="Is a directory"):
        read_weights(tmp_path)


def test_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[500:600] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"weights\.npz': not a readable \.npz file"):
        read_weights(path)


@pytest.mark.parametrize(
    ("field", "value", "message"), [(10, 99, "That compression method is not supported"), (8, 1, ".* is encrypted")]
)
def test_what_zipfile_refuses_is_refused(tmp_path: Path, field: int, value: int, message: str) -> None:
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + field] = value  # compression method or flags in the central directory
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"weights\.npz': not a readable \.npz file \({message}"):
        read_weights(path)


@pytest.mark.parametrize("dtype", ["<U3", "complex128", "bool"])
def test_weights_that_are_not_real_numbers_are_refused(dtype: str) -> None:
    model, weights = model_and_weights()
    weights["layers.1.bias"] = weights["layers.1.bias"].astype(dtype)
    with pytest.raises(DataError, match=rf"^here: layers\.1\.bias has dtype {dtype}, the model needs real numbers$"):
        check_weights(model, weights, "here")


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8"])
def test_weights_of_any_real_type_are_accepted(dtype: str) -> None:
    model, weights = model_and_weights()
    check_weights(model, {name: array.astype(dtype) for name, array in weights.items()}, "here")


def model_and_weights() -> tuple[MLP, dict[str, NDArray[Any]]]:
    model = MLP([4, 3, 2])
    return model, {name: np.ones(shape) for name, shape in parameter_shapes(model).items()}
