"""Data splits: the checked training or validation samples, their order in an epoch, and their distribution to ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.agreement import agree
from hybridnn.comm.blocks import block_sizes, block_slice
from hybridnn.data import ArrayRows, Rows, as_rows
from hybridnn.data.rows import as_array, constant_targets, require_finite
from hybridnn.errors import DataError, SettingError, shorten
from hybridnn.nn.kernels import HostArray
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.utils.text import counted

LARGE_INPUT = 1e3  # inputs beyond this size are taken for columns that nobody has standardized
REGRESSION = 'for a regression give y.astype(float), or MLP loss="mse"'

TASKS = MappingProxyType({"cross_entropy": "classification", "mse": "regression", "auto": ""})
"""Task of the data by the loss of the model; empty if the data decide."""

LOOKED_AT = 1000  # samples that are looked at for them
LABELS_READ = 2**20  # labels that are read at a time


def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """Indices of all samples in the order of an epoch (from 1); the same on every rank, 8 bytes per sample.

    The order depends only on the seed and the epoch. The third word of the counter separates this random stream from
    that of the initial weights of layer number `epoch`.
    """
    if not shuffle:
        return np.arange(samples, dtype=np.int64)
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 1, 0])).permutation(samples)


def minibatches(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Consecutive slices of `batch_size` samples; the last may be shorter."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


@dataclass(frozen=True)
class DataSplit:
    """The training samples, or those on which the network is evaluated."""

    rows: Rows | None  # the samples; None on a rank that receives its minibatches from rank 0
    samples: int
    task: str


Fetch = Callable[[Rows | None, NDArray[np.int64], HostArray | None, HostArray | None], None]
"""``fetch(rows, indices, x, y)`` writes this rank's block of the samples `indices` to `x` and `y`, unless None.

All ranks request the same arrays; `rows` are None on a rank that receives its samples.
"""


def make_fetch(grid: ProcessGrid, distribution: str) -> Fetch:
    """The function for a distribution; collective over the grid unless it is ``"local"``."""
    if distribution != "local":
        return ScatterDistributor(grid, broadcast=distribution == "scatter-broadcast").fetch

    def read_own_block(rows: Rows | None, indices: NDArray[np.int64], x: HostArray | None, y: HostArray | None) -> None:
        assert rows is not None
        own = indices if grid.batch == 1 else indices[block_slice(len(indices), grid.batch, grid.batch_rank)]
        rows.take(own, x, y)

    return read_own_block


class ScatterDistributor:
    """Distribution of minibatches from rank 0, which alone reads the samples, by two methods with equal results.

    ``scatter``: rank 0 sends every rank its block of a minibatch, the same one to the ranks of a model group.
    ``scatter-broadcast``, with `broadcast`: rank 0 sends each block once, to the first rank of a model group, which
    broadcasts it within the group. With ``local``, the default, every rank reads its own block.

    They are the first and second method of Laugier et al. 2018, section 7. In a grid without model ranks both are the
    Scatter of Algorithm 1, line 7 (lines counted from ``procedure``). Line 7 of Algorithm 3 is scatter_broadcast: the
    second method by its name, the first one by the text of section 7.
    """

    def __init__(self, grid: ProcessGrid, broadcast: bool) -> None:
        self._grid, self._broadcast = grid, broadcast
        self._buffers: dict[tuple[str, tuple[int, ...], np.dtype[Any]], HostArray] = {}

    def fetch(self, rows: Rows | None, indices: NDArray[np.int64], x: HostArray | None, y: HostArray | None) -> None:
        """See `Fetch`; collective over the grid. `rows` are used on rank 0 only."""
        all_x = all_y = None
        if rows is not None and self._grid.rank == 0:
            all_x = None if x is None else self._buffer(x, len(indices), "x")
            all_y = None if y is None else self._buffer(y, len(indices), "y")
            rows.take(indices, all_x, all_y)
        for minibatch, block in ((all_x, x), (all_y, y)):
            if block is not None:
                self._scatter(minibatch, block, len(indices))

    def _scatter(self, minibatch: HostArray | None, block: HostArray, samples: int) -> None:
        grid = self._grid
        sizes = block_sizes(samples, grid.batch)
        if self._broadcast:
            if grid.model_rank == 0:
                grid.batch_group.scatter_rows(minibatch, block, sizes)
            grid.model_group.broadcast(block)
            return
        if minibatch is not None and grid.model > 1:
            # Every block once per model rank: MPI may not read the same memory twice in one scatter.
            blocks = [minibatch[block_slice(samples, grid.batch, number)] for number in range(grid.batch)]
            repeated = self._buffer(minibatch, samples * grid.model, "repeated")
            minibatch = np.concatenate([part for part in blocks for _ in range(grid.model)], out=repeated)
        grid.world.scatter_rows(minibatch, block, [size for size in sizes for _ in range(grid.model)])

    def _buffer(self, like: HostArray, samples: int, name: str) -> HostArray:
        """A reused buffer for `samples` rows of the width and dtype of `like`."""
        key = (name, like.shape[1:], like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < samples:
            buffer = self._buffers[key] = np.empty((samples, *like.shape[1:]), like.dtype)
        return buffer[:samples]


def balanced_weights(grid: ProcessGrid, split: DataSplit, classes: int, dtype: DTypeLike) -> NDArray[Any]:
    """Samples / (classes that occur * samples of the class), shape (classes,), by rank 0's labels; collective."""
    if split.task != "classification":
        raise SettingError("training.class_weight", "balanced", "needs classes, and this is a regression")
    counts = np.zeros(classes, np.int64)
    if grid.rank == 0 and split.rows is not None:
        for start in range(0, split.samples, LABELS_READ):
            labels = np.empty(min(LABELS_READ, split.samples - start), np.int64)
            split.rows.take(np.arange(start, start + len(labels)), None, labels)
            counts += np.bincount(labels, minlength=classes)
    grid.world.broadcast(counts)
    weights = np.divide(split.samples / np.count_nonzero(counts), counts, out=np.zeros(classes), where=counts > 0)
    return weights.astype(dtype)


