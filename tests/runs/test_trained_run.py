"""Weights found in run folders, and exported ones."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.runs.trained_run import TrainedRun, export_arrays, open_run
from hybridnn.utils.files import npz_bytes
from reference import network as net
from reference.trained_runs import FEATURES, NETWORK, REGRESSION, regression_file, train, weights_of, write_checkpoint

STEPS = 10
"""Two epochs of 46 samples, ten at a time."""


@pytest.fixture
def run(regression: Path, tmp_path: Path) -> Path:
    """Return a run folder that a test may change."""
    return shutil.copytree(regression, tmp_path / "run")


def checkpoints(run: Path, *steps: int) -> dict[int, Path]:
    """Write checkpoints whose arrays are those of the run and the step more."""
    arrays = weights_of(run)
    return {step: write_checkpoint(run, step, {name: array + step for name, array in arrays.items()}) for step in steps}


def assert_weights(found: TrainedRun, expected: dict[str, np.ndarray], step: int) -> None:
    assert found.source.step == step
    for name, array in expected.items():
        np.testing.assert_array_equal(found.weights[name], array + (0 if step == STEPS else step))


def test_finished_run_gives_its_weights_or_a_chosen_checkpoint(run: Path) -> None:
    checkpoints(run, 4, 6)
    found, arrays = open_run(run), weights_of(run)
    assert (found.source.path, found.source.damaged) == (run / "weights.npz", ())
    assert (found.task, found.features, found.outputs) == ("regression", FEATURES, 3)
    assert found.model.sizes == (FEATURES, 7, 6, 3)
    assert_weights(found, arrays, STEPS)
    assert_weights(open_run(run, "step-00000004"), arrays, 4)


def test_unfinished_run_gives_its_newest_valid_checkpoint(run: Path) -> None:
    arrays, paths = weights_of(run), checkpoints(run, 4, 6)
    (run / "weights.npz").unlink()
    found = open_run(run)
    assert (found.source.path.name, found.source.damaged) == ("step-00000006", ())
    assert_weights(found, arrays, 6)
    (paths[6] / "layers.1.bias.npy").write_bytes(b"cut")
    found = open_run(run)
    assert_weights(found, arrays, 4)
    (damaged,) = found.source.damaged
    assert "step-00000006/layers.1.bias.npy" in damaged


def test_chosen_checkpoint_must_be_there_and_sound(run: Path) -> None:
    with pytest.raises(SettingError, match=r"--checkpoint = 'step-00000004': not in .*checkpoints, which holds none"):
        open_run(run, "step-00000004")
    path = write_checkpoint(run, 6, weights_of(run))
    with pytest.raises(SettingError, match="which holds step-00000006"):
        open_run(run, "../run")
    (path / "layers.0.bias.npy").unlink()
    with pytest.raises(DataError, match=r"layers\.0\.bias\.npy: the file is missing"):
        open_run(run, "step-00000006")


def test_run_without_weights_is_refused(run: Path) -> None:
    (run / "weights.npz").unlink()
    with pytest.raises(DataError, match=r"run: no weights\.npz, .* and no valid checkpoint$"):
        open_run(run)
    arrays = {"layers.0.weight": np.zeros((3, 2)), "layers.0.bias": np.zeros(3)}
    (write_checkpoint(run, 6, arrays) / "layers.0.bias.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"no valid checkpoint: .*step-00000006/layers\.0\.bias\.npy"):
        open_run(run)


def test_weights_of_another_network_are_refused(run: Path) -> None:
    changes: list[tuple[dict[str, np.ndarray | None], str]] = [
        ({"layers.0.weight": None}, r"layers\.0\.weight is missing; the file holds layers\.0\.bias"),
        ({"layers.1.weight": np.zeros((6, 8))}, r"layers\.1\.weight has shape \(6, 8\), the model needs \(6, 7\)"),
        ({"layers.2.weight": np.zeros(3)}, r"layers\.2\.weight has shape \(3,\), which is not \(outputs, inputs\)"),
        ({"layers.0.bias": np.full(7, np.nan)}, r"layers\.0\.bias holds numbers that are not finite"),
        ({"layers.0.weight": np.zeros((7, 4))}, r"standardization\.npz is for other data than .*weights\.npz"),
    ]
    good = weights_of(run)
    for change, message in changes:
        arrays = {name: array for name, array in (good | change).items() if array is not None}
        np.savez(run / "weights.npz", **arrays)  # type: ignore[arg-type]  # arrays by name
        with pytest.raises(DataError, match=message):
            open_run(run)


def test_task_of_a_run_without_standardization(tmp_path: Path) -> None:
    file = regression_file(tmp_path / "mine.npz")
    training = {**REGRESSION["training"], "clip_norm": 1e-6}
    for loss in ("auto", "mse"):
        model = {**REGRESSION["model"], "loss": loss}
        train(tmp_path / loss, data={"file": str(file), "standardize": False}, model=model, training=training)
        assert open_run(tmp_path / loss).task == "regression"
    train(tmp_path / "labels", data={"standardize": False}, training={"epochs": 1}, model={"hidden": [4]})
    assert open_run(tmp_path / "labels").task == "classification"


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
