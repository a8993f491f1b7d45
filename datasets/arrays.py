"""Checks of arrays that a user trains on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridnn.errors import DataError

from .info import Task
from .rows import ArrayRows

__all__ = ["as_rows", "class_count"]


def as_rows(
    x: ArrayLike, y: ArrayLike, task: Task | None = None, *, classes: int | None = None, part: str = ""
) -> ArrayRows:
    """Check inputs and targets and wrap them as rows.

    Parameters
    ----------
    x : array_like, shape (samples, features)
        Real, finite inputs.
    y : array_like, shape (samples,) or (samples, outputs)
        Integers are class labels, floats regression targets; one-dimensional targets become (samples, 1).
    task : {'classification', 'regression'}, optional
        Overrides the dtype: integers with ``"regression"`` become floats.
    classes : int, optional
        Number of classes; labels must be less.
    part : str
        Suffix of the names in messages: ``"_train"`` gives "x_train".

    Returns
    -------
    ArrayRows
        Contiguous arrays are not copied; labels are int64.

    Raises
    ------
    DataError
        If shapes, dtypes or values are invalid; the message names the first such row and column, counted from 0.
    """
    inputs, targets = np.asarray(x), np.asarray(y)
    x_name, y_name = f"x{part}", f"y{part}"
    _check_real(inputs, x_name)
    _check_real(targets, y_name)
    if inputs.ndim != 2:
        raise DataError(f"{x_name} has shape {inputs.shape}: it must be (samples, features)")
    if targets.ndim == 0 or len(inputs) != len(targets):
        count = len(targets) if targets.ndim else "no"
        raise DataError(f"{x_name} has {len(inputs)} samples and {y_name} has {count}: they must be as many")
    if inputs.size == 0:
        raise DataError(f"{x_name} has shape {inputs.shape}: at least one sample and one feature are needed")
    _check_finite(inputs, x_name)
    if task is None:
        task = "regression" if targets.dtype.kind == "f" else "classification"
    if task == "classification":
        return ArrayRows(inputs, _labels(targets, y_name, classes))
    return ArrayRows(inputs, _regression_targets(targets, y_name))


def class_count(rows: ArrayRows) -> int:
    """Return the number of classes that the largest label implies."""
    return int(rows.y.max()) + 1


def _labels(targets: NDArray[Any], name: str, classes: int | None) -> NDArray[np.int64]:
    if targets.dtype.kind == "f":
        raise DataError(f"{name} is {targets.dtype}: classification needs integer labels")
    if targets.ndim != 1:
        raise DataError(
            f"{name} has shape {targets.shape}: integer labels must be (samples,); for regression give floating point"
        )
    allowed = "labels must be >= 0; for regression give floating point"
    if classes is not None:
        allowed = f"with {classes} classes labels are 0 to {classes - 1}"
    limit = np.iinfo(np.int64).max if classes is None else classes
    bad = np.flatnonzero((targets < 0) | (targets >= limit))
    if bad.size:
        raise DataError(f"{name}: label {targets[bad[0]]} in row {bad[0]}: {allowed}")
    return targets.astype(np.int64)


def _regression_targets(targets: NDArray[Any], name: str) -> NDArray[Any]:
    _check_finite(targets, name)
    columns = targets.reshape(-1, 1) if targets.ndim == 1 else targets
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise DataError(f"{name} has shape {targets.shape}: it must be (samples,) or (samples, outputs)")
    return columns if columns.dtype.kind == "f" else columns.astype(np.float64)


def _check_real(array: NDArray[Any], name: str) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {array.dtype}: it must hold real numbers")


def _check_finite(array: NDArray[Any], name: str) -> None:
    finite = np.isfinite(array)
    if finite.all():
        return
    place = np.unravel_index(int(np.argmin(finite)), array.shape)
    where = ", ".join(f"{axis} {index}" for axis, index in zip(("row", "column"), place, strict=False))
    raise DataError(f"{name} is {array[place]} in {where}: all values must be finite")
