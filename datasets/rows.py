"""Interface of samples, which may be held in arrays, derived from other samples, or generated on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .info import Task

__all__ = ["ArrayRows", "Dataset", "PixelRows", "Rows", "RowsView", "SubsetRows", "check_indices"]


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
    def samples(self) -> int:
        """Number of samples."""

    @property
    def features(self) -> int:
        """Inputs per sample."""

    @property
    def targets_shape(self) -> tuple[int, ...]:
        """Shape of one target."""

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


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Samples held in arrays; `hybridnn.datasets.as_rows` checks arrays before it makes one.

    Parameters
    ----------
    x : ndarray, shape (samples, features)
        Inputs; copied only if not C-contiguous.
    y : ndarray, shape (samples,) or (samples, outputs)
        Integer labels or regression targets.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __post_init__(self) -> None:
        """Make both arrays contiguous: ``np.take`` would otherwise copy each of them in every call."""
        object.__setattr__(self, "x", np.ascontiguousarray(self.x))
        object.__setattr__(self, "y", np.ascontiguousarray(self.y))

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.x)

    @property
    def features(self) -> int:
        """Inputs per sample."""
        return int(self.x.shape[1])

    @property
    def targets_shape(self) -> tuple[int, ...]:
        """Shape of one target."""
        return self.y.shape[1:]

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`."""
        check_indices(indices, self.samples)
        _gather(self.x, indices, x)
        _gather(self.y, indices, y)


@dataclass(frozen=True, eq=False)
class PixelRows:
    """Images held as bytes and scaled to [0, 1] when they are taken.

    Parameters
    ----------
    pixels : ndarray of uint8, shape (samples, features)
        Grey values or colour components.
    labels : ndarray of integers, shape (samples,)
        Classes.
    white : int
        Value that is scaled to 1.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[Any]
    white: int

    @property
    def samples(self) -> int:
        """Number of images."""
        return len(self.pixels)

    @property
    def features(self) -> int:
        """Pixel values per image."""
        return int(self.pixels.shape[1])

    @property
    def targets_shape(self) -> tuple[int, ...]:
        """Shape of one target: that of an integer label."""
        return ()

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`; `x` must be of a floating dtype."""
        check_indices(indices, self.samples)
        if x is not None:
            np.divide(self.pixels[indices], x.dtype.type(self.white), out=x)
        _gather(self.labels, indices, y)


@dataclass(frozen=True, eq=False)
class RowsView:
    """Base of rows that are derived from other rows, of the same shapes.

    Parameters
    ----------
    rows : Rows
        Underlying samples.
    """

    rows: Rows

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


@dataclass(frozen=True, eq=False)
class SubsetRows(RowsView):
    """A selection of other rows, without a copy.

    Parameters
    ----------
    rows : Rows
        All samples.
    chosen : ndarray of int64, shape (n,)
        Indices into `rows`.
    """

    chosen: NDArray[np.int64]

    @property
    def samples(self) -> int:
        """Number of chosen samples."""
        return self.chosen.size

    def take(self, indices: NDArray[np.int64], x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
        """See `Rows.take`."""
        check_indices(indices, self.samples)
        self.rows.take(self.chosen[indices], x, y)


@dataclass(frozen=True)
class Dataset:
    """A data set: its data splits and the shapes of its samples.

    Parameters
    ----------
    name : str
        Name in the catalogue, or of the user's file.
    task : {'classification', 'regression'}
        Kind of the targets.
    features, outputs : int
        Inputs per sample; classes or target columns.
    train, test : Rows
        Data splits; `test` is None if the data set has no test split.
    inputs, ignored : tuple of str
        Columns of a ``.csv`` file: those that are the features, in order, and the unused ones.
    task_reason : str
        Property of a user's file from which the task follows.
    """

    name: str
    task: Task
    features: int
    outputs: int
    train: Rows
    test: Rows | None
    inputs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    task_reason: str = ""
