"""Use of the network of a trained run: evaluation, by class or target too, and prediction."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from hybridnn.comm.agreement import agree, value_of_first
from hybridnn.config.settings import TABLE_KEYS, DataSettings, settings_from
from hybridnn.data import ArrayRows, Dataset, Rows, StandardizedRows, SubsetRows, TableEncoding, split_dataset
from hybridnn.data.loaders import npz_samples
from hybridnn.data.rows import as_rows
from hybridnn.data.table_file import Table, TableOptions, read_table, require_columns
from hybridnn.data.table_fitting import SUFFIXES, TABLES, has_table
from hybridnn.errors import DataError, SettingError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs.data import PlacedData, place_data
from hybridnn.runs.trained_run import TrainedRun
from hybridnn.training.metrics import Metrics
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import npz_bytes
from hybridnn.utils.text import counted, shown_path

BLOCK_ELEMENTS = 2**22
"""Elements of the inputs that are broadcast at a time, so that only rank 0 needs memory for a large file."""


# -- evaluation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassReport:
    """Counts of predictions by class."""

    names: tuple[str, ...]  # of the classes
    # samples by true class (row) and predicted class (column), shape (classes, classes)
    confusion: NDArray[np.int64]

    @classmethod
    def of(cls, names: Sequence[str], true: NDArray[np.int64], predicted: NDArray[np.int64]) -> ClassReport:
        """Count predictions."""
        classes = len(names)
        counts = np.bincount(true * classes + predicted, minlength=classes * classes)
        return cls(tuple(names), counts.reshape(classes, classes))

    @property
    def support(self) -> NDArray[np.int64]:
        """Samples of every class."""
        total: NDArray[np.int64] = self.confusion.sum(axis=1)
        return total

    @property
    def scores(self) -> NDArray[np.float64]:
        """Precision, recall and F1 of every class, shape (3, classes); 0 where there are no samples."""
        predicted = self.confusion.sum(axis=0)
        counts = np.stack([predicted, self.support, (predicted + self.support) / 2])
        found = np.zeros(counts.shape)
        np.divide(self.confusion.diagonal(), counts, out=found, where=counts > 0)
        return found

    def means(self) -> dict[str, list[float]]:
        """Precision, recall and F1, as means over the classes and as means over the samples."""
        weights = self.support / max(self.support.sum(), 1)
        return {"macro mean": self.scores.mean(axis=1).tolist(), "weighted mean": (self.scores @ weights).tolist()}

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        keys = ("precision", "recall", "f1", "samples")
        rows = zip(*self.scores.tolist(), self.support.tolist(), strict=True)
        return {
            "classes": [
                {"name": name, **dict(zip(keys, row, strict=True))} for name, row in zip(self.names, rows, strict=True)
            ],
            **{name.replace(" ", "_"): dict(zip(keys, values, strict=False)) for name, values in self.means().items()},
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True)
class TargetErrors:
    """Errors of the predictions of one target, in its units."""

    target: str
    r2: float  # NaN where the target is constant
    rmse: float
    mae: float


@dataclass(frozen=True)
class RegressionReport:
    """Errors of predictions by target."""

    targets: tuple[TargetErrors, ...]

    @classmethod
    def of(cls, names: Sequence[str], true: NDArray[Any], predicted: NDArray[Any]) -> RegressionReport:
        """Compare predictions with targets, both of shape (samples, targets)."""
        errors = predicted - true
        residual, total = np.sum(errors**2, axis=0), np.sum((true - true.mean(axis=0)) ** 2, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            r2 = np.where(total > 0, 1 - residual / total, np.nan)
        figures = (r2, np.sqrt(residual / len(true)), np.abs(errors).mean(axis=0))
        return cls(tuple(map(TargetErrors, names, *(values.tolist() for values in figures))))

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation."""

    data: str  # file, or name of the data set
    part: str  # one of "test", "validation", "train", "all"
    metrics: Metrics  # in the units of the training: standardized if the run standardized its data
    # columns of a table that are neither inputs of the run nor targets; on rank 0
    ignored: tuple[str, ...] = ()
    # on rank 0, by class or target, in the units of the data
    report: ClassReport | RegressionReport | None = field(default=None, compare=False)


