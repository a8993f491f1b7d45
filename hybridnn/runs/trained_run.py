"""Trained run: a run folder with its weights, those of its end, its best epoch or a checkpoint, and their export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.checkpoints.reading import Checkpoint, newest_valid, open_checkpoint
from hybridnn.comm.agreement import agree
from hybridnn.comm.group import Group
from hybridnn.config.settings import Settings
from hybridnn.data import Standardizer, TableEncoding, Task
from hybridnn.errors import DataError, SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.nn.parameters import check_weights, parameter_shapes
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs.records import EndRecord, best_epoch, score
from hybridnn.runs.run_files import (
    BEST_WEIGHTS,
    CHECKPOINTS,
    CONFIG,
    STANDARDIZATION,
    TABLE,
    WEIGHTS,
    last_of,
    of_class,
    read_best_weights,
    read_config,
    read_epochs,
    read_records,
    run_status,
)
from hybridnn.training.records import MONITORS, EpochRecord
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import TOML_BYTES, read_json, read_npz
from hybridnn.utils.text import shown_path

Array = NDArray[Any]

EXPORTED_NAMES = {"x_mean": "input_mean", "x_scale": "input_scale", "y_mean": "target_mean", "y_scale": "target_scale"}

Result = TypeVar("Result")


@dataclass(frozen=True)
class WeightsSource:
    """Weights file or checkpoint that weights are read from."""

    path: Path
    step: int | None  # updates of the weights; None if the history of the run does not have them
    # returns the global arrays ``layers.<i>.weight`` and ``layers.<i>.bias``; `DataError` if a file cannot be read
    read: Callable[[], Mapping[str, Array]]
    damaged: tuple[str, ...] = ()  # newer checkpoints that were skipped, and why


@dataclass(frozen=True)
class TrainedRun:
    """A run folder and its weights."""

    folder: Path
    settings: Settings
    task: Task
    model: MLP
    # global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``
    weights: Mapping[str, Array]
    source: WeightsSource
    standardizer: Standardizer | None  # of the run's training samples; None if the run did not standardize
    encoding: TableEncoding | None = None  # of the table that the run was trained on; None for other data

    @property
    def features(self) -> int:
        """Inputs of the network."""
        return self.model.sizes[0]

    @property
    def outputs(self) -> int:
        """Classes, or targets per sample."""
        return self.model.sizes[-1]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes: those in the table, else the labels."""
        names = () if self.encoding is None else self.encoding.classes
        return names or tuple(str(label) for label in range(self.outputs))

    def distribution_on(self, grid: ProcessGrid) -> str:
        """Distribution of samples: as in the run, but local with a pipeline, both ends of which read data."""
        return self.settings.data.distribution if grid.pipeline == 1 else "local"

    def trainer_on(self, grid: ProcessGrid) -> Trainer:
        """A trainer that holds the weights on `grid`, to evaluate and to predict with; collective."""
        settings = self.settings
        return Trainer(
            self.model,
            SGD(momentum=0.0),  # without slots, which would take memory
            grid=grid,
            batch_size=settings.training.batch_size,
            dtype=settings.training.dtype,
            model_split=settings.parallel.model_split,
            overlap=settings.parallel.overlap,
            distribution=self.distribution_on(grid),
            # The microbatches of the run give bitwise the run's sums.
            microbatches=settings.parallel.microbatches,
            initial_weights=self.weights,
            stall_seconds=settings.output.stall_seconds,
        )


def open_run(
    folder: Path, checkpoint: str | None = None, group: Group | None = None, *, best: bool = False
) -> TrainedRun:
    """Read a run folder with the weights at its end, else those of its newest valid checkpoint.

    Instead, those of a `checkpoint` may be named, such as ``step-00001234``, or the `best` ones be chosen. The ranks of
    a `group` all read, and share the verification of checkpoints: collective over it, errors are raised on all.

    Raises `SettingError` if there is no checkpoint of that name, or both it and the best weights are asked for;
    `DataError` if `folder` holds no run, the run has no weights, or its files are damaged or do not belong together.
    """
    settings = _agree(group, lambda: _read_settings(folder))
    source = find_weights(folder, checkpoint, group, best=settings.training.monitor if best else "")
    return _agree(group, lambda: _read_run(folder, settings, source))


