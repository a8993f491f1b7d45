"""Samples in arrays, derived from other samples, or generated on demand, and the check of all samples of a user."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hybridnn.errors import DataError
from hybridnn.utils.text import counted

Task = Literal["regression", "classification"]
"""What targets are trained for."""
TASKS: tuple[Task, ...] = get_args(Task)

BLOCK_ELEMENTS = 1 << 16  # elements that are checked at a time


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

        None in place of an array skips it. Raises `IndexError` if an index is negative or not below ``samples``.
        """


def check_indices(indices: NDArray[np.int64], samples: int) -> None:
    """Raise IndexError unless all `indices` lie in [0, samples)."""
    # Negative indices become large when viewed as unsigned, so one reduction checks both ends.
    if indices.size and np.maximum.reduce(indices.view(np.uint64)) >= samples:
        raise IndexError(f"sample indices {indices.min()} to {indices.max()} do not all lie in 0 to {samples - 1}")


def gather(source: NDArray[Any], indices: NDArray[np.int64], out: NDArray[Any] | None) -> None:
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
        gather(self.x, indices, x)
        gather(self.y, indices, y)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All arrays in which the samples are held."""
        return self.x, self.y


class SparseRows(ArrayRows):
    """As `ArrayRows`, with the inputs in an array of `scipy.sparse` by rows, made dense when they are taken."""

    def __init__(self, x: Any, y: NDArray[Any]) -> None:
        self.x: Any = x
        self.y = np.ascontiguousarray(y)
        self.samples, self.features = x.shape
        self.targets_shape = y.shape[1:]

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`."""
        check_indices(indices, self.samples)
        if x is not None:
            x[...] = dense(self.x[indices])
        gather(self.y, indices, y)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All arrays in which the samples are held."""
        return self.x.data, self.x.indices, self.x.indptr, self.y


def as_rows(
    x: ArrayLike,
    y: ArrayLike,
    task: Task | None = None,
    *,
    classes: int | None = None,
    part: str = "",
    dtype: DTypeLike | None = None,
) -> ArrayRows:
    """Check inputs and targets and wrap them as rows.

    Parameters
    ----------
    x : array_like or sparse, shape (samples, features)
        Real, finite inputs. Arrays of `scipy.sparse` stay sparse; `SparseRows` makes the taken rows dense.
    y : array_like, shape (samples,) or (samples, outputs)
        Integers are class labels, floats regression targets; one-dimensional targets become (samples, 1).
    task : {'classification', 'regression'}, optional
        Overrides the dtype: integers with ``"regression"`` become floats.
    classes : int, optional
        Number of classes; labels must be less.
    part : str
        Suffix of the names in messages: ``"_train"`` gives "x_train".
    dtype : dtype, optional
        Inputs and regression targets are converted to it, in which they must be finite too.

    Returns
    -------
    ArrayRows
        Contiguous arrays of the dtype are not copied; labels are int64.

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
    samples = inputs.shape[0]  # a sparse array has no length
    if is_sparse(targets):
        raise DataError(f"{y_name} is sparse: {y_name}.toarray() makes it dense")
    if targets.ndim == 0 or samples != len(targets):
        count = len(targets) if targets.ndim else "no"
        raise DataError(f"{x_name} has {samples} samples and {y_name} has {count}: they must be as many")
    if 0 in inputs.shape:
        raise DataError(f"{x_name} has shape {inputs.shape}: at least one sample and one feature are needed")
    require_finite(inputs, x_name, dtype)
    inputs = inputs.astype(dtype or inputs.dtype, copy=False)
    if task is None:
        task = "regression" if targets.dtype.kind == "f" else "classification"
    if task == "classification":
        targets = _labels(targets, y_name, classes)
    else:
        targets = _regression_targets(targets, y_name, dtype)
    return (SparseRows if is_sparse(inputs) else ArrayRows)(inputs, targets)


def is_sparse(values: object) -> bool:
    """Whether it is an array or a matrix of `scipy.sparse`."""
    return type(values).__module__.startswith("scipy.sparse")


