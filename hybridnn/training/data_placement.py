"""From a loaded data set to the samples each rank trains on: split, standardized, and held once per node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.agreement import agree
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.node_memory import NodeMemory
from hybridnn.comm.partition import block_bounds
from hybridnn.datasets import ArrayRows, Dataset, Rows, Standardizer, SubsetRows, split, standardized

__all__ = ["SHARED_BYTES", "PlacedData", "place_data"]

SHARED_BYTES = 2**30
"""Generated data up to this size are written once into the node's memory; larger ones are generated when used."""

STATISTICS_NUMBERS = 2**22
"""Inputs of generated data that the standardization looks at: they are independent draws, so a sample is enough."""

COPY_ROWS = 4096

DIGEST_BYTES = 7
"""Of a data set's digest: what an int64 can take."""


@dataclass(frozen=True)
class PlacedData:
    """Data where the ranks can use them.

    Attributes
    ----------
    train, test : Rows or None
        None on ranks that receive their minibatches from rank 0.
    train_samples, test_samples, features, outputs : int
        Sizes, known to every rank.
    task : {"classification", "regression"}
    standardizer : Standardizer or None
        On rank 0, where data were standardized.
    inputs : tuple of str
        On rank 0, names of the input columns of a ``.csv`` file.
    task_reason : str
        On rank 0, what of a user's file made it this task.
    memory : NodeMemory
        Holds shared samples; to be freed after the last use.
    digest : str
        Beginning of the SHA-256 of all samples as they were loaded, in hexadecimal; empty for generated data.
    """

    train: Rows | None
    test: Rows | None
    train_samples: int
    test_samples: int
    features: int
    outputs: int
    task: str
    standardizer: Standardizer | None
    memory: NodeMemory
    digest: str
    inputs: tuple[str, ...] = ()
    task_reason: str = ""


@dataclass(frozen=True)
class _Prepared:
    """A data set after splitting and standardizing, on a rank that has loaded it."""

    train: Rows
    test: Rows
    outputs: int
    standardizer: Standardizer | None
    digest: bytes
    inputs: tuple[str, ...]
    task_reason: str

    def facts(self) -> list[int]:
        regression = bool(self.train.targets_shape)
        digest = int.from_bytes(self.digest, "big")
        return [self.train.samples, self.test.samples, self.train.features, self.outputs, regression, digest]


def place_data(
    load: Callable[[], Dataset],
    grid: ProcessGrid,
    *,
    generated: bool,
    distribution: str,
    standardize: bool,
    test_fraction: float,
    seed: int,
    dtype: DTypeLike,
) -> PlacedData:
    """Load where it is needed and place the samples; collective.

    With ``local``, files are read by one rank per node and held once per node; generated data are made by all ranks
    of the node together, or, where they are large, sample by sample as they are used. Otherwise rank 0 alone loads.

    Parameters
    ----------
    load : callable
        Returns the data set; called only on ranks that need it.
    generated : bool
        Whether `load` returns a recipe that costs nothing to hold.
    standardize : bool
        Shift and scale inputs, and the targets of regression, by statistics of the training samples.
    test_fraction : float
        Share of the samples set aside where the data set has no test part.
    seed : int
        Of that split.

    Raises
    ------
    HybridnnError
        On every rank, where loading failed on one.
    """
    memory = NodeMemory(grid)
    local = distribution == "local"
    loads = (generated or memory.is_leader) if local else grid.rank == 0

    def prepare() -> _Prepared | None:
        if not loads:
            return None
        data = load()
        digest = _digest(data) if grid.rank == 0 and not generated else b""
        return _prepare(data, digest, generated, standardize, test_fraction, seed)

    prepared = agree(grid.world, prepare)
    facts = np.array(prepared.facts() if prepared is not None else [0] * 6, np.int64)
    grid.world.broadcast(facts)
    train_samples, test_samples, features, outputs, regression, digest = (int(fact) for fact in facts)
    train = None if prepared is None else prepared.train
    test = None if prepared is None else prepared.test
    numbers = (train_samples + test_samples) * (features + outputs * regression)
    if local and not (generated and numbers * np.dtype(dtype).itemsize > SHARED_BYTES):
        targets = (outputs,) if regression else ()
        train = _share(train, (train_samples, features), targets, dtype, memory, grid, everyone=generated)
        test = _share(test, (test_samples, features), targets, dtype, memory, grid, everyone=generated)
        memory.publish()
    standardizer = prepared.standardizer if prepared is not None and grid.rank == 0 else None
    task = "regression" if regression else "classification"
    named = "" if generated else f"{digest:0{2 * DIGEST_BYTES}x}"
    columns, reason = (prepared.inputs, prepared.task_reason) if prepared is not None and grid.rank == 0 else ((), "")
    sizes = train_samples, test_samples, features, outputs
    return PlacedData(train, test, *sizes, task, standardizer, memory, named, columns, reason)


def _prepare(
    data: Dataset, digest: bytes, generated: bool, standardize: bool, test_fraction: float, seed: int
) -> _Prepared:
    train, test = (data.train, data.test) if data.test is not None else split(data.train, test_fraction, seed)
    standardizer = None
    if standardize:
        looked_at: Rows = train
        enough = max(COPY_ROWS, STATISTICS_NUMBERS // data.features)
        if generated and train.samples > enough:
            looked_at = SubsetRows(train, np.arange(enough))
        standardizer = Standardizer.fit(looked_at)
        train, test = standardized(train, standardizer), standardized(test, standardizer)
    return _Prepared(train, test, data.outputs, standardizer, digest, data.inputs, data.task_reason)


def _digest(data: Dataset) -> bytes:
    """Beginning of the SHA-256 of all samples, as numbers of float64 and labels of int64."""
    sums = hashlib.sha256()
    for rows in (data.train, *(() if data.test is None else (data.test,))):
        at_once = min(COPY_ROWS, rows.samples)
        x = np.empty((at_once, rows.features))
        y = np.empty((at_once, *rows.targets_shape), np.float64 if rows.targets_shape else np.int64)
        for start in range(0, rows.samples, COPY_ROWS):
            n = min(COPY_ROWS, rows.samples - start)
            rows.take(np.arange(start, start + n), x[:n], y[:n])
            sums.update(x[:n].tobytes())
            sums.update(y[:n].tobytes())
    return sums.digest()[:DIGEST_BYTES]


def _share(
    rows: Rows | None,
    shape: tuple[int, int],
    targets: tuple[int, ...],
    dtype: DTypeLike,
    memory: NodeMemory,
    grid: ProcessGrid,
    *,
    everyone: bool,
) -> ArrayRows:
    """One copy of `rows` for the node, written by its leader or by all its ranks, a shard each."""
    x = memory.allocate(shape, dtype)
    y = memory.allocate((shape[0], *targets), dtype if targets else np.int64)
    if rows is not None and (everyone or memory.is_leader):
        writers, writer = (grid.node_group.size, grid.node_group.rank) if everyone else (1, 0)
        first, end = block_bounds(shape[0], writers, writer)
        for start in range(first, end, COPY_ROWS):
            stop = min(start + COPY_ROWS, end)
            rows.take(np.arange(start, stop), x[start:stop], y[start:stop])
    return ArrayRows(x, y)
