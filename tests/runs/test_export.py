"""Exported arrays: the network computed from them with NumPy alone, in the units of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.errors import SettingError
from hybridnn.runs.inference import export_arrays
from hybridnn.runs.trained_run import open_run
from hybridnn.utils.files import npz_bytes
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, REGRESSION, regression_file, train, weights_of

Arrays = dict[str, NDArray[Any]]

FUNCTIONS = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0), "identity": lambda z: z}


def computed(file: Path, x: NDArray[Any]) -> NDArray[Any]:
    """Return the outputs for `x` in its own units, as the names in the file tell to compute them."""
    with np.load(file) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}
    if "input_mean" in arrays:
        x = (x - arrays["input_mean"]) / arrays["input_scale"]
    for layer, (activation, residual) in enumerate(zip(arrays["activations"], arrays["residual"], strict=True)):
        y = FUNCTIONS[activation](x @ arrays[f"layers.{layer}.weight"].T + arrays[f"layers.{layer}.bias"])
        x = x + y if residual else y
    return x * arrays["target_scale"] + arrays["target_mean"] if "target_mean" in arrays else x


def exported(run: Path, *, fold: bool) -> Path:
    file = run.with_name(f"folded-{fold}.npz")
    file.write_bytes(npz_bytes(export_arrays(open_run(run), fold_standardization=fold)))
    return file


def samples() -> NDArray[Any]:
    return np.random.default_rng(9).normal(size=(13, FEATURES)) * [1, 10, 100, 1e-3, 1] + [50, -300, 0, 7, 1e4]


def expected(run: Path, network: net.Network, x: NDArray[Any]) -> NDArray[Any]:
    """Return what the weights of the run give for `x`, with the standardization undone at the end."""
    with np.load(run / "standardization.npz") as file:
        outputs, _ = net.forward(network, weights_of(run), (x - file["x_mean"]) / file["x_scale"])
        return np.asarray(outputs * file["y_scale"] + file["y_mean"] if "y_mean" in file else outputs)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("hidden", [(7, 6), ()], ids=["three layers", "one layer"])
def test_numpy_alone_computes_the_outputs(tmp_path: Path, hidden: tuple[int, ...], *, fold: bool) -> None:
    file = regression_file(tmp_path / "mine.npz")
    model = {**REGRESSION["model"], "hidden": list(hidden)}
    train(tmp_path / "run", **{**REGRESSION, "data": {"file": str(file)}, "model": model})
    network = net.Network((FEATURES, *hidden, 3), "tanh")
    outputs = expected(tmp_path / "run", network, samples())
    assert outputs.mean(axis=0) == pytest.approx([1000, -20, 3], abs=100), "the targets are not in their units"
    np.testing.assert_allclose(computed(exported(tmp_path / "run", fold=fold), samples()), outputs, rtol=1e-9)


@pytest.mark.parametrize("fold", [False, True])
def test_residual_network_of_a_classification(tmp_path: Path, *, fold: bool) -> None:
    train(tmp_path / "run", model={"hidden": [9, 9], "residual": True}, training={"epochs": 1, "dtype": "float64"})
    x = np.random.default_rng(9).normal(size=(13, 64)) * 5 + 3
    outputs = expected(tmp_path / "run", net.Network((64, 9, 9, 10), "relu", residual=True), x)
    np.testing.assert_allclose(computed(exported(tmp_path / "run", fold=fold), x), outputs, rtol=1e-8, atol=1e-10)


def test_folding_needs_a_first_layer_that_adds_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run", model={"hidden": [64], "residual": True}, training={"epochs": 1})
    with pytest.raises(SettingError, match="--fold-standardization = True: the first layer is residual"):
        export_arrays(open_run(tmp_path / "run"), fold_standardization=True)


def test_names_shapes_and_dtypes(tmp_path: Path) -> None:
    file = regression_file(tmp_path / "mine.npz")
    train(tmp_path / "run", data={"file": str(file)}, model=REGRESSION["model"], training={"epochs": 1})
    run = open_run(tmp_path / "run")
    plain = export_arrays(run)
    parameters = {f"layers.{layer}.{kind}" for layer in range(NETWORK.layers) for kind in ("weight", "bias")}
    shifts = {"input_mean", "input_scale", "target_mean", "target_scale"}
    assert set(plain) == parameters | shifts | {"activations", "residual"}
    assert {plain[name].dtype for name in parameters} == {np.dtype("float32")}
    assert plain["activations"].tolist() == ["tanh", "tanh", "identity"]
    folded = export_arrays(run, fold_standardization=True)
    assert set(folded) == parameters | {"activations", "residual"}
    assert {folded[name].dtype for name in parameters} == {np.dtype("float64")}
    assert folded["layers.1.weight"].tolist() == plain["layers.1.weight"].tolist()


def test_exported_file_starts_another_run(tmp_path: Path) -> None:
    data = {"file": str(regression_file(tmp_path / "mine.npz"))}
    train(tmp_path / "run", **{**REGRESSION, "data": data})
    file = exported(tmp_path / "run", fold=False)
    training = {**REGRESSION["training"], "epochs": 1}
    optimizer = {"lr": 1e-300, "momentum": 0.0}
    model = {**REGRESSION["model"], "init_from": str(file)}
    train(tmp_path / "again", data=data, model=model, training=training, optimizer=optimizer)
    for name, array in weights_of(tmp_path / "run").items():
        np.testing.assert_array_equal(weights_of(tmp_path / "again")[name], array)