def dense(rows: Any) -> NDArray[Any]:
    """Rows of an array, which may be sparse, as a dense array."""
    array: NDArray[Any] = rows.toarray() if is_sparse(rows) else rows
    return array


def as_array(values: Any, name: str) -> NDArray[Any]:
    """``numpy.asarray``, but numbers for a pandas data frame or series with nullable dtypes; sparse arrays by rows.

    Raises `DataError`, beginning with `name`, if elements are masked, or a frame has missing values or columns that
    hold no numbers.
    """
    if is_sparse(values):
        array: NDArray[Any] = values.tocsr()
        return array
    if type(values).__module__.partition(".")[0] != "pandas":
        require_unmasked(values, name)
        return np.asarray(values)
    frame = values
    dtypes = frame.dtypes if frame.ndim == 2 else [frame.dtype]
    what = "hybridnn.data.load_frame makes numbers of columns of text and fills in or leaves out missing values"
    if frame.ndim == 1 and frame.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {frame.dtype}: it must hold numbers, as {name}.cat.codes of categories")
    columns = zip(frame.columns if frame.ndim == 2 else (), dtypes, strict=False)
    others = [f"{column} ({dtype})" for column, dtype in columns if dtype.kind not in "biuf"]
    if others:
        raise DataError(f"{name} holds no numbers in {', '.join(others[:12])}: {what}")
    missing = int(frame.isna().to_numpy().sum())
    if missing:
        raise DataError(f"{name} has {counted(missing, 'missing value')}: {what}")
    array = frame.to_numpy()
    if array.dtype.kind == "O":  # of columns of nullable dtypes
        array = frame.to_numpy(np.result_type(*(getattr(dtype, "numpy_dtype", dtype) for dtype in dtypes)))
    return array


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


def _regression_targets(targets: NDArray[Any], name: str, dtype: DTypeLike | None) -> NDArray[Any]:
    require_finite(targets, name, dtype)
    columns = targets.reshape(-1, 1) if targets.ndim == 1 else targets
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise DataError(f"{name} has shape {targets.shape}: it must be (samples,) or (samples, outputs)")
    return columns.astype(dtype or (columns.dtype if columns.dtype.kind == "f" else np.float64), copy=False)


def _check_real(array: NDArray[Any], name: str) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {array.dtype}: it must hold real numbers")


def require_unmasked(values: object, name: str) -> None:
    """Raise `DataError`, beginning with `name`, for masked elements, of which NumPy would use the hidden values."""
    parts = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if masked:
        how = f"leave out their rows, or fill them in, as {name}.filled(0) does"
        raise DataError(f"{name} has {counted(masked, 'masked value')}: {how}")


def require_finite(
    array: Any, name: str, dtype: DTypeLike | None = None, numbers: NDArray[np.int64] | None = None
) -> None:
    """Raise `DataError`, beginning with `name`, for the first element that is not finite in `dtype`, or in its own.

    The array, which may be sparse, is read once, in blocks of rows; `numbers` are those of its rows if not 0, 1, ….
    """
    if array.dtype.kind != "f":
        return
    dtype = np.dtype(dtype or array.dtype)
    count = max(1, BLOCK_ELEMENTS // max(1, prod(array.shape[1:])))
    for start in range(0, array.shape[0], count):
        block = array[start : start + count]
        with np.errstate(over="ignore"):
            if np.isfinite((block.data if is_sparse(block) else block).astype(dtype, copy=False)).all():
                continue
            block = dense(block)
            place = np.unravel_index(int(np.argmin(np.isfinite(block.astype(dtype, copy=False)))), block.shape)
        row = start + place[0]
        axes = zip(("row", "column"), (row if numbers is None else numbers[row], *place[1:]), strict=False)
        what = "all values must be finite"
        if np.isfinite(block[place]):
            what = f"too large for {dtype}: training.dtype = 'float64', or scale the column"
        raise DataError(f"{name} is {block[place]} in {', '.join(f'{axis} {index}' for axis, index in axes)}: {what}")
