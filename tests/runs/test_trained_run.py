"""Weights found in run folders, and folders without usable ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hybridnn.errors import DataError, SettingError
from hybridnn.runs.trained_run import open_run
from reference.trained_runs import FEATURES, REGRESSION, regression_file, train, weights_of, write_checkpoint

STEPS = 10
"""Two epochs of 46 samples, ten at a time."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train(folder / "run", data={"file": str(regression_file(folder / "mine.npz"))}, **REGRESSION)
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Return a run folder that a test may change."""
    return shutil.copytree(finished, tmp_path / "run")


def test_finished_run_is_read_whole(run: Path) -> None:
    write_checkpoint(run, 4, weights_of(run))
    found = open_run(run)
    assert (found.source.path, found.source.step, found.source.damaged) == (run / "weights.npz", STEPS, ())
    assert (found.task, found.features, found.outputs) == ("regression", FEATURES, 3)
    assert found.model.sizes == (FEATURES, 7, 6, 3)
    for name, array in weights_of(run).items():
        np.testing.assert_array_equal(found.weights[name], array)


def test_unfinished_run_gives_its_newest_checkpoint(run: Path) -> None:
    arrays = weights_of(run)
    write_checkpoint(run, 4, {name: array + 4 for name, array in arrays.items()})
    write_checkpoint(run, 6, {name: array + 6 for name, array in arrays.items()})
    (run / "weights.npz").unlink()
    found = open_run(run)
    assert (found.source.path.name, found.source.step) == ("step-00000006", 6)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.weights[name], array + 6)


def test_damaged_checkpoint_is_passed_over_and_named(run: Path) -> None:
    arrays = weights_of(run)
    write_checkpoint(run, 4, {name: array + 4 for name, array in arrays.items()})
    (write_checkpoint(run, 6, arrays) / "layers.1.bias.npy").write_bytes(b"cut")
    (run / "weights.npz").unlink()
    found = open_run(run)
    assert found.source.step == 4
    assert len(found.source.damaged) == 1
    assert "step-00000006/layers.1.bias.npy" in found.source.damaged[0]
    np.testing.assert_array_equal(found.weights["layers.2.bias"], arrays["layers.2.bias"] + 4)


def test_checkpoint_can_be_chosen(run: Path) -> None:
    arrays = weights_of(run)
    for step in (4, 6):
        write_checkpoint(run, step, {name: array + step for name, array in arrays.items()})
    found = open_run(run, "step-00000004")
    assert found.source.step == 4
    np.testing.assert_array_equal(found.weights["layers.0.weight"], arrays["layers.0.weight"] + 4)


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


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.toml", None, "is not a run folder: it has no config.toml"),
        ("config.toml", b"[training]\nepochs = 0\n", r"config\.toml: training\.epochs = 0"),
        ("weights.npz", b"PK\x03\x04 not really", r"weights\.npz: not an \.npz file"),
        ("standardization.npz", None, r"standardization\.npz: there is no such file"),
        ("standardization.npz", b"", r"standardization\.npz: not an \.npz file"),
    ],
)
def test_damaged_folder_is_refused(run: Path, file: str, content: bytes | None, message: str) -> None:
    (run / file).unlink()
    if content is not None:
        (run / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_run(run)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent is not a run folder"):
        open_run(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is not a run folder"):
        open_run(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.0.weight": None}, r"layers\.0\.weight is missing; the file holds layers\.0\.bias"),
        ({"layers.1.weight": np.zeros((6, 8))}, r"layers\.1\.weight has shape \(6, 8\), the model needs \(6, 7\)"),
        ({"layers.2.weight": np.zeros(3)}, r"layers\.2\.weight has shape \(3,\), which is not \(outputs, inputs\)"),
        ({"layers.0.bias": np.full(7, np.nan)}, r"layers\.0\.bias holds numbers that are not finite"),
        ({"layers.0.weight": np.zeros((7, 4))}, r"standardization\.npz is for other data than .*weights\.npz"),
    ],
)
def test_weights_of_another_network_are_refused(run: Path, change: dict[str, np.ndarray | None], message: str) -> None:
    arrays = {name: array for name, array in (weights_of(run) | change).items() if array is not None}
    np.savez(run / "weights.npz", **arrays)  # type: ignore[arg-type]  # arrays by name
    with pytest.raises(DataError, match=message):
        open_run(run)


@pytest.mark.parametrize("loss", ["auto", "mse"])
def test_task_of_a_run_without_standardization(tmp_path: Path, loss: str) -> None:
    file = regression_file(tmp_path / "mine.npz")
    model = {**REGRESSION["model"], "loss": loss}
    training = {**REGRESSION["training"], "clip_norm": 1e-6}
    train(tmp_path / "run", data={"file": str(file), "standardize": False}, model=model, training=training)
    assert open_run(tmp_path / "run").task == "regression"
    train(tmp_path / "labels", data={"standardize": False}, training={"epochs": 1}, model={"hidden": [4]})
    assert open_run(tmp_path / "labels").task == "classification"