def evaluate_run(
    run: TrainedRun,
    grid: ProcessGrid,
    source: str | None = None,
    targets: Sequence[str] = (),
    part: Literal["test", "validation", "train"] | None = None,
) -> Evaluation:
    """Loss and accuracy or R² of a run's weights; collective over `grid`.

    The `source` is a table, a ``.npz`` file or the name of a data set, by default the run's own data, and `targets` are
    by default those of the run. Without a `part`, the test samples are taken, or all samples of other data without
    these. All samples are standardized with the statistics of the run's training samples. Input columns of a table are
    found by the names of the run's columns, or by position if these have no names.

    Raises `HybridnnError` on every rank: the data cannot be read or do not fit the network, or the network does not fit
    the grid.
    """
    trainer = run.trainer_on(grid)
    settings = agree(grid.world, lambda: _data_settings(run, source, targets))
    found = "all"
    ignored: tuple[str, ...] = ()

    def load() -> Dataset:
        nonlocal found, ignored
        found, dataset = _load_part(run, settings, part)
        ignored = () if settings is run.settings.data else dataset.ignored
        return dataset

    with trainer.busy("reading the data", at_most=inf):
        placed = place_data(
            load,
            grid,
            generated=settings.name == "synthetic",
            distribution=run.distribution_on(grid),
            standardize=False,  # already done, with the statistics of the run
            test_fraction=run.settings.data.test_fraction,
            seed=run.settings.split_seed,
            dtype=run.settings.training.dtype,
        )
    metrics = trainer.evaluate(placed.train)
    report = _report(run, grid, trainer, placed)
    placed.memory.free()
    found = value_of_first(grid.world, lambda: found)  # other ranks may not have loaded the data
    return Evaluation(settings.name or str(settings.file), found, metrics, ignored, report)


def _report(
    run: TrainedRun, grid: ProcessGrid, trainer: Trainer, placed: PlacedData
) -> ClassReport | RegressionReport | None:
    """Predictions of all samples compared with their targets, on rank 0; collective."""
    count = placed.train_samples
    regression = run.task == "regression"
    shape = (count, run.outputs) if regression else (count,)
    kind: Any = np.float64 if regression else np.int64
    true, found = np.empty(shape, kind), np.empty(shape, kind)
    for part, outputs in _predicted(run, grid, trainer, placed.train, count, true):
        found[part] = outputs if regression else outputs.argmax(axis=1)
    if grid.rank != 0 or not count:
        return None
    if not regression:
        return ClassReport.of(run.class_names, true, found)
    if run.standardizer is not None:
        true, found = run.standardizer.restore_y(true), run.standardizer.restore_y(found)
    return RegressionReport.of(_target_names(run), true, found)