def find_weights(
    folder: Path, checkpoint: str | None = None, group: Group | None = None, *, best: str = ""
) -> WeightsSource:
    """Find the weights for `open_run`; `best` is the ``training.monitor`` by which an epoch is the best."""
    if best and checkpoint is not None:
        raise SettingError("--best", True, "does not go with --checkpoint")
    if best:
        return _agree(group, lambda: _best_weights(folder, best))
    is_first = group is None or group.rank == 0
    if checkpoint is not None:
        return _named_checkpoint(folder / CHECKPOINTS, checkpoint, group, is_first=is_first)
    exists = is_first and os.path.lexists(folder / WEIGHTS)
    flags = np.array([exists, exists and run_status(folder) == "finished"], np.int64)
    if group is not None:
        group.broadcast(flags)
    has_file, ended = flags
    if ended:
        step = None
        with contextlib.suppress(DataError):
            step = _step_of_weights(folder)
        return WeightsSource(folder / WEIGHTS, step, partial(read_npz, folder / WEIGHTS))
    newest, damaged = newest_valid(folder / CHECKPOINTS, group)
    if newest is not None:
        return _of_checkpoint(newest, damaged)
    if has_file:  # of a finished run that is being trained further
        return WeightsSource(folder / WEIGHTS, None, partial(read_npz, folder / WEIGHTS), tuple(damaged))
    no_weights = f"{folder}: no {WEIGHTS}, which a run writes at its end"
    raise DataError(f"{no_weights}, and no valid checkpoint{': ' if damaged else ''}{'; '.join(damaged)}")


def _step_of_weights(folder: Path) -> int | None:
    """Step of the final weights of an ended run; None if its history is damaged."""
    records, damage = read_records(folder)
    steps = {record.epoch: record.step for record in of_class(records, EpochRecord)}
    if damage or not steps:
        return None
    end = last_of(records, EndRecord)
    return None if end is None else steps.get(end.weights_epoch or max(steps))


def _read_settings(folder: Path) -> Settings:
    if not os.path.lexists(folder / CONFIG):
        raise DataError(f"{shown_path(folder)} is not a run folder: it has no {CONFIG}")
    return read_config(folder)


def _agree(group: Group | None, action: Callable[[], Result]) -> Result:
    return action() if group is None else agree(group, action)


def _read_run(folder: Path, settings: Settings, source: WeightsSource) -> TrainedRun:
    weights = source.read()
    features, outputs = _widths(weights, len(settings.model.hidden), source.path)
    standardizer = _read_standardizer(folder) if settings.data.standardize else None
    task = _task(folder, settings, standardizer)
    model = settings.model.make(features, outputs, task)
    check_weights(model, weights, str(source.path))
    if standardizer is not None:
        targets = None if standardizer.y_mean is None else standardizer.y_mean.size
        if (standardizer.x_mean.size, targets) != (features, outputs if task == "regression" else None):
            raise DataError(f"{folder / STANDARDIZATION} is for other data than {source.path}: their sizes differ")
    encoding = _read_encoding(folder)
    if encoding is not None:
        classes = len(encoding.classes) if task == "classification" else 0
        if encoding.features != features or (classes and classes != outputs):
            raise DataError(f"{folder / TABLE} is for other data than {source.path}: their sizes differ")
    return TrainedRun(folder, settings, task, model, weights, source, standardizer, encoding)


def _widths(weights: Mapping[str, Array], last: int, path: Path) -> tuple[int, int]:
    """Inputs of the first layer, and outputs of layer `last`."""
    shapes = []
    for name in ("layers.0.weight", f"layers.{last}.weight"):
        if name not in weights:
            raise DataError(f"{path}: {name} is missing; the file holds {', '.join(sorted(weights)) or 'nothing'}")
        if weights[name].ndim != 2 or not weights[name].size:
            raise DataError(f"{path}: {name} has shape {weights[name].shape}, which is not (outputs, inputs)")
        shapes.append(weights[name].shape)
    return shapes[0][1], shapes[1][0]


def _read_standardizer(folder: Path) -> Standardizer:
    path = folder / STANDARDIZATION
    arrays = read_npz(path)
    try:
        return Standardizer.from_arrays(arrays)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _read_encoding(folder: Path) -> TableEncoding | None:
    """Encoding of the table that a run was trained on; None for a run on other data."""
    path = folder / TABLE
    if not os.path.lexists(path):
        return None
    values = read_json(path, TOML_BYTES)  # it names all columns, as the settings do
    try:
        return TableEncoding.from_dict(values)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _task(folder: Path, settings: Settings, standardizer: Standardizer | None) -> Task:
    """The task of the run, from its settings or its records, or else from its data."""
    if standardizer is not None:
        return "classification" if standardizer.y_mean is None else "regression"
    if settings.model.loss != "auto":
        return "classification" if settings.model.loss == "cross_entropy" else "regression"
    with contextlib.suppress(DataError):  # the weights may be valid all the same
        for record in read_epochs(folder)[0]:
            if record.validation_accuracy is not None or record.validation_r2 is not None:
                return "regression" if record.validation_accuracy is None else "classification"
    return settings.data.describe(settings.model.task).task


