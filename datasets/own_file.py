"""A user's own data: `.npz` files of arrays and `.csv` files with named columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.npz_files import read_npz

from .arrays import as_rows, class_count
from .info import Task
from .rows import ArrayRows, Dataset

__all__ = ["load_file"]

EXACT = 2**53
"""Integers from here on, of either sign, are not all numbers of float64."""


def load_file(path: str | Path, targets: Sequence[str] = (), *, task: Task | None = None) -> Dataset:
    """Load a user's file.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with ``x_train``, ``y_train`` and optionally ``x_test``, ``y_test``, or ``.csv`` with a header line.
    targets : sequence of str
        Target columns of a ``.csv``; all other columns are inputs.
    task : {'classification', 'regression'}, optional
        Decides instead of the rule: floats are regression targets; integers, in a ``.csv`` one column of them without
        decimal points, are labels.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the key, or the line and column.
    SettingError
        If `targets` are missing for a ``.csv`` or given for an ``.npz``.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise SettingError("data.file", str(path), "must end in .npz or .csv")
    if not path.is_file():
        raise DataError(f"data.file = {str(path)!r}: no such file")
    if path.suffix == ".csv":
        if not targets:
            raise SettingError("data.targets", list(targets), "a .csv file needs the names of its target columns")
        return _from_csv(path, targets, task)
    if targets:
        raise SettingError("data.targets", list(targets), "only for .csv files; an .npz file has y_train")
    return _from_npz(path, task)


def _from_npz(path: Path, task: Task | None) -> Dataset:
    arrays = read_npz(path)
    needed = ["x_train", "y_train"] + (["x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else [])
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise DataError(f"{path}: no {' and no '.join(missing)}; found {', '.join(arrays) or 'nothing'}")
    train = as_rows(arrays["x_train"], arrays["y_train"], task, part="_train")
    test = None
    if "x_test" in needed:
        known: Task = "regression" if train.targets_shape else "classification"
        classes = None if train.targets_shape else class_count(train)
        test = as_rows(arrays["x_test"], arrays["y_test"], known, classes=classes, part="_test")
        if (test.features, test.targets_shape) != (train.features, train.targets_shape):
            raise DataError(
                f"{path}: x_test, y_test have shapes {test.x.shape}, {test.y.shape}; "
                f"they do not go with {train.x.shape}, {train.y.shape} of the training part"
            )
    return _dataset(path, train, test)


def _from_csv(path: Path, targets: Sequence[str], task: Task | None) -> Dataset:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # -sig: spreadsheets write a byte-order mark
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            _check_names(path, names, targets)
            where = [names.index(name) for name in targets]
            table, integers = _numbers(path, names, ((reader.line_num, cells) for cells in reader if cells), where)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a text file of comma-separated values: {error}") from error
    x, y = np.delete(table, where, axis=1), table[:, where]
    if task is None:
        task = "classification" if integers and len(targets) == 1 else "regression"
    if task == "regression":
        return _dataset(path, as_rows(x, y, task), None)
    if not integers or len(targets) != 1:
        raise DataError(f"{path}: classification needs one target column of integers without decimal points")
    beyond = np.flatnonzero(np.abs(y[:, 0]) >= EXACT)
    if beyond.size:
        value = y[beyond[0], 0]
        raise DataError(f"{path}: column {targets[0]!r} has the label {value:.0f}, too large; {_label_hint(path)}")
    return _dataset(path, as_rows(x, y[:, 0].astype(np.int64), task), None)


def _check_names(path: Path, names: Sequence[str], targets: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise DataError(f"{path}: the header line names {', '.join(map(repr, doubled))} more than once")
    for name in targets:
        if name not in names:
            raise SettingError("data.targets", name, f"{path} has no such column; it has {', '.join(names) or 'none'}")
    if len(set(targets)) != len(targets) or len(targets) == len(names):
        raise SettingError("data.targets", list(targets), "each name once, and at least one column left as input")


def _numbers(
    path: Path, names: Sequence[str], lines: Iterable[tuple[int, list[str]]], targets: Sequence[int]
) -> tuple[NDArray[np.float64], bool]:
    """Return the table of all columns, and whether every target cell is an integer."""
    table, integers = [], True
    for line, cells in lines:
        if len(cells) != len(names):
            raise DataError(f"{path}, line {line}: {len(cells)} cells, the header line has {len(names)}")
        table.append([_number(path, line, name, cell) for name, cell in zip(names, cells, strict=True)])
        integers = integers and all(cells[column].strip().lstrip("+-").isdecimal() for column in targets)
    if not table:
        raise DataError(f"{path}: no line of data after the header line")
    return np.array(table), integers


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{path}, line {line}, column {column!r}: {cell!r} is not a finite number")
    return value


def _dataset(path: Path, train: ArrayRows, test: ArrayRows | None) -> Dataset:
    if train.targets_shape:
        return Dataset(path.name, "regression", train.features, train.targets_shape[0], train, test)
    classes = class_count(train)
    if classes > train.samples:
        raise DataError(f"{path}: label {classes - 1} among {train.samples} samples; {_label_hint(path)}")
    if train.y.min() == train.y.max():
        raise DataError(f"{path}: all labels are {classes - 1}: classification needs at least 2 classes")
    return Dataset(path.name, "classification", train.features, classes, train, test)


def _label_hint(path: Path) -> str:
    otherwise = "write a decimal point" if path.suffix == ".csv" else "store floating point"
    return f"integers are class labels: number them from 0, or {otherwise} for regression"
