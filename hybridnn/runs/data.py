"""From a loaded data set to the samples each rank trains on: split, standardized, and held once per node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.agreement import agree
from hybridnn.comm.partition import block_bounds
from hybridnn.datasets import ArrayRows, Dataset, Rows, StandardizedRows, Standardizer, SubsetRows, split
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.node_memory import NodeMemory
from hybridnn.training.sample_digests import require_same_data, sample_blocks

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
    """A data set after splitting, on a rank that has loaded it, with the standardization of rank 0 there."""

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
        On every rank, where loading failed on one, or nodes have not read the same data.
    """
    memory = NodeMemory(grid)
    local = distribution == "local"
    loads = (generated or memory.is_leader) if local else grid.rank == 0

    def prepare() -> _Prepared | None:
        if not loads:
            return None
        data = load()
        digest = b"" if generated else _digest(data)  # on every node meanwhile, as the others wait for rank 0's
        train, test = (data.train, data.test) if data.test is not None else split(data.train, test_fraction, seed)
        standardizer = _statistics(train, generated) if standardize and grid.rank == 0 else None
        return _Prepared(train, test, data.outputs, standardizer, digest, data.inputs, data.task_reason)

    prepared = agree(grid.world, prepare)
    facts = np.array(prepared.facts() if prepared is not None else [0] * 6, np.int64)
    if local:
        of_leader = facts.copy()
        grid.node_group.broadcast(of_leader)
        facts = of_leader if prepared is None else facts
        require_same_data(grid.world, "data", lambda: _named_facts(facts))
    else:
        grid.world.broadcast(facts)
    train_samples, test_samples, features, outputs, regression, digest = (int(fact) for fact in facts)
    train = None if prepared is None else prepared.train
    test = None if prepared is None else prepared.test
    standardizer = None if prepared is None else prepared.standardizer
    if standardize:
        applied = _of_first_rank(grid, standardizer, features, outputs * regression)
        train, test = (None if part is None else StandardizedRows(part, applied) for part in (train, test))
    numbers = (train_samples + test_samples) * (features + outputs * regression)
    if local and not (generated and numbers * np.dtype(dtype).itemsize > SHARED_BYTES):
        targets = (outputs,) if regression else ()
        train = _share(train, (train_samples, features), targets, dtype, memory, grid, everyone=generated)
        test = _share(test, (test_samples, features), targets, dtype, memory, grid, everyone=generated)
        memory.publish()
    task = "regression" if regression else "classification"
    named = "" if generated else f"{digest:0{2 * DIGEST_BYTES}x}"
    columns, reason = (prepared.inputs, prepared.task_reason) if prepared is not None and grid.rank == 0 else ((), "")
    sizes = train_samples, test_samples, features, outputs
    return PlacedData(train, test, *sizes, task, standardizer, memory, named, columns, reason)


def _statistics(train: Rows, generated: bool) -> Standardizer:
    looked_at = train
    enough = max(COPY_ROWS, STATISTICS_NUMBERS // train.features)
    if generated and train.samples > enough:
        looked_at = SubsetRows(train, np.arange(enough))
    return Standardizer.fit(looked_at)


def _of_first_rank(grid: ProcessGrid, own: Standardizer | None, features: int, targets: int) -> Standardizer:
    """The standardization of rank 0 on every rank; processors of another kind sum in another order."""
    table = np.zeros((2, features + targets))
    if own is not None:
        arrays = own.to_arrays()
        for row, kind in zip(table, ("mean", "scale"), strict=True):
            row[...] = np.concatenate([arrays[name] for name in (f"x_{kind}", f"y_{kind}") if name in arrays])
    grid.world.broadcast(table)
    mean, scale = table
    of_targets = (mean[features:], scale[features:]) if targets else ()
    return Standardizer(mean[:features], scale[:features], *of_targets)


def _digest(data: Dataset) -> bytes:
    """Beginning of the SHA-256 of all samples, as numbers of float64 and labels of int64."""
    sums = hashlib.sha256()
    for rows in (data.train, *(() if data.test is None else (data.test,))):
        for x, y in sample_blocks(rows, np.arange(rows.samples), np.float64):
            sums.update(x.data)
            sums.update(y.data)
    return sums.digest()[:DIGEST_BYTES]


def _named_facts(facts: NDArray[np.int64]) -> dict[str, str]:
    """Those of `_Prepared`, by name."""
    names = "training samples", "test samples", "features", "outputs", "regression", "digest of all samples"
    return {name: f"{fact:x}" if "digest" in name else str(fact) for name, fact in zip(names, facts, strict=True)}


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