def make_split(
    grid: ProcessGrid,
    distribution: str,
    model: MLP,
    x: Any,
    y: NDArray[Any] | None,
    what: str,
    dtype: DTypeLike,
    task: str = "",
) -> DataSplit:
    """Make a data split: check samples and targets, as of `fit`, against the model and between ranks; collective.

    Arrays are converted to `dtype` once. `task` is that of the training, or empty before it. `x` is None on ranks other
    than 0 if the distribution is not ``"local"``. Raises `DataError` on every rank: the data do not fit the model or
    the task, they differ between ranks in the samples that `rows_facts` compares, or rank 0 has none.
    """
    scattered = distribution != "local"
    has_data = not scattered or grid.rank == 0
    rows = agree(grid.world, lambda: _checked_rows(model, x, y, what, dtype, task) if has_data else None)
    facts = np.array([0, 0] if rows is None else [rows.samples, not rows.targets_shape], np.int64)
    if scattered:
        grid.world.broadcast(facts)
    elif grid.size > 1 and rows is not None:
        from hybridnn.training.rank_comparison import require_same_rows

        advice = "; with distribution = 'scatter', rank 0 sends what it holds"
        require_same_rows(grid.world, what, rows, dtype, complete=False, advice=advice)
    samples, classification = int(facts[0]), bool(facts[1])
    return DataSplit(rows if has_data else None, samples, "classification" if classification else "regression")


def as_samples(x: Any, features: int, dtype: DTypeLike) -> NDArray[Any]:
    """Convert `x` to an array of real numbers, finite in `dtype`, shape (samples, features), or raise `DataError`."""
    samples = as_array(x, "x")
    if samples.ndim != 2 or samples.shape[1] != features or samples.dtype.kind not in "biuf":
        raise DataError(
            f"samples of shape {samples.shape} and dtype {samples.dtype}: "
            f"the model takes (samples, {features}) real numbers"
        )
    require_finite(samples, "x", dtype)
    return samples


def _checked_rows(model: MLP, x: Any, y: NDArray[Any] | None, what: str, dtype: DTypeLike, task: str) -> Rows:
    if x is None:
        raise DataError(f"{what}: this rank was given no samples")
    if hasattr(x, "take") and hasattr(x, "targets_shape"):
        from hybridnn.data.preparation import require_finite_rows  # not for arrays

        rows: Rows = x
        require_finite_rows(rows, dtype, what)
    else:
        rows = _rows_of_arrays(model, x, y, what, dtype, task)
    if task and (task == "regression") != bool(rows.targets_shape):
        found = "labels" if task == "regression" else "numbers as targets"
        raise DataError(f"{what}: the samples have {found}, and this training is a {task}")
    if rows.features != model.sizes[0]:
        raise DataError(f"{what} has {rows.features} features, the model's input has {model.sizes[0]}")
    if rows.targets_shape not in ((), (model.sizes[-1],)):
        raise DataError(
            f"{what} has {rows.targets_shape[0]} targets per sample, the model has {model.sizes[-1]} outputs"
        )
    return rows


