"""Data of a user to train on: files and data frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError, warn_caller
from hybridnn.utils.text import shown_path, user_path

from .dataset import Dataset
from .loaders import label_warning, user_arrays
from .rows import ArrayRows, Task, constant_targets
from .table_encoding import TableEncoding
from .table_file import Table, TableOptions, as_names, named_frame, read_table
from .table_fitting import examine, require_no_problem, task_reason

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = (".csv", ".tsv", ".txt", ".parquet")
SUFFIXES = (*TABLES, ".npz")

Training = Callable[[int], NDArray[np.int64]]
"""Takes the number of samples and returns the indices of the training samples."""


def load_file(
    path: str | Path,
    targets: str | Sequence[str] = (),
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
    encoding: TableEncoding | None = None,
    training: Training | None = None,
    warns: bool = True,
) -> Dataset:
    """Load the training data of a user, and warn of what may not be as meant (``Dataset.warnings``).

    Parameters
    ----------
    path : str or Path
        ``.npz`` with ``x_train``, ``y_train`` and optionally ``x_test``, ``y_test``, or a table: ``.csv``, ``.tsv`` or
        ``.txt`` with a header line, or ``.parquet``.
    targets, inputs : str or sequence of str
        Target columns of a table, and its input columns in this order; if empty, all columns but the targets.
    task : {'classification', 'regression'}, optional
        By default, floats are regression targets, and integers are labels; in a table, one target column of text, truth
        values or few whole numbers holds labels.
    options : TableOptions, optional
        How a table is read.
    encoding : TableEncoding, optional
        Encoding of the table that a network was trained on, in place of a new one for this table.
    training : callable, optional
        Takes the number of samples and returns the indices of the training samples, whose means replace missing values;
        by default all.
    warns : bool
        False leaves the warnings to the caller.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the file, and the key or the columns.
    SettingError
        If `targets` are missing for a table, or `targets` or `inputs` are given for an ``.npz``.
    """
    path, options, named = user_path(path), options or TableOptions(), (as_names(targets), as_names(inputs))
    if has_table(path, "data.file"):
        table = read_table(path, options, named[0], encoding)
        if not named[0]:
            how = "a table needs the names of its target columns, as in --targets price"
            raise SettingError("data.targets", [], how)
        data = _dataset_from_table(table, path.name, shown_path(path), *named, task, encoding, training)
    else:
        given = dict(zip(("targets", "inputs"), map(list, named), strict=True)) | vars(options)
        for key, value in given.items():
            if value and value != vars(TableOptions()).get(key):
                raise SettingError(f"data.{key}", value, "only for tables; an .npz file has x_train and y_train")
        data = user_arrays(path, task)
    for text in data.warnings if warns else ():
        warn_caller(text)
    return data


def load_frame(
    frame: DataFrame,
    targets: str | Sequence[str],
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
    training: Training | None = None,
) -> Dataset:
    """Make a data set of a pandas data frame; parameters and errors as for `load_file`.

    The index is left out, unless it has a name. ``Dataset.encoding`` encodes other frames for the same network, and
    names the classes.
    """
    if not hasattr(frame, "columns"):
        raise DataError(f"the frame is of the type {type(frame).__name__}: must be a data frame of pandas")
    table = Table(named_frame(frame, "the frame"), options or TableOptions())
    names = as_names(targets), as_names(inputs)
    data = _dataset_from_table(table, "frame", "the frame", *names, task, None, training)
    for text in data.warnings:
        warn_caller(text)
    return data


def has_table(path: Path, setting: str) -> bool:
    """Whether a file of a user has a table, by the end of its name; `SettingError` for files of other kinds."""
    if path.suffix.lower() not in SUFFIXES:
        how = "must end in .npz, .csv, .tsv, .txt or .parquet: save a sheet as .csv, and unpack what is compressed"
        raise SettingError(setting, str(path), f"the name of the file {how}")
    return path.suffix.lower() in TABLES


def _dataset_from_table(
    table: Table,
    name: str,
    called: str,
    targets: Sequence[str],
    inputs: Sequence[str],
    task: Task | None,
    encoding: TableEncoding | None,
    training: Training | None,
) -> Dataset:
    frame, options, warnings, is_new = table.frame, table.options, tuple[str, ...](), encoding is None
    if encoding is None:
        found = examine(table, called, targets, inputs, task)
        require_no_problem(called, found.problems)
        encoding = found.encoding.with_means(frame, called, training)
    x, y = encoding.encode(frame, called, targets=targets)
    if y is None or not len(x):
        raise DataError(f"{called}: no row has all of its values")
    if is_new and (constant := constant_targets(y)).any():
        column = int(np.argmax(constant))
        raise DataError(f"{called}: target {targets[column]!r} has one value only: there is nothing to learn")
    if is_new and task is None and not encoding.classes and targets[0] not in encoding.kinds:
        warnings = label_warning(called, targets[0], y, "set model.loss to cross_entropy")
    used = {*encoding.columns, *targets, *options.drop_columns}
    dropped = len(frame) - len(x)
    left = f"; {dropped:,} of {len(frame):,} rows have missing values and are left out" if dropped else ""
    return Dataset(
        name,
        "classification" if encoding.classes else "regression",
        encoding.features,
        len(encoding.classes) or len(targets),
        ArrayRows(x, y),
        None,
        inputs=encoding.columns,
        ignored=tuple(column for column in frame.columns if column not in used),
        task_reason=task_reason(encoding, targets, task) + left,
        encoding=encoding,
        warnings=warnings,
    )
