"""Small runs trained in this process, their checkpoints written by NumPy, and a command without learning curves."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.config.settings import settings_from
from hybridnn.pipeline.layout import Layout
from hybridnn.runs.records import RunView
from hybridnn.runs.run import run_training
from hybridnn.training.records import EpochRecord
from reference.network import Network

Arrays = dict[str, NDArray[Any]]

FEATURES = 5
NETWORK = Network((FEATURES, 7, 6, 3), "tanh")
"""The network that `train` trains on `regression_file`."""

HYBRIDNN_WITHOUT_CURVE = (
    sys.executable,
    "-c",
    "from hybridnn.runs import report\n"
    "report.draw_learning_curve = lambda *_: None\n"
    "from hybridnn.cli.main import main; main()",
)
"""The command ``hybridnn`` without the learning curve, which would take most of the time of a small run."""


def epoch_record(epoch: int, accuracy: float | None = 0.5, **changes: float | None) -> EpochRecord:
    """The record of an epoch of 15 steps."""
    values = {
        "step": 15 * epoch,
        "epoch": epoch,
        "train_loss": 1.0 / epoch,
        "learning_rate": 0.1,
        "validation_loss": 1.1 / epoch,
        "validation_accuracy": accuracy,
        "validation_r2": None,
        "samples_per_second": 1000.0,
        "compute_seconds": 3.0,
        "communication_seconds": 1.0,
        "bytes_sent": 1_500_000,
    }
    return EpochRecord(**{**values, **changes})  # type: ignore[arg-type]


def regression_file(path: Path, *, samples: int = 57, targets: int = 3) -> Path:
    """Write data far from zero and of unequal scales, so that a missing standardization is detected."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(samples, FEATURES)) * [1, 10, 100, 1e-3, 1] + [50, -300, 0, 7, 1e4]
    y = np.sin(x[:, :targets]) * 40 + [1000, -20, 3][:targets]
    np.savez(path, x_train=x, y_train=y)
    return path


REGRESSION: Mapping[str, Mapping[str, Any]] = {
    "model": {"hidden": [7, 6], "activation": "tanh"},
    "training": {"epochs": 2, "batch_size": 10, "dtype": "float64"},
}


def train(folder: Path, **sections: Mapping[str, Any]) -> EpochRecord:
    """Train with these sections of the settings on all ranks; return the record of the last epoch.

    The last checkpoint is removed, so that tests can write their own.
    """
    settings = settings_from({**sections, "output": {"folder": str(folder)}})
    last = run_training(settings, RunView()).epochs[-1]
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return last


def weights_of(folder: Path) -> Arrays:
    """The arrays in ``weights.npz`` of a run."""
    with np.load(folder / "weights.npz") as file:
        return {name: file[name] for name in file.files}


def write_checkpoint(folder: Path, step: int, arrays: Arrays) -> Path:
    """Write `arrays` as the checkpoint of a run after `step` updates."""
    path = folder / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    entries = {
        file.name: {
            "shape": np.load(file).shape,
            "dtype": np.load(file).dtype.name,
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in sorted(path.iterdir())
    }
    origin = {"model": "", "optimizer": "", "data": "", "settings": {}}
    layout = asdict(Layout.uniform([(1, 1)], 3))
    manifest = {
        "format_version": 1,
        "hybridnn": "0",
        "progress": {"step": step, "epoch": 1, "minibatches": step, "loss_sum": 0.0, "samples": 0},
        "origin": {**origin, "layout": layout},
        "slots": [],
        "arrays": entries,
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    (path / "SHA256SUMS").write_text("".join(f"{sha}  {name}\n" for name, sha in sums.items()))
    return path