def _best_weights(folder: Path, monitor: str) -> WeightsSource:
    """The weights of the best epoch, with a warning if the history has a better one."""
    path = folder / BEST_WEIGHTS
    if not path.exists():
        how = "which a run with data.validation_fraction above 0 writes after an evaluated epoch"
        raise DataError(f"{folder}: no {BEST_WEIGHTS}, {how}")
    weights = read_best_weights(folder)
    epochs, _ = read_epochs(folder)
    best, sign = best_epoch(epochs, monitor), MONITORS.get(monitor, 1)
    damaged: tuple[str, ...] = ()
    if weights.epoch not in [record.epoch for record in epochs]:
        damaged = (f"{path}: of epoch {weights.epoch}, which the history of the run does not have",)
    elif best is not None and (value := score(best, monitor)) is not None and value > weights.metric:
        better = f"epoch {best.epoch} with {sign * value:.4f} was better; its weights are not kept"
        damaged = (f"{path}: of epoch {weights.epoch} with {sign * weights.metric:.4f}; {better}",)
    return WeightsSource(path, weights.step, lambda: weights.arrays, damaged)


def _named_checkpoint(folder: Path, name: str, group: Group | None, *, is_first: bool) -> WeightsSource:
    def require_name() -> None:
        names = [path.name for path in checkpoint_folders(folder)] if is_first else [name]
        if name not in names:
            raise SettingError("--checkpoint", name, f"not in {folder}, which holds {', '.join(names) or 'none'}")

    _agree(group, require_name)
    found = open_checkpoint(folder / name, group)
    if isinstance(found, str):
        raise DataError(found)
    return _of_checkpoint(found, [])


def _of_checkpoint(found: Checkpoint, damaged: list[str]) -> WeightsSource:
    return WeightsSource(found.path, found.manifest.progress.step, found.weights, tuple(damaged))


# -- export ------------------------------------------------------------------------------------------------------------


def export_arrays(run: TrainedRun, *, fold_standardization: bool = False) -> dict[str, Array]:
    """Weights, activations and standardization of the network.

    Raises `SettingError` if the standardization cannot be folded, because the first layer is residual.

    Parameters
    ----------
    fold_standardization : bool
        Fold shift and scale of the inputs into the first layer, and those of the targets into the last layer: inputs
        and outputs are then in their original units. All parameters become float64.

    Returns
    -------
    dict of str to ndarray
        ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``, shape (outputs,); ``activations``,
        names, and ``residual``, bool, both of shape (layers,): a layer computes ``activation(W x + b)``, plus ``x`` if
        it is residual. If the run standardized and nothing is folded, ``input_mean`` and ``input_scale``, shape
        (inputs,), and for regression ``target_mean`` and ``target_scale``, shape (outputs,): the input of the network
        is ``(x - input_mean) / input_scale``, its output ``(y - target_mean) / target_scale``.
    """
    arrays: dict[str, Array] = {name: run.weights[name] for name in parameter_shapes(run.model)}
    if run.standardizer is not None and fold_standardization:
        arrays = _folded(run, arrays, run.standardizer)
    elif run.standardizer is not None:
        arrays |= {EXPORTED_NAMES[name]: array for name, array in run.standardizer.to_arrays().items()}
    layers = run.model.layers
    arrays["activations"] = np.array([layer.activation for layer in layers])
    arrays["residual"] = np.array([layer.residual for layer in layers])
    return arrays


def _folded(run: TrainedRun, arrays: dict[str, Array], standardizer: Standardizer) -> dict[str, Array]:
    if run.model.layers[0].residual:
        why = "the first layer is residual: it adds its standardized inputs to its outputs, which no weights can undo"
        raise SettingError("--fold-standardization", True, why)
    folded: dict[str, Array] = {name: array.astype(np.float64) for name, array in arrays.items()}
    first, last = "layers.0", f"layers.{len(run.model.layers) - 1}"
    # W (x - mean) / scale + b = (W / scale) x + (b - (W / scale) mean)
    folded[f"{first}.weight"] /= standardizer.x_scale
    folded[f"{first}.bias"] -= folded[f"{first}.weight"] @ standardizer.x_mean
    if standardizer.y_mean is not None and standardizer.y_scale is not None:
        folded[f"{last}.weight"] *= standardizer.y_scale[:, None]
        folded[f"{last}.bias"] *= standardizer.y_scale
        folded[f"{last}.bias"] += standardizer.y_mean
    return folded
