"""Networks: layers, initial weights and given ones."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn import MLP, Trainer
from hybridnn.errors import DataError
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.mlp import INITIALIZERS, DenseLayer
from hybridnn.nn.parameters import check_weights, initialize_rows, parameter_shapes
from reference import network as net
from reference.network import Network


def test_layers_and_parameters() -> None:
    model = MLP([5, 8, 8, 3, 3], "selu", residual=True)
    shapes = [(layer.index, layer.inputs, layer.outputs) for layer in model.layers]
    assert shapes == [(0, 5, 8), (1, 8, 8), (2, 8, 3), (3, 3, 3)]
    assert [layer.activation for layer in model.layers] == ["selu", "selu", "selu", "identity"]
    # The output layer is never residual, even where its widths agree.
    assert [layer.residual for layer in model.layers] == [False, True, False, False]
    assert [layer.initializer for layer in model.layers] == ["lecun", "lecun", "lecun", "glorot"]
    assert model.parameters == 5 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3 + 3 * 3 + 3


def test_models_are_comparable_and_immutable() -> None:
    model = MLP([4, 2])
    assert model == MLP((4, 2))
    assert model != MLP([4, 3])
    with pytest.raises(AttributeError):
        model.sizes = (1, 2)  # type: ignore[misc]


def layer(initializer: str, inputs: int = 300, outputs: int = 200, index: int = 0) -> DenseLayer:
    return DenseLayer(index, inputs, outputs, "relu", False, initializer)


def block(of: DenseLayer, seed: int, rows: slice, columns: slice, dtype: str = "float64") -> NDArray[np.floating]:
    out = np.full((rows.stop - rows.start, columns.stop - columns.start), np.nan, dtype)
    initialize_rows(of, seed, rows, columns, out)
    return out


def whole(of: DenseLayer, seed: int = 0, dtype: str = "float64") -> NDArray[np.floating]:
    return block(of, seed, slice(0, of.outputs), slice(0, of.inputs), dtype)


@pytest.mark.parametrize(
    ("initializer", "variance"), [("he", 2 / 300), ("lecun", 1 / 300), ("glorot", 2 / (300 + 200))]
)
def test_moments(initializer: str, variance: float) -> None:
    weights = whole(layer(initializer))
    # 60,000 elements: the mean is known to sd / 245, the variance to within 1 %.
    assert abs(weights.mean()) < 4 * sqrt(variance / weights.size)
    assert weights.var() == pytest.approx(variance, rel=0.03)
    kurtosis = ((weights / weights.std()) ** 4).mean()
    assert kurtosis == pytest.approx(1.8 if initializer == "glorot" else 3.0, rel=0.05)


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_blocks_equal_those_of_the_full_matrix(initializer: str) -> None:
    of = layer(initializer, 13, 11, index=2)
    weights = whole(of, seed=5)
    for rows, columns in ((slice(3, 7), slice(0, 13)), (slice(0, 11), slice(5, 9)), (slice(10, 11), slice(12, 13))):
        assert np.array_equal(block(of, 5, rows, columns), weights[rows, columns])
    assert block(of, 5, slice(4, 4), slice(0, 13)).shape == (0, 13)


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_rows_layers_and_seeds_differ(initializer: str) -> None:
    drawn = [whole(layer(initializer, 40, 30, index), seed) for index in (0, 1) for seed in (0, 1)]
    rows = np.concatenate(drawn)
    correlation = np.corrcoef(rows)
    assert np.abs(correlation - np.eye(len(rows))).max() < 0.75
    assert len(np.unique(rows)) == rows.size


def test_float32_is_float64_rounded() -> None:
    of = layer("he", 13, 11)
    assert np.array_equal(whole(of, 3, "float32"), whole(of, 3).astype(np.float32))


@pytest.mark.parametrize("initializer", ["auto", *INITIALIZERS])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_initial_weights_equal_the_reference(activation: str, initializer: str) -> None:
    network = Network((5, 13, 7, 4), activation, initializer=initializer)
    trainer = Trainer(MLP(network.sizes, activation, initializer=initializer), seed=9, dtype="float64")
    expected = net.initial_weights(network, 9)
    found = trainer.weights()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-15, err_msg=name)


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
