"""Weights found in run folders, and folders without usable ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hybridnn.errors import DataError, SettingError
from hybridnn.runs.trained_run import TrainedRun, open_run
from reference.trained_runs import FEATURES, REGRESSION, regression_file, train, weights_of, write_checkpoint

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


def test_damaged_folder_is_refused(run: Path, tmp_path: Path) -> None:
    for file, content, message in (
        ("config.toml", None, "is not a run folder: it has no config.toml"),
        ("config.toml", b"[training]\nepochs = 0\n", r"config\.toml: training\.epochs = 0"),
        ("weights.npz", b"PK\x03\x04 not really", r"weights\.npz: not an \.npz file"),
        ("standardization.npz", None, r"standardization\.npz: cannot be read: No such file"),
        ("standardization.npz", b"", r"standardization\.npz: not an \.npz file"),
    ):
        before = (run / file).read_bytes()
        (run / file).unlink()
        if content is not None:
            (run / file).write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_run(run)
        (run / file).write_bytes(before)
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(DataError, match=f"{name} is not a run folder"):
            open_run(tmp_path / name)


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
