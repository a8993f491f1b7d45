"""Checks of weights that are loaded into a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.errors import DataError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import check_weights, parameter_shapes


@pytest.mark.parametrize("dtype", ["<U3", "complex128", "bool"])
def test_weights_of_other_types_are_refused(dtype: str) -> None:
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
