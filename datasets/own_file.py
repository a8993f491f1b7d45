"""A user's own data: `.npz` files of arrays and `.csv` files with named columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.files import open_regular, read_npz

from .arrays import as_rows, class_count
from .info import Task
from .rows import ArrayRows, Dataset
from .table_file import NAMES_SHOWN, column_list, input_columns, read_columns

__all__ = ["load_file"]

EXACT = 2**53
"""Integers from here on, of either sign, are not all numbers of float64."""


def load_file(
    path: str | Path, targets: Sequence[str] = (), *, inputs: Sequence[str] = (), task: Task | None = None
) -> Dataset:
    """Load a user's file.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with ``x_train``, ``y_train`` and optionally ``x_test``, ``y_test``, or ``.csv`` with a header line.
    targets : sequence of str
        Target columns of a ``.csv``.
    inputs : sequence of str
        Input columns of a ``.csv``, in this order wherever they are in the file; without any, all that are no targets.
    task : {'classification', 'regression'}, optional
        Decides instead of the rule: floats are regression targets; integers, in a ``.csv`` one column of them without
        decimal points, are labels.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the file and the key, or the line and column.
    SettingError
        If `targets` are missing for a ``.csv``, or `targets` or `inputs` are given for an ``.npz``.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise SettingError("data.file", str(path), "must end in .npz or .csv")
    require_readable(path, f"data.file = {str(path)!r}")
    if path.suffix == ".csv" and not targets:
        how = "a .csv file needs the names of its target columns, as in --set data.targets='[\"price\"]'"
        raise SettingError("data.targets", [], how)
    if path.suffix == ".npz" and targets:
        raise SettingError("data.targets", list(targets), "only for .csv files; an .npz file has y_train")
    if path.suffix == ".npz" and inputs:
        raise SettingError("data.inputs", list(inputs[:NAMES_SHOWN]), "only for .csv files; an .npz file has x_train")
    return _from_csv(path, targets, inputs, task) if path.suffix == ".csv" else _from_npz(path, task)


def require_readable(path: Path, called: str) -> None:
    """Refuse what is no regular file that can be opened.

    Raises
    ------
    DataError
        Which begins with `called`.
    """
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise DataError(f"{called}: no such file") from None
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror}") from error


def _from_npz(path: Path, task: Task | None) -> Dataset:
    arrays = read_npz(path)
    needed = ["x_train", "y_train"] + (["x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else [])
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no {' and no '.join(missing)}; found {column_list(list(arrays)) if arrays else 'nothing'}"
        )
    train = _rows(path, arrays["x_train"], arrays["y_train"], task, part="_train")
    test = None
    if "x_test" in needed:
        known: Task = "regression" if train.targets_shape else "classification"
        classes = None if train.targets_shape else class_count(train)
        test = _rows(path, arrays["x_test"], arrays["y_test"], known, classes=classes, part="_test")
        if (test.features, test.targets_shape) != (train.features, train.targets_shape):
            raise DataError(
                f"{path}: x_test, y_test have shapes {test.x.shape}, {test.y.shape}; "
                f"they do not go with {train.x.shape}, {train.y.shape} of the training part"
            )
    return _dataset(path, train, test, f"y_train is {arrays['y_train'].dtype}")


def _from_csv(path: Path, targets: Sequence[str], inputs: Sequence[str], task: Task | None) -> Dataset:
    taken: list[str] = []
    ignored: list[str] = []

    def choose(names: list[str]) -> list[str]:
        _require_targets(path, names, targets)
        taken.extend(input_columns(path, names, targets, inputs))
        if not taken or len({*taken, *targets}) != len(taken) + len(targets):
            setting, value = ("data.inputs", inputs) if inputs else ("data.targets", targets)
            allowed = f"each name once, and at least one column of {path} left as input"
            raise SettingError(setting, list(value[:NAMES_SHOWN]), allowed)
        used = {*taken, *targets}
        ignored.extend(name for name in names if name not in used)
        return [*taken, *targets]

    table, integers = read_columns(path, choose, targets)
    x, y = table[:, : len(taken)], table[:, len(taken) :]
    is_labels = integers and len(targets) == 1
    if task is None:
        task = "classification" if is_labels else "regression"
    if task == "classification" and not is_labels:
        raise DataError(f"{path}: classification needs one target column of integers without decimal points")
    rows = _rows(path, x, _labels(path, targets[0], y[:, 0]) if task == "classification" else y, task)
    why = f"{targets[0]} has decimal points" if len(targets) == 1 else f"{len(targets)} target columns"
    return replace(_dataset(path, rows, None, why), inputs=tuple(taken), ignored=tuple(ignored))


def _require_targets(path: Path, names: Sequence[str], targets: Sequence[str]) -> None:
    there = set(names)
    for name in targets:
        if name not in there:
            raise SettingError("data.targets", name, f"{path} has no such column; it has {column_list(names)}")


def _labels(path: Path, column: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    beyond = np.flatnonzero(np.abs(values) >= EXACT)
    if beyond.size:
        label = f"{values[beyond[0]]:.0f}"
        raise DataError(f"{path}: column {column!r} has the label {label}, too large; {_label_hint(path)}")
    return values.astype(np.int64)


def _rows(path: Path, x: NDArray[Any], y: NDArray[Any], task: Task | None, **known: Any) -> ArrayRows:
    """`as_rows`, with the file in its errors."""
    try:
        return as_rows(x, y, task, **known)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _dataset(path: Path, train: ArrayRows, test: ArrayRows | None, why_regression: str) -> Dataset:
    if train.targets_shape:
        outputs, why = train.targets_shape[0], f"regression: {why_regression}"
        return Dataset(path.name, "regression", train.features, outputs, train, test, task_reason=why)
    classes = class_count(train)
    if classes > train.samples:
        raise DataError(f"{path}: label {classes - 1} among {train.samples} samples; {_label_hint(path)}")
    if train.y.min() == train.y.max():
        raise DataError(f"{path}: all labels are {classes - 1}: classification needs at least 2 classes")
    why = f"classification: {_class_words(train, classes)}"
    return Dataset(path.name, "classification", train.features, classes, train, test, task_reason=why)


def _class_words(train: ArrayRows, classes: int) -> str:
    """How many classes there are, and which of them never occur."""
    absent = np.setdiff1d(np.arange(classes), train.y)
    if not absent.size:
        return f"{classes} classes"
    labels = column_list([str(label) for label in absent])
    return f"{classes - absent.size} of {classes} classes occur: no sample has the label {labels}"


def _label_hint(path: Path) -> str:
    otherwise = "write a decimal point" if path.suffix == ".csv" else "store floating point"
    return f"integers are class labels: number them from 0, or {otherwise} for regression"
