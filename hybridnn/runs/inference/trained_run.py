"""A run folder read for the use of its weights: settings, network, weights and standardization."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from hybridnn.comm.agreement import agree
from hybridnn.comm.group import Group
from hybridnn.config.build import describe_data, make_model
from hybridnn.config.settings import Settings
from hybridnn.datasets import Standardizer, Task
from hybridnn.errors import DataError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD
from hybridnn.nn.parameters import check_weights
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs.folder import CONFIG, STANDARDIZATION, read_config
from hybridnn.runs.history_file import read_valid_history
from hybridnn.runs.inference.weights_source import WeightsSource, find_weights
from hybridnn.training.config import Pipelining
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import read_npz
from hybridnn.utils.text import shown_path

Array = NDArray[Any]

Result = TypeVar("Result")


@dataclass(frozen=True)
class TrainedRun:
    """What a run has trained.

    Attributes
    ----------
    folder : Path
    settings : Settings
        Those of the run.
    task : {"classification", "regression"}
    model : MLP
    weights : mapping of str to ndarray
        Global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.
    source : WeightsSource
        Where they were read.
    standardizer : Standardizer or None
        Of the run's training samples; None where it did not standardize.
    """

    folder: Path
    settings: Settings
    task: Task
    model: MLP
    weights: Mapping[str, Array]
    source: WeightsSource
    standardizer: Standardizer | None

    @property
    def features(self) -> int:
        """Inputs of the network."""
        return self.model.sizes[0]

    @property
    def outputs(self) -> int:
        """Classes, or targets per sample."""
        return self.model.sizes[-1]


def open_run(
    folder: Path, checkpoint: str | None = None, group: Group | None = None, *, best: bool = False
) -> TrainedRun:
    """Read a run folder.

    Parameters
    ----------
    folder : Path
    checkpoint, best
        As for `find_weights`.
    group : Group, optional
        Ranks that all read; collective over it, and errors are raised on all. None: this rank reads alone.

    Raises
    ------
    DataError, SettingError
        If `folder` holds no run, the run has no weights, or its files are damaged or do not belong together.
    """
    settings = _agree(group, lambda: _read_settings(folder))
    source = find_weights(folder, checkpoint, group, best=best)
    return _agree(group, lambda: _read_run(folder, settings, source))


def trainer_of(run: TrainedRun, grid: ProcessGrid) -> Trainer:
    """A trainer that holds the run's weights on `grid`, to evaluate and to predict with; collective."""
    settings = run.settings
    return Trainer(
        run.model,
        SGD(momentum=0.0),  # remembers nothing, so it takes no memory
        grid=grid,
        batch_size=settings.training.batch_size,
        dtype=settings.training.dtype,
        model_split=settings.parallel.model_split,
        overlap=settings.parallel.overlap,
        distribution=distribution_for(run, grid),
        # Samples go through a pipeline in microbatches: those of the run give the run's own sums.
        pipelining=Pipelining(microbatches=settings.parallel.microbatches),
        initial_weights=run.weights,
        stall_seconds=settings.output.stall_seconds,
    )


def distribution_for(run: TrainedRun, grid: ProcessGrid) -> str:
    """How samples reach the ranks: as in the run, but both ends of a pipeline read data themselves."""
    return run.settings.data.distribution if grid.pipeline == 1 else "local"


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
    model = make_model(settings.model, features, outputs, task)
    check_weights(model, weights, str(source.path))
    columns = features, outputs if task == "regression" else None
    if standardizer is not None and _columns(standardizer) != columns:
        raise DataError(f"{folder / STANDARDIZATION} is for other data than {source.path}: their sizes differ")
    return TrainedRun(folder, settings, task, model, weights, source, standardizer)


def _widths(weights: Mapping[str, Array], last: int, path: Path) -> tuple[int, int]:
    """Inputs and outputs of the network, as its first layer and layer `last` have them."""
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


def _columns(standardizer: Standardizer) -> tuple[int, int | None]:
    """Inputs and targets that a standardization is for; None where targets are labels."""
    return standardizer.x_mean.size, None if standardizer.y_mean is None else standardizer.y_mean.size


def _task(folder: Path, settings: Settings, standardizer: Standardizer | None) -> Task:
    """The task of the run, by its settings or its records; only without both its data are read again."""
    if standardizer is not None:
        return "classification" if standardizer.y_mean is None else "regression"
    if settings.model.loss != "auto":
        return "classification" if settings.model.loss == "cross_entropy" else "regression"
    with contextlib.suppress(DataError):  # the weights alone may be sound
        for record in read_valid_history(folder)[0].epochs:
            if record.test_accuracy is not None or record.test_r2 is not None:
                return "regression" if record.test_accuracy is None else "classification"
    return describe_data(settings.data).task