def _rows_of_arrays(model: MLP, x: Any, y: NDArray[Any] | None, what: str, dtype: DTypeLike, trained: str) -> ArrayRows:
    if y is None:
        hint = ": give x and y as two arguments, and as validation=(x, y)"
        if hasattr(x, "train"):  # as of a `Dataset`
            hint = ": give a part of the data set, such as its train"
        raise DataError(f"{what}: samples came without targets{hint}")
    try:
        given = as_array(y, "y")
        _require_targets_of(trained, model, given)
        checked = as_rows(x, y, TASKS[model.loss] or None, dtype=dtype)  # type: ignore[arg-type]  # a str, not a Literal
    except DataError as error:
        raise DataError(f"{what}: {error}") from error
    if checked.targets_shape:
        return checked
    numbers = f"y has dtype {given.dtype}: {REGRESSION}" if model.sizes[-1] == 1 else ""
    if trained == "regression":
        numbers = f"y has dtype {given.dtype}, that of labels, and this training is a regression: give y.astype(float)"
    if (largest := int(checked.y.max())) >= model.sizes[-1]:
        row = int(checked.y.argmax())
        raise DataError(
            f"{what}: label {largest} in row {row}: the model has {counted(model.sizes[-1], 'output')}, one for each "
            f"class, so labels are 0 to {model.sizes[-1] - 1}{numbers and '; '}{numbers}"
        )
    if trained == "regression":
        raise DataError(f"{what}: {numbers}")
    return checked


def _require_targets_of(trained: str, model: MLP, targets: NDArray[Any]) -> None:
    """Refuse targets whose dtype is not that of their task, and name the conversion.

    `trained` is the task of the training, or empty before it. Raises `DataError`.
    """
    about, shape, task = f"y has dtype {targets.dtype}", targets.shape, trained or TASKS[model.loss]
    if targets.dtype.kind in "biu" and len(shape) == 2 and model.loss != "mse":
        labels = "y.ravel()" if shape[1] == 1 else "y.argmax(axis=1)"
        raise DataError(f"{about} and shape {shape}: labels are (samples,), as {labels}; {REGRESSION}")
    if targets.dtype.kind != "f" or task == "regression" or not targets.size:
        return
    is_one_hot = len(shape) == 2 and shape[1] > 1 and bool((targets.sum(axis=1) == 1).all())
    is_one_hot = is_one_hot and bool(((targets == 0) | (targets == 1)).all())
    are_labels = shape in ((targets.size,), (targets.size, 1)) and bool((targets == np.floor(targets)).all())
    labels = "y.argmax(axis=1)" if is_one_hot else "y.astype(int)" if len(shape) == 1 else "y.ravel().astype(int)"
    if task == "classification":
        how = f"give {labels}" if is_one_hot or are_labels else "another Trainer trains a regression"
        raise DataError(f"{about}, and this training is a classification, which takes integer labels: {how}")
    if is_one_hot:
        raise DataError(f'{about} and one-hot rows: for classes give {labels}; for a regression MLP takes loss="mse"')
    outputs = model.sizes[-1]
    if are_labels and outputs > 1:
        raise DataError(
            f"{about}, one number per sample, and the model has {outputs} outputs: for classes give {labels}"
        )


def without_r2(part: str, task: str, samples: int) -> str:
    """Why a split, on which epochs are evaluated, has no R², as text; empty if it has, or needs none."""
    if task != "regression" or samples != 1:
        return ""
    return f"the {part} data are a single sample, of which there is no R²: it chooses no epoch and ends no training"


def doubts(rows: Rows, test: DataSplit | None, *, is_first: bool) -> Iterator[str]:
    """What makes a training on arrays doubtful, as texts; the inputs are looked at before the first one."""
    if isinstance(rows, ArrayRows) and constant_targets(rows.y).all():
        target = shorten(str(rows.y[0].tolist()), 60)
        yield f"all {rows.samples:,} samples have the target {target}: there is nothing to learn"
    if is_first and isinstance(rows, ArrayRows) and (column := large_column(rows)) is not None:
        advice = "standardize the inputs, or they will hardly be learned: (x - x.mean(axis=0)) / x.std(axis=0)"
        yield f"column {column} of x has inputs beyond {LARGE_INPUT:,.0f}: {advice}"
    if test is not None and (text := without_r2("validation", test.task, test.samples)):
        yield text


def large_column(rows: Rows) -> int | None:
    """The column with the largest inputs of some samples, if these are far larger than a network can use."""
    chosen = np.arange(0, rows.samples, -(-rows.samples // LOOKED_AT))
    sample = np.empty((len(chosen), rows.features))
    rows.take(chosen, sample, None)
    largest = np.abs(sample).max(axis=0)
    column = int(largest.argmax())
    return column if largest[column] > LARGE_INPUT else None
