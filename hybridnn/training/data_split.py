"""One part of the data, training or test: checked, and described on ranks that hold none of it.

The order of the samples, from the seed and the epoch alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.agreement import agree
from hybridnn.datasets import ArrayRows, Rows, as_rows
from hybridnn.errors import DataError
from hybridnn.kernels.backend import Array
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.sample_digests import require_same_data, row_details, rows_facts


def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """Indices of all samples in the order of an epoch (from 1); the same on every rank, 8 bytes per sample.

    The third word of the counter keeps these draws apart from the initial weights of layer number `epoch`.
    """
    if not shuffle:
        return np.arange(samples, dtype=np.int64)
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 1, 0])).permutation(samples)


def minibatches(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Consecutive slices of `batch_size` samples; the last may be shorter."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


OTHER_DISTRIBUTION = "scatter"
"""That of ranks which do not hold data themselves."""


@dataclass(frozen=True)
class DeviceSamples:
    """All samples of a part on this rank's device.

    Attributes
    ----------
    x : array, shape (samples, features), or None
    y : array, shape (samples,) or (samples, outputs), or None
        None where this rank's layers do not read them.
    """

    x: Array | None
    y: Array | None


@dataclass(frozen=True)
class DataSplit:
    """Samples of one part.

    Attributes
    ----------
    rows : Rows or None
        The samples; None on a rank that receives its minibatches from rank 0.
    samples : int
        Number of samples.
    task : {"classification", "regression"}
    on_device : DeviceSamples or None
        None where the host reads the samples of every minibatch.
    """

    rows: Rows | None
    samples: int
    task: str
    on_device: DeviceSamples | None = None


def make_part(
    grid: ProcessGrid, distribution: str, model: MLP, x: Any, y: NDArray[Any] | None, what: str, dtype: DTypeLike
) -> DataSplit:
    """Check data against the model on the ranks that hold them, and tell the others; collective.

    Parameters
    ----------
    x : Rows, or array_like of shape (samples, features), or None
        None on ranks other than 0 where the distribution sends minibatches.
    y : ndarray, shape (samples,) or (samples, outputs), or None
        None with rows, which bring their targets.
    what : str
        Named in messages.
    dtype : dtype
        Arrays are converted to it once.

    Raises
    ------
    DataError
        The same on every rank: the data do not fit the model, the ranks do not hold the same, as far as `rows_facts`
        looks at it (all of it with the grid's `check_collectives`), or rank 0 holds none.
    """
    sent = distribution != "local"
    holds = not sent or grid.rank == 0
    rows = agree(grid.world, lambda: _checked_rows(model, x, y, what, dtype) if holds else None)
    facts = np.array([0, 0] if rows is None else [rows.samples, not rows.targets_shape], np.int64)
    if sent:
        grid.world.broadcast(facts)
    elif rows is not None:
        require_same_data(
            grid.world,
            what,
            partial(rows_facts, rows, dtype, whole=grid.check_collectives),
            partial(row_details, rows, dtype),
            f"; with distribution = {OTHER_DISTRIBUTION!r}, rank 0 sends what it holds",
        )
    samples, classification = int(facts[0]), bool(facts[1])
    return DataSplit(rows if holds else None, samples, "classification" if classification else "regression")


def holds_validation(grid: ProcessGrid, distribution: str, given: bool) -> bool:
    """Whether there is a test part: as rank 0 says where it sends minibatches, else as all ranks must say alike.

    Raises
    ------
    DataError
        On every rank, where only some were given validation samples.
    """
    answer = np.array([given], np.int64)
    if distribution != "local":
        grid.world.broadcast(answer)
    else:
        require_same_data(grid.world, "test data", lambda: {"validation samples": "some" if given else "none"})
    return bool(answer[0])


def as_samples(x: Any, features: int) -> NDArray[Any]:
    """`x` as an array of shape (samples, features) of real numbers.

    Raises
    ------
    DataError
        If it is none.
    """
    samples = np.asarray(x)
    if samples.ndim != 2 or samples.shape[1] != features or samples.dtype.kind not in "biuf":
        raise DataError(
            f"samples of shape {samples.shape} and dtype {samples.dtype}: "
            f"the model takes (samples, {features}) real numbers"
        )
    return samples


def _checked_rows(model: MLP, x: Any, y: NDArray[Any] | None, what: str, dtype: DTypeLike) -> Rows:
    if x is None:
        raise DataError(f"{what}: this rank was given no samples")
    if hasattr(x, "take") and hasattr(x, "targets_shape"):
        rows: Rows = x
    else:
        rows = _rows_of_arrays(model, x, y, what, dtype)
    if rows.features != model.sizes[0]:
        raise DataError(f"{what} has {rows.features} features, the model's input has {model.sizes[0]}")
    if rows.targets_shape not in ((), (model.sizes[-1],)):
        raise DataError(
            f"{what} has {rows.targets_shape[0]} targets per sample, the model has {model.sizes[-1]} outputs"
        )
    return rows


def _rows_of_arrays(model: MLP, x: Any, y: NDArray[Any] | None, what: str, dtype: DTypeLike) -> ArrayRows:
    if y is None:
        raise DataError(f"{what}: samples came without targets")
    task = {"cross_entropy": "classification", "mse": "regression", "auto": None}[model.loss]
    try:
        checked = as_rows(x, y, task, classes=None)  # type: ignore[arg-type]  # the literals are the loss's own
    except DataError as error:
        raise DataError(f"{what}: {error}") from error
    targets = checked.y
    if checked.targets_shape:
        targets = targets.astype(dtype, copy=False)
    elif (largest := int(targets.max())) >= model.sizes[-1]:
        row = int(targets.argmax())
        raise DataError(
            f"{what}: label {largest} in row {row}: the model has {model.sizes[-1]} outputs, labels are 0 to "
            f"{model.sizes[-1] - 1}"
        )
    return ArrayRows(checked.x.astype(dtype, copy=False), targets)