def _predicted(
    run: TrainedRun, grid: ProcessGrid, trainer: Trainer, rows: Rows | None, samples: int, targets: NDArray[Any] | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Outputs for blocks of the `rows` of rank 0, and which rows they are; fills in `targets` there. Collective."""
    size = max(1, BLOCK_ELEMENTS // (run.features * trainer.batch_size)) * trainer.batch_size
    for first in range(0, samples, size):
        part = slice(first, min(first + size, samples))
        block = np.empty((part.stop - first, run.features), run.settings.training.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the outputs
            if grid.rank == 0 and rows is not None:
                rows.take(np.arange(first, part.stop), block, None if targets is None else targets[part])
            grid.world.broadcast(block)
            outputs = trainer.engine.predict(block)  # which rank 0 has sent, and whose outputs the caller checks
        yield part, outputs


def _target_names(run: TrainedRun) -> tuple[str, ...]:
    return run.settings.data.targets or tuple(f"target_{number}" for number in range(run.outputs))


def _data_settings(run: TrainedRun, source: str | None, targets: Sequence[str]) -> DataSettings:
    """Settings of the data to evaluate on; the settings object of the run if it is the run's data."""
    own = run.settings.data
    if targets and not (source or "").endswith(TABLES):
        raise SettingError("--targets", ",".join(targets), "goes with --data FILE.csv or FILE.parquet")
    if source is None or source == own.name:
        return own
    if not source.endswith(SUFFIXES):
        return settings_from({"data": {"name": source}}).data
    if own.file is not None and Path(own.file).resolve() == Path(source).resolve():
        return own
    table: dict[str, Any] = {}
    if source.endswith(TABLES):
        table = own.model_dump(include=set(TABLE_KEYS)) | {"targets": list(targets or own.targets)}
    return settings_from({"data": {"file": source, **table}}).data


def _load_part(run: TrainedRun, settings: DataSettings, wanted: str | None) -> tuple[str, Dataset]:
    """Load the data; the selected split is returned, standardized, as the training samples of a data set."""
    data = settings.load(run.task, encoding=run.encoding)
    _require_same_kind(run, data)
    is_own = settings is run.settings.data  # then its splits are those of the training
    shares = (settings.test_fraction, settings.validation_fraction) if is_own else (0.0, 0.0)
    splits = split_dataset(data, *shares, run.settings.split_seed)
    parts = {name: rows for name, rows in splits.items() if rows.samples}
    if wanted is not None and wanted not in parts:
        which = "; without --part all samples are taken" if len(parts) == 1 else ""
        raise SettingError("--part", wanted, f"{data.name} has no {wanted} part{which}")
    part = wanted or ("test" if "test" in parts else "train" if len(parts) > 1 else "all")
    rows = parts["train" if part == "all" else part]
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


# -- prediction --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputSamples:
    """Samples to predict from, shape (samples, features), and columns of the file that are no inputs or targets."""

    x: NDArray[Any]
    ignored: tuple[str, ...] = ()
    table: Table | None = None
    key: str = ""  # the column that identifies the rows

    def kept(self, names: Sequence[str] | None, called: str = "the table") -> dict[str, list[str]]:
        """The cells of some columns as text; by default of the one that identifies the rows.

        `DataError`, with `called` for the file, if it has no such column.
        """
        if self.table is None:
            if names:
                raise SettingError("--keep", ",".join(names), "goes with tables, which an .npz file is not")
            return {}
        if names is None:
            names = [self.key] if self.key in self.table.frame.columns else []
        require_columns(called, self.table.frame, names, "which --keep names")
        cells = self.table.raw(names) if self.table.raw and names else self.table.frame
        return {
            name: ["" if cell is None or cell != cell else str(cell).strip() for cell in cells[name]] for name in names
        }


def load_samples(
    path: str | Path,
    features: int,
    targets: Sequence[str] = (),
    *,
    encoding: TableEncoding | None = None,
    options: TableOptions | None = None,
) -> InputSamples:
    """Load samples of so many features, without targets, to predict from; the rest is as for `load_file`.

    The file is an ``.npz`` with an array ``x``, or with one array of any name, or a table, whose `targets` are skipped
    if they are present. Without the `encoding` of the table that the network was trained on, all other columns are
    inputs, in their order, and `options` say how the table is read.
    """
    path = Path(path)
    if has_table(path, "samples"):
        samples = _samples_from_table(path, targets, encoding, options or TableOptions())
    else:
        samples = InputSamples(npz_samples(path))
    try:
        checked = as_rows(samples.x, np.zeros(samples.x.shape[:1]), "regression").x
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if checked.shape[1] != features:
        raise DataError(f"{path}: samples of {checked.shape[1]} features; the network takes {features}")
    return replace(samples, x=checked)


def _samples_from_table(
    path: Path, targets: Sequence[str], encoding: TableEncoding | None, options: TableOptions
) -> InputSamples:
    table = read_table(path, options, like=encoding)
    names, left_out = list(table.frame.columns), {*targets}
    if encoding is None:
        inputs = tuple(name for name in names if name not in left_out.union(options.drop_columns))
        encoding = TableEncoding(inputs, options=table.options)
    x = encoding.encode(table.frame, shown_path(path), targets=()).x
    used = left_out.union(encoding.columns, encoding.options.drop_columns)
    return InputSamples(x, tuple(name for name in names if name not in used), table, encoding.key)


@dataclass(frozen=True)
class Predictions:
    """Predictions in the order of the samples."""

    columns: tuple[str, ...]  # of `values`
    values: NDArray[np.float64]  # probabilities of the classes, or targets in their original units
    classes: NDArray[np.int64] | None  # label of the most probable class; None for regression
    names: NDArray[np.str_] | None = None  # name of that class
    ignored: tuple[str, ...] = ()  # columns of the file that are neither inputs, targets nor kept
    kept: Mapping[str, list[str]] = field(default_factory=dict)  # cells of columns of the file, which come first

    def to_csv(self) -> bytes:
        """A header line and a line per sample, with all digits of the numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = None if self.classes is None else (self.classes if self.names is None else self.names).tolist()
        heads, before = list(self.kept), list(self.kept.values())
        if names is not None:
            heads, before = [*heads, "class"], [*before, names]
        writer.writerow((*heads, *self.columns))
        writer.writerows((*cells, *values) for *cells, values in zip(*before, self.values.tolist(), strict=True))
        return text.getvalue().encode()

    def to_npz(self) -> bytes:
        """Arrays ``classes``, their ``names`` and ``probabilities``, or ``predictions``."""
        if self.classes is None:
            return npz_bytes({"predictions": self.values})
        names = {} if self.names is None else {"names": self.names}
        return npz_bytes({"classes": self.classes, **names, "probabilities": self.values})


def predict_file(
    run: TrainedRun, grid: ProcessGrid, path: Path, keep: Sequence[str] | None = None
) -> Predictions | None:
    """Predict from the samples of a file as for `load_samples`, which rank 0 reads; collective over `grid`.

    Input columns of a table are found by the names of the run's columns, or if these have no names by position, without
    the run's targets. The columns `keep` come before the predictions; by default a first column that is no input and
    identifies the rows. The result is None on ranks other than 0.

    Raises `HybridnnError` on every rank: the file cannot be used, or the network does not fit the grid.
    """
    data = run.settings.data

    def load() -> InputSamples | None:
        if grid.rank != 0:
            return None
        options = data.table_options
        return load_samples(path, run.features, data.targets, encoding=run.encoding, options=options)

    samples = agree(grid.world, load)
    kept = agree(grid.world, lambda: {} if samples is None else samples.kept(keep, str(shown_path(path))))
    trainer = run.trainer_on(grid)
    count = value_of_first(grid.world, lambda: 0 if samples is None else len(samples.x))
    rows: Rows | None = None if samples is None else ArrayRows(samples.x, np.zeros(count, np.int64))
    if rows is not None and run.standardizer is not None:
        rows = StandardizedRows(rows, replace(run.standardizer, y_mean=None, y_scale=None))
    outputs = np.empty((0 if samples is None else count, run.outputs), run.settings.training.dtype)
    for part, predicted in _predicted(run, grid, trainer, rows, count, None):
        if samples is not None:
            outputs[part] = predicted
    agree(grid.world, lambda: None if samples is None else _require_finite(outputs, str(path)))
    if samples is None:
        return None
    ignored = tuple(name for name in samples.ignored if name not in kept)
    return replace(_predictions(run, outputs), ignored=ignored, kept=kept)


def _require_finite(outputs: NDArray[Any], called: str) -> None:
    bad = ~np.isfinite(outputs).all(axis=1)
    if bad.any():
        rows = f"{counted(int(bad.sum()), 'row')}, first row {int(bad.argmax()) + 1:,}"
        raise DataError(f"{called}: the prediction overflows ({rows}): its inputs are far beyond those of the training")


def _predictions(run: TrainedRun, outputs: NDArray[Any]) -> Predictions:
    exact = outputs.astype(np.float64)
    if run.task == "classification":
        columns = tuple(f"probability_{name}" for name in run.class_names)
        labels = outputs.argmax(axis=1)
        return Predictions(columns, softmax(exact, axis=1), labels, np.array(run.class_names)[labels])
    return Predictions(
        _target_names(run), exact if run.standardizer is None else run.standardizer.restore_y(exact), None
    )
