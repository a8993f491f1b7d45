"""Splitting of samples into training and test split, and standardization with the statistics of the training split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.errors import DataError
from hybridnn.utils.checks import require_choice, require_number, require_whole

from .dataset import Dataset
from .rows import ArrayRows, Rows, check_indices, require_finite

Part = Literal["test", "validation"]

CHECKED_ROWS = 4096  # samples that are checked at a time

_STREAMS: dict[Part, int] = {"test": 0x73706C74, "validation": 0x76616C69}
"""Numbers that make these uses of a seed independent of one another and of others."""


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


def split(rows: Rows, fraction: float, seed: int, part: Part = "test") -> tuple[SubsetRows, SubsetRows]:
    """Divide samples at random into a training and a test or validation split, a function of the seed.

    Parameters
    ----------
    fraction : float
        Of the second split: at least 0 and below 1; rounded to whole samples, at least one in each split, unless it is
        0.
    part : {'test', 'validation'}
        The second split, which is chosen independently of the other one.

    Returns
    -------
    train, other : SubsetRows
        In the order of `rows`; `other` is empty if `fraction` is 0.

    Raises
    ------
    SettingError, DataError
        `fraction` is not allowed, or there are fewer than two samples.
    """
    train, other = split_indices(rows.samples, fraction, seed, part)
    return SubsetRows(rows, train), SubsetRows(rows, other)


def split_dataset(data: Dataset, test_fraction: float, validation_fraction: float, seed: int) -> dict[str, Rows]:
    """The samples of a data set by their use: ``"train"``, ``"validation"`` and ``"test"``.

    The test samples are those of the data set if it has some, else a share of its samples; the validation samples are a
    share of the others. Both are chosen by `seed`, as by `split`.
    """
    train, test = (data.train, data.test) if data.test is not None else split(data.train, test_fraction, seed)
    validation: Rows = SubsetRows(train, np.empty(0, np.int64))
    if validation_fraction:
        train, validation = split(train, validation_fraction, seed, "validation")
    return {"train": train, "validation": validation, "test": test}


def split_indices(
    samples: int, fraction: float, seed: int, part: Part = "test"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the training and of the other samples, in order; parameters and errors are those of `split`."""
    others = count_split(samples, fraction, part)
    if not others:
        return np.arange(samples), np.empty(0, np.int64)
    seed = require_whole("training.seed", seed, 0)
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _STREAMS[part]])))
    order = generator.permutation(samples)
    return np.sort(order[others:]), np.sort(order[:others])


def count_split(samples: int, fraction: float, part: Part = "test") -> int:
    """Number of samples that `split` puts into the second split; parameters and errors are those of `split`."""
    require_choice("part", part, get_args(Part))
    fraction = require_number(f"data.{part}_fraction", fraction, at_least=0, below=1)
    if fraction == 0:
        return 0
    if samples < 2:
        raise DataError(f"{samples} sample cannot be split into a training and a {part} part")
    return min(max(round(samples * fraction), 1), samples - 1)


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Column means and scales of a training split; standardization computes ``(value - mean) / scale``.

    Parameters
    ----------
    x_mean, x_scale : ndarray of float64, shape (features,)
        Of the inputs.
    y_mean, y_scale : ndarray of float64, shape (outputs,), or None
        Of the targets; None for classification.
    """

    x_mean: NDArray[np.float64]
    x_scale: NDArray[np.float64]
    y_mean: NDArray[np.float64] | None = None
    y_scale: NDArray[np.float64] | None = None

    @classmethod
    def fit(cls, rows: Rows, block: int = 4096) -> Standardizer:
        """Compute means and standard deviations in float64, in two passes over blocks of `block` samples.

        A constant column has scale 1 and is standardized to 0. `DataError` if the squares of values overflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            mean, squares = _moments(rows, block)
        if not np.isfinite(squares).all():
            column = int(np.argmin(np.isfinite(squares)))
            kind = f"input column {column}" if column < rows.features else f"target column {column - rows.features}"
            raise DataError(f"{kind} cannot be standardized: the squares of its values overflow")
        scale = np.where(squares == 0, 1.0, np.sqrt(squares / rows.samples))
        x, y = slice(rows.features), slice(rows.features, None)
        return cls(mean[x], scale[x], mean[y], scale[y]) if rows.targets_shape else cls(mean, scale)

    def apply_x(self, x: NDArray[Any]) -> NDArray[Any]:
        """Standardize inputs (n, features) into a new array of the same floating dtype (float64 for integers)."""
        return _applied(x, self.x_mean, self.x_scale)

    def apply_y(self, y: NDArray[Any]) -> NDArray[Any]:
        """Standardize targets (n, outputs) into a new array; labels are returned unchanged."""
        return y if self.y_mean is None or self.y_scale is None else _applied(y, self.y_mean, self.y_scale)

    def restore_y(self, y: NDArray[Any]) -> NDArray[Any]:
        """Undo `apply_y`, for example on predictions; for classification `y` is returned unchanged."""
        if self.y_mean is None or self.y_scale is None:
            return y
        restored: NDArray[Any] = (y * self.y_scale + self.y_mean).astype(_floating(y))
        return restored

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """The arrays by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Standardizer:
        """Build from the arrays of `to_arrays`; other keys are ignored. `DataError` if an array is missing."""
        names = ["x_mean", "x_scale"] + (["y_mean", "y_scale"] if {"y_mean", "y_scale"} & set(arrays) else [])
        missing = [name for name in names if name not in arrays]
        if missing:
            raise DataError(f"the standardization lacks {', '.join(missing)}; found {', '.join(arrays) or 'nothing'}")
        return cls(**{name: np.asarray(arrays[name], dtype=np.float64) for name in names})


class StandardizedRows:
    """Rows that are standardized when they are taken; `DataError` if the numbers of columns differ."""

    def __init__(self, rows: Rows, standardizer: Standardizer) -> None:
        self.rows, self.standardizer, self.samples = rows, standardizer, rows.samples
        self.features, self.targets_shape = rows.features, rows.targets_shape
        x_mean, y_mean = standardizer.x_mean, standardizer.y_mean
        outputs = () if y_mean is None else y_mean.shape
        if (self.features, self.targets_shape) != (x_mean.size, outputs):
            raise DataError(
                f"the data have {self.features} features and targets of shape {self.targets_shape}, "
                f"the standardization is for {x_mean.size} and {outputs}"
            )

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`; computed in float64, because float32 would lose small changes about a large mean."""
        wide_x = None if x is None else np.empty(x.shape)
        wide_y = np.empty(y.shape) if y is not None and self.targets_shape else y
        self.rows.take(indices, wide_x, wide_y)
        if x is not None and wide_x is not None:
            x[...] = self.standardizer.apply_x(wide_x)
        if y is not None and wide_y is not None and self.targets_shape:
            y[...] = self.standardizer.apply_y(wide_y)


