"""Samples in arrays, derived from other samples, or generated on demand, and checks of arrays of a user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridnn.errors import DataError
from hybridnn.utils.text import counted

Task = Literal["regression", "classification"]
TASKS: tuple[Task, ...] = get_args(Task)


class Rows(Protocol):
    """Samples of one data split.

    Attributes
    ----------
    samples, features : int
        Number of samples and of inputs per sample.
    targets_shape : tuple of int
        Shape of one target: ``()`` for an integer label, ``(outputs,)`` for regression.
    """

    @property
    def samples(self) -> int: ...  # noqa: D102
    @property
    def features(self) -> int: ...  # noqa: D102
    @property
    def targets_shape(self) -> tuple[int, ...]: ...  # noqa: D102

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """Write the samples at `indices` to `x` (n, features) and `y` (n,) + targets_shape, in the dtypes of those.

        None in place of an array skips it.

        Raises
        ------
        IndexError
            If an index is negative or not below ``samples``.
        """


def check_indices(indices: NDArray[np.int64], samples: int) -> None:
    """Raise IndexError unless all `indices` lie in [0, samples)."""
    # Negative indices become large when viewed as unsigned, so one reduction checks both ends.
    if indices.size and np.maximum.reduce(indices.view(np.uint64)) >= samples:
        raise IndexError(f"sample indices {indices.min()} to {indices.max()} do not all lie in 0 to {samples - 1}")


def _gather(source: NDArray[Any], indices: NDArray[np.int64], out: NDArray[Any] | None) -> None:
    """Copy rows of `source` to `out` unless it is None; no temporary array if the dtypes agree."""
    if out is None:
        return
    if source.dtype == out.dtype:
        source.take(indices, 0, out, "clip")  # indices are checked; "raise" would buffer the output
    else:
        out[...] = source[indices]


class ArrayRows:
    """Samples held in arrays; `hybridnn.data.as_rows` checks arrays before it makes one.

    Parameters
    ----------
    x : ndarray, shape (samples, features)
        Inputs; copied only if not C-contiguous, because ``np.take`` would otherwise copy them in every call.
    y : ndarray, shape (samples,) or (samples, outputs)
        Integer labels or regression targets, likewise.
    """

    def __init__(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        self.x, self.y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        self.samples, self.features = self.x.shape
        self.targets_shape = self.y.shape[1:]

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`."""
        check_indices(indices, self.samples)
        _gather(self.x, indices, x)
        _gather(self.y, indices, y)


class PixelRows:
    """Images held as bytes and scaled to [0, 1] when they are taken.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (samples, features)
        Grey values or colour components.
    labels : ndarray of integers, shape (samples,)
    white : int
        Value that is scaled to 1.
    """

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[Any], white: int) -> None:
        self.pixels, self.labels, self.white = pixels, labels, white
        self.samples, self.features = pixels.shape
        self.targets_shape = ()

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`; `x` must be of a floating dtype."""
        check_indices(indices, self.samples)
        if x is not None:
            np.divide(self.pixels[indices], x.dtype.type(self.white), out=x)
        _gather(self.labels, indices, y)


class SubsetRows:
    """A selection of other rows, without a copy.

    Parameters
    ----------
    rows : Rows
        All samples.
    chosen : ndarray of int64, shape (n,)
        Indices into `rows`.
    """

    def __init__(self, rows: Rows, chosen: NDArray[np.int64]) -> None:
        self.rows, self.chosen, self.samples = rows, chosen, chosen.size
        self.features, self.targets_shape = rows.features, rows.targets_shape

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`."""
        check_indices(indices, self.samples)
        self.rows.take(self.chosen[indices], x, y)


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
    x_name, y_name = f"x{part}", f"y{part}"
    inputs, targets = as_array(x, x_name), as_array(y, y_name)
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


def as_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """``numpy.asarray``, but numbers for a pandas data frame or series with nullable dtypes.

    Raises `DataError`, beginning with `name`, if a frame has missing values or columns that hold no numbers.
    """
    if type(values).__module__.partition(".")[0] != "pandas":
        return np.asarray(values)
    frame: Any = values
    dtypes = frame.dtypes if frame.ndim == 2 else [frame.dtype]
    columns = frame.columns if frame.ndim == 2 else [frame.name]
    what = "hybridnn.data.load_frame makes numbers of columns of text and fills in or leaves out missing values"
    others = [str(column) for column, dtype in zip(columns, dtypes, strict=True) if dtype.kind not in "biuf"]
    if others:
        raise DataError(f"{name} holds no numbers in {', '.join(others[:12])}: {what}")
    missing = int(frame.isna().to_numpy().sum())
    if missing:
        raise DataError(f"{name} has {counted(missing, 'missing value')}: {what}")
    array: NDArray[Any] = frame.to_numpy()
    return array if array.dtype.kind != "O" else frame.to_numpy(_common_dtype(dtypes))


def _common_dtype(dtypes: Iterable[Any]) -> np.dtype[Any]:
    """NumPy's dtype for columns of nullable dtypes."""
    return np.result_type(*(getattr(dtype, "numpy_dtype", dtype) for dtype in dtypes))


def class_count(rows: ArrayRows) -> int:
    """Return the number of classes that the largest label implies."""
    return int(rows.y.max()) + 1


def constant_targets(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each target, or the label, has one value in all samples; never for a single sample."""
    constant: NDArray[np.bool_] = np.atleast_1d((y == y[:1]).all(axis=0))
    return constant & (len(y) > 1)


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
