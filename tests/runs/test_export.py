"""Exported arrays: the network computed from them with NumPy alone, in the units of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.errors import SettingError
from hybridnn.runs.trained_run import export_arrays, open_run
from hybridnn.utils.files import npz_bytes
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, REGRESSION, train, weights_of

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


def check_outputs(run: Path, network: net.Network, x: NDArray[Any], atol: float = 0) -> NDArray[Any]:
    """Compare both kinds of files with the outputs of the run, which are returned."""
    outputs = expected(run, network, x)
    for fold in (False, True):
        np.testing.assert_allclose(computed(exported(run, fold=fold), x), outputs, rtol=1e-9, atol=atol)
    return outputs


def test_numpy_alone_computes_the_outputs(regression: Path, tmp_path: Path) -> None:
    outputs = check_outputs(regression, NETWORK, samples())
    assert outputs.mean(axis=0) == pytest.approx([1000, -20, 3], abs=100), "the targets are not in their units"
    data = {"file": str(regression.parent / "mine.npz")}
    train(tmp_path / "one", data=data, model={"hidden": []}, training=REGRESSION["training"])
    check_outputs(tmp_path / "one", net.Network((FEATURES, 3), "tanh"), samples())
    model = {"hidden": [9, 9], "residual": True}
    train(tmp_path / "residual", model=model, training={"epochs": 1, "dtype": "float64"})
    x = np.random.default_rng(9).normal(size=(13, 64)) * 5 + 3
    check_outputs(tmp_path / "residual", net.Network((64, 9, 9, 10), "relu", residual=True), x, 1e-11)


def test_folding_needs_a_first_layer_that_adds_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run", model={"hidden": [64], "residual": True}, training={"epochs": 1})
    run = open_run(tmp_path / "run")
    with pytest.raises(SettingError, match="--fold-standardization = True: the first layer is residual"):
        export_arrays(run, fold_standardization=True)


def test_folding_a_float32_run_gives_float64(tmp_path: Path) -> None:
    train(tmp_path / "run", model={"hidden": [4]}, training={"epochs": 1})
    for fold, dtype in ((False, "float32"), (True, "float64")):
        arrays = export_arrays(open_run(tmp_path / "run"), fold_standardization=fold)
        assert {arrays[f"layers.{layer}.{kind}"].dtype.name for layer in (0, 1) for kind in ("weight", "bias")} == {
            dtype
        }
