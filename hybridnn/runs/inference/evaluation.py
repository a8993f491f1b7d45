"""Evaluation of a run: loss and metrics of its weights on its own data, or on other data of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal

import numpy as np

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.config.settings import DataSettings, settings_from
from hybridnn.datasets import Dataset, Rows, StandardizedRows, SubsetRows, load_file, split
from hybridnn.errors import DataError, SettingError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs.data import place_data
from hybridnn.runs.inference.trained_run import TrainedRun, distribution_for, trainer_of
from hybridnn.training.metrics import Metrics

Part = Literal["test", "train", "all"]
PARTS: tuple[Part, ...] = ("test", "train", "all")
FILES = (".csv", ".npz")


@dataclass(frozen=True)
class EvaluationSamples:
    """The samples to evaluate a run on.

    Attributes
    ----------
    source : str or None
        A ``.csv`` or ``.npz`` file or the name of a data set; None for the run's own data.
    targets : sequence of str
        Target columns of a ``.csv`` file; by default those of the run.
    part : {"test", "train"} or None
        Data split. None: the test samples, or all samples of other data that have no test samples.
    """

    source: str | None = None
    targets: Sequence[str] = ()
    part: Literal["test", "train"] | None = None


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes
    ----------
    data : str
        File, or name of the data set.
    part : {"test", "train", "all"}
        Data split.
    metrics : Metrics
        In the units of the training: standardized if the run standardized its data.
    ignored : tuple of str
        Columns of a ``.csv`` file that are neither inputs of the run nor targets; on rank 0.
    """

    data: str
    part: Part
    metrics: Metrics
    ignored: tuple[str, ...] = ()


def evaluate_run(run: TrainedRun, grid: ProcessGrid, samples: EvaluationSamples) -> Evaluation:
    """Loss and accuracy or R² of a run's weights; collective over `grid`.

    All samples are standardized with the statistics of the run's training samples. Input columns of a ``.csv`` file are
    found by the names of the run's columns, or by position if these have no names.

    Raises
    ------
    HybridnnError
        On every rank: the data cannot be read or do not fit the network, or the network does not fit the grid.
    """
    trainer = trainer_of(run, grid)
    settings = agree(grid.world, lambda: _data_settings(run, samples))
    part: Part = "all"
    ignored: tuple[str, ...] = ()

    def load() -> Dataset:
        nonlocal part, ignored
        part, dataset = _load_part(run, settings, samples.part)
        ignored = () if settings is run.settings.data else dataset.ignored
        return dataset

    with trainer.busy("reading the data", at_most=inf):
        placed = place_data(
            load,
            grid,
            generated=settings.name == "synthetic",
            distribution=distribution_for(run, grid),
            standardize=False,  # already done, with the statistics of the run
            test_fraction=run.settings.data.test_fraction,
            seed=run.settings.training.seed,
            dtype=run.settings.training.dtype,
        )
    metrics = trainer.evaluate(placed.train)
    placed.memory.free()
    part = PARTS[int(broadcast_text(grid.world, str(PARTS.index(part)), 0))]  # other ranks have not loaded the data
    return Evaluation(settings.name or str(settings.file), part, metrics, ignored)


def _data_settings(run: TrainedRun, samples: EvaluationSamples) -> DataSettings:
    """Settings of the data to evaluate on; the settings object of the run if it is the run's data."""
    own, source = run.settings.data, samples.source
    if samples.targets and not (source or "").endswith(".csv"):
        raise SettingError("--targets", ",".join(samples.targets), "goes with --data FILE.csv")
    if source is None or source == own.name:
        return own
    if not source.endswith(FILES):
        return settings_from({"data": {"name": source}}).data
    if own.file is not None and Path(own.file).resolve() == Path(source).resolve():
        return own
    columns = {"targets": list(samples.targets or own.targets), "inputs": list(own.inputs)}
    return settings_from({"data": {"file": source, **(columns if source.endswith(".csv") else {})}}).data


def _load_part(run: TrainedRun, settings: DataSettings, wanted: str | None) -> tuple[Part, Dataset]:
    """Load the data; the selected split is returned, standardized, as the training samples of a data set."""
    if settings.file is None:
        data = settings.load()
    else:
        data = load_file(settings.file, settings.targets, inputs=settings.inputs, task=run.task)
    _require_same_kind(run, data)
    train, test = data.train, data.test
    if test is None and settings is run.settings.data:
        train, test = split(data.train, settings.test_fraction, run.settings.training.seed)
    if wanted == "test" and test is None:
        raise SettingError("--part", wanted, f"{data.name} has no test part; without --part all samples are taken")
    part: Part = "train" if wanted == "train" else "all" if test is None else "test"
    rows: Rows = test if part == "test" and test is not None else train
    if run.standardizer is not None:
        rows = StandardizedRows(rows, run.standardizer)
    no_rows = SubsetRows(rows, np.empty(0, np.int64))
    return part, replace(data, train=rows, test=no_rows)


def _require_same_kind(run: TrainedRun, data: Dataset) -> None:
    """Refuse data of another task, or of other numbers of features or outputs, than the run was trained on."""
    if data.task != run.task:
        raise DataError(f"{data.name} is for {data.task}; {run.folder} was trained for {run.task}")
    if data.features != run.features:
        raise DataError(f"{data.name} has {data.features} features; {run.folder} was trained on {run.features}")
    fits = data.outputs <= run.outputs if data.task == "classification" else data.outputs == run.outputs
    if not fits:
        kind = "classes" if data.task == "classification" else "targets"
        raise DataError(f"{data.name} has {data.outputs} {kind}; {run.folder} was trained on {run.outputs}")
