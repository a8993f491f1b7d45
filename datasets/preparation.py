"""Split off a test part, and standardize with the training part's statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError

from .rows import Rows, SubsetRows

__all__ = ["StandardizedRows", "Standardizer", "count_tests", "split", "standardized"]

_SPLIT_STREAM = 0x73706C74  # keeps the split apart from other uses of the same seed


def split(rows: Rows, test_fraction: float, seed: int) -> tuple[SubsetRows, SubsetRows]:
    """Divide samples at random into a training and a test part, the same for the same seed everywhere.

    Parameters
    ----------
    rows : Rows
        All samples, of a set without a test part of its own.
    test_fraction : float
        Above 0 and below 1; rounded to whole samples, at least one on either side.
    seed : int
        At least 0.

    Returns
    -------
    train, test : SubsetRows
        Views of `rows`, in its order.

    Raises
    ------
    SettingError
        If `test_fraction` lies outside (0, 1).
    DataError
        If there are fewer than two samples.
    """
    tests = count_tests(rows.samples, test_fraction)
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _SPLIT_STREAM])))
    order = generator.permutation(rows.samples)
    return SubsetRows(rows, np.sort(order[tests:])), SubsetRows(rows, np.sort(order[:tests]))


def count_tests(samples: int, test_fraction: float) -> int:
    """Count the samples that `split` puts into the test part; parameters and errors are those of `split`."""
    if not 0 < test_fraction < 1:
        raise SettingError("data.test_fraction", test_fraction, "must lie above 0 and below 1")
    if samples < 2:
        raise DataError(f"{samples} sample cannot be split into a training and a test part")
    return min(max(round(samples * test_fraction), 1), samples - 1)


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Column means and scales of a training part; standardized is ``(value - mean) / scale``.

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

        A constant column gets scale 1, and so becomes 0.

        Raises
        ------
        DataError
            If values are so large that their squares overflow.
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
        """Standardize targets (n, outputs) into a new array; labels are returned as they are."""
        return y if self.y_mean is None or self.y_scale is None else _applied(y, self.y_mean, self.y_scale)

    def restore_y(self, y: NDArray[Any]) -> NDArray[Any]:
        """Undo `apply_y`, for example on predictions; for classification `y` is returned as it is."""
        if self.y_mean is None or self.y_scale is None:
            return y
        restored: NDArray[Any] = (y * self.y_scale + self.y_mean).astype(_floating(y))
        return restored

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the arrays by name, for a file."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Standardizer:
        """Build from what `to_arrays` returned; other keys are ignored.

        Raises
        ------
        DataError
            If an array is missing.
        """
        names = ["x_mean", "x_scale"] + (["y_mean", "y_scale"] if {"y_mean", "y_scale"} & set(arrays) else [])
        missing = [name for name in names if name not in arrays]
        if missing:
            raise DataError(f"the standardization lacks {', '.join(missing)}; found {', '.join(arrays) or 'nothing'}")
        return cls(**{name: np.asarray(arrays[name], dtype=np.float64) for name in names})


@dataclass(frozen=True, eq=False)
class StandardizedRows:
    """Rows that are standardized when taken.

    Parameters
    ----------
    rows : Rows
        The samples as they are.
    standardizer : Standardizer
        Means and scales, of the training part.
    """

    rows: Rows
    standardizer: Standardizer

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.rows.samples

    @property
    def features(self) -> int:
        """Inputs per sample."""
        return self.rows.features

    @property
    def targets_shape(self) -> tuple[int, ...]:
        """Shape of one target."""
        return self.rows.targets_shape

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`; computed in float64, as float32 would lose small changes about a large mean."""
        wide_x = None if x is None else np.empty(x.shape)
        wide_y = np.empty(y.shape) if y is not None and self.targets_shape else y
        self.rows.take(indices, wide_x, wide_y)
        if x is not None and wide_x is not None:
            x[...] = self.standardizer.apply_x(wide_x)
        if y is not None and wide_y is not None and self.targets_shape:
            y[...] = self.standardizer.apply_y(wide_y)


def standardized(rows: Rows, standardizer: Standardizer) -> StandardizedRows:
    """Return rows that `standardizer` is applied to when they are taken.

    Raises
    ------
    DataError
        If the numbers of columns differ.
    """
    outputs = () if standardizer.y_mean is None else standardizer.y_mean.shape
    if (rows.features, rows.targets_shape) != (standardizer.x_mean.size, outputs):
        raise DataError(
            f"the data have {rows.features} features and targets of shape {rows.targets_shape}, "
            f"the standardization is for {standardizer.x_mean.size} and {outputs}"
        )
    return StandardizedRows(rows, standardizer)


def _moments(rows: Rows, block: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and summed squared distance from it of each column, the inputs and then the targets."""
    total = np.zeros(rows.features + sum(rows.targets_shape))
    low, high = np.full_like(total, np.inf), np.full_like(total, -np.inf)
    for table in _tables(rows, block):
        total += table.sum(axis=0)
        np.minimum(low, table.min(axis=0), out=low)
        np.maximum(high, table.max(axis=0), out=high)
    mean = np.where(low == high, low, total / rows.samples)  # a constant column's mean is exact
    squares = np.zeros_like(total)
    for table in _tables(rows, block):
        table -= mean
        squares += np.einsum("ij,ij->j", table, table)
    return mean, squares


def _tables(rows: Rows, block: int) -> Iterator[NDArray[np.float64]]:
    """Yield blocks of samples as (n, features + outputs); labels are left out. The memory is reused."""
    memory = np.empty((min(block, rows.samples), rows.features + sum(rows.targets_shape)))
    labels = np.empty(len(memory), dtype=np.int64)
    for start in range(0, rows.samples, block):
        indices = np.arange(start, min(start + block, rows.samples))
        table = memory[: indices.size]
        targets = table[:, rows.features :] if rows.targets_shape else labels[: indices.size]
        rows.take(indices, table[:, : rows.features], targets)
        yield table


def _applied(values: NDArray[Any], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[Any]:
    wide: NDArray[np.float64] = np.subtract(values, mean, dtype=np.float64)
    wide /= scale
    return wide.astype(_floating(values), copy=False)


def _floating(values: NDArray[Any]) -> np.dtype[Any]:
    return values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