def require_finite_rows(rows: Rows, dtype: DTypeLike, what: str) -> None:
    """Raise `DataError`, beginning with `what`, for an element that `dtype` cannot hold, of arrays of a wider one."""
    held: Any = rows
    numbers = np.arange(rows.samples)
    while isinstance(held, SubsetRows | StandardizedRows):
        numbers = held.chosen[numbers] if isinstance(held, SubsetRows) else numbers
        held = held.rows
    floats = [array.dtype for array in held.arrays if array.dtype.kind == "f"] if isinstance(held, ArrayRows) else []
    if all(np.can_cast(own, dtype) for own in floats):
        return
    start = 0
    for table in _tables(rows, CHECKED_ROWS):
        of_block = numbers[start : start + len(table)]
        require_finite(table[:, : rows.features], f"{what}: x", dtype, of_block)
        require_finite(table[:, rows.features :], f"{what}: y", dtype, of_block)
        start += len(table)


def _moments(rows: Rows, block: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of each column and sum of its squared deviations; inputs first, then targets."""
    total = np.zeros(rows.features + sum(rows.targets_shape))
    low, high = np.full_like(total, np.inf), np.full_like(total, -np.inf)
    for table in _tables(rows, block):
        total += table.sum(axis=0)
        np.minimum(low, table.min(axis=0), out=low)
        np.maximum(high, table.max(axis=0), out=high)
    mean = np.where(low == high, low, total / rows.samples)  # exact for a constant column
    squares = np.zeros_like(total)
    for table in _tables(rows, block):
        table -= mean
        squares += np.einsum("ij,ij->j", table, table)
    return mean, squares


def _tables(rows: Rows, block: int) -> Iterator[NDArray[np.float64]]:
    """Yield blocks of samples as (n, features + outputs) without labels; the workspace is reused."""
    workspace = np.empty((min(block, rows.samples), rows.features + sum(rows.targets_shape)))
    labels = np.empty(len(workspace), dtype=np.int64)
    for start in range(0, rows.samples, block):
        indices = np.arange(start, min(start + block, rows.samples))
        table = workspace[: indices.size]
        targets = table[:, rows.features :] if rows.targets_shape else labels[: indices.size]
        rows.take(indices, table[:, : rows.features], targets)
        yield table


def _applied(values: NDArray[Any], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[Any]:
    wide: NDArray[np.float64] = np.subtract(values, mean, dtype=np.float64)
    wide /= scale
    return wide.astype(_floating(values), copy=False)


def _floating(values: NDArray[Any]) -> np.dtype[Any]:
    return values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
