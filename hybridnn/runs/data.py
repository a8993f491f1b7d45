"""Data of a run, placed for the ranks: split, standardized, and held once per node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.agreement import agree
from hybridnn.comm.blocks import block_bounds
from hybridnn.data import (
    ArrayRows,
    Dataset,
    Rows,
    StandardizedRows,
    Standardizer,
    SubsetRows,
    TableEncoding,
    split_dataset,
)
from hybridnn.data.preparation import require_finite_rows
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.nodes import NodeMemory
from hybridnn.training.data_split import LARGE_INPUT, large_column, without_r2
from hybridnn.training.rank_comparison import require_same_data, sample_blocks
from hybridnn.utils.text import column_list

SHARED_BYTES = 2**30
"""Generated data up to this size are written once into the node's memory; larger ones are generated when used."""

STATISTICS_ELEMENTS = 2**22
"""Input elements of generated data from which statistics are taken: samples are independent draws, so some suffice."""

COPY_ROWS = 4096  # samples that are copied at a time
DIGEST_BYTES = 7  # bytes of a digest: as many as an int64 can hold without its sign


@dataclass(frozen=True)
class PlacedData:
    """Samples where the ranks can use them; sizes are known on every rank."""

    # None on ranks that receive their minibatches from rank 0
    train: Rows | None
    validation: Rows | None
    test: Rows | None
    train_samples: int
    validation_samples: int
    test_samples: int
    features: int
    outputs: int
    task: str  # one of "classification", "regression"
    standardizer: Standardizer | None  # if the data were standardized
    memory: NodeMemory  # holds shared samples; to be freed after the last use
    digest: str  # first bytes of the SHA-256 of all samples as loaded, in hexadecimal; empty for generated data
    encoding: TableEncoding | None = None  # on rank 0, of the columns of a table
    task_reason: str = ""  # on rank 0, what in a user's file decided the task
    warnings: tuple[str, ...] = ()  # on rank 0, what in it is probably not as the user meant it

    @property
    def evaluated(self) -> tuple[str, Rows | None, int]:
        """The split on which epochs are evaluated: its name, samples and their number, 0 for none."""
        if self.validation_samples:
            return "validation", self.validation, self.validation_samples
        return "test", self.test, self.test_samples


class _Facts(NamedTuple):
    """Facts about the data that every rank needs, as integers."""

    train_samples: int = 0
    validation_samples: int = 0
    test_samples: int = 0
    features: int = 0
    outputs: int = 0
    regression: int = 0
    digest: int = 0


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
    validation_fraction: float = 0.0,
) -> PlacedData:
    """Load the data on the ranks that need it and place the samples; collective.

    With ``local``, one rank per node reads files, and the samples are held once per node. Generated data, which `load`
    describes without cost, are written by all ranks of the node together, or, if they are large, generated when used.
    Otherwise rank 0 alone loads.

    With `standardize`, inputs, and the targets of regression, are shifted and scaled by statistics of the training
    samples. `test_fraction` of the samples are the test split of a data set that has none, and `validation_fraction` of
    the others the validation split; `seed` chooses both.

    Raises `HybridnnError` on every rank: loading failed on one, or nodes have read different data.
    """
    memory = NodeMemory(grid.node_group, "data.distribution = 'scatter'")
    is_local = distribution == "local"
    loads = (generated or memory.is_leader) if is_local else grid.rank == 0
    own_facts = _Facts()
    parts: list[Rows | None] = [None, None, None]

    def load_and_split() -> Dataset | None:
        nonlocal own_facts, parts
        if not loads:
            return None
        data = load()
        digest = b"" if generated else _digest(data)  # on every node, as the others would wait for rank 0
        train, validation, test = split_dataset(data, test_fraction, validation_fraction, seed).values()
        parts = [train, validation, test]
        sizes = train.samples, validation.samples, test.samples, train.features, data.outputs
        own_facts = _Facts(*sizes, int(bool(train.targets_shape)), int.from_bytes(digest, "big"))
        found = _untrained_classes(data, train, test), "" if standardize or generated else _large_inputs(data, train)
        return replace(data, warnings=(*data.warnings, *(f"{data.name}: {text}" for text in found if text)))

    loaded = agree(grid.world, load_and_split, names_nodes=True)
    facts = _share_facts(own_facts, grid, is_local)
    targets = facts.outputs if facts.regression else 0
    standardizer = None
    if standardize:
        standardizer = _fit_standardizer(grid, parts[0], generated, facts.features, targets)
        parts = [None if rows is None else StandardizedRows(rows, standardizer) for rows in parts]

    def check() -> None:
        for rows in parts:
            if loaded is not None and rows is not None and not generated:
                require_finite_rows(rows, dtype, loaded.name)

    agree(grid.world, check)
    samples = facts.train_samples, facts.validation_samples, facts.test_samples
    elements = sum(samples) * (facts.features + targets)
    if is_local and not (generated and elements * np.dtype(dtype).itemsize > SHARED_BYTES):
        targets_shape = (targets,) if targets else ()
        parts = [
            _copy_to_node(rows, (count, facts.features), targets_shape, dtype, memory, grid, all_ranks=generated)
            for rows, count in zip(parts, samples, strict=True)
        ]
        memory.publish()
    train, validation, test = parts
    described, warnings = loaded if grid.rank == 0 else None, list[str]()
    if described is not None:
        part, count = ("validation", samples[1]) if samples[1] else ("test", samples[2])
        text = without_r2(part, described.task, count)
        warnings += [*described.warnings, *[f"{described.name}: {text}"] * bool(text)]
    return PlacedData(
        train,
        validation,
        test,
        *samples,
        facts.features,
        facts.outputs,
        "regression" if facts.regression else "classification",
        standardizer,
        memory,
        "" if generated else f"{facts.digest:0{2 * DIGEST_BYTES}x}",
        None if described is None else described.encoding,
        "" if described is None else described.task_reason,
        tuple(warnings),
    )


def _untrained_classes(data: Dataset, train: Rows, test: Rows) -> str:
    """Classes of a user's data that only test samples have, as text; empty if none."""
    if not data.task_reason or data.task != "classification":
        return ""
    found = []
    for rows in (train, test):
        labels = np.empty(rows.samples, np.int64)
        rows.take(np.arange(rows.samples), None, labels)
        found.append(np.unique(labels))
    names = [data.class_name(label) for label in np.setdiff1d(found[1], found[0]).tolist()]
    return f"no training sample, only test samples, of class {column_list(names)}" if names else ""


def _large_inputs(data: Dataset, train: Rows) -> str:
    """That a column of inputs has a scale that needs standardization, as text; empty if not."""
    column = large_column(train)
    if column is None:
        return ""
    name = data.encoding.feature_columns[column] if data.encoding else f"column {column}"
    return f"{name} has inputs beyond {LARGE_INPUT:,.0f}, which are hardly learned with data.standardize = false"


def _share_facts(own: _Facts, grid: ProcessGrid, is_local: bool) -> _Facts:
    """The facts on every rank: from rank 0, or with local data from the leader of the node, compared between nodes."""
    received = np.array(own, np.int64)
    (grid.node_group if is_local else grid.world).broadcast(received)
    if not is_local:
        return _Facts(*received.tolist())
    facts = own if own.train_samples else _Facts(*received.tolist())
    named = {name.replace("train_", "training ").replace("_", " "): str(fact) for name, fact in facts._asdict().items()}
    named["digest of all samples"] = f"{int(named.pop('digest')):x}"
    require_same_data(grid.world, "data", lambda: named)
    return facts


def _fit_standardizer(
    grid: ProcessGrid, train: Rows | None, generated: bool, features: int, targets: int
) -> Standardizer:
    """The standardizer of rank 0 on every rank: on other processors sums may differ in their last bits."""
    table = np.zeros((2, features + targets))

    def fit() -> None:
        if grid.rank != 0 or train is None:
            return
        samples = max(COPY_ROWS, STATISTICS_ELEMENTS // train.features)
        few = generated and train.samples > samples
        arrays = Standardizer.fit(SubsetRows(train, np.arange(samples)) if few else train).to_arrays()
        for row, kind in zip(table, ("mean", "scale"), strict=True):
            row[...] = np.concatenate([arrays[name] for name in (f"x_{kind}", f"y_{kind}") if name in arrays])

    agree(grid.world, fit)
    grid.world.broadcast(table)
    mean, scale = table
    of_targets = (mean[features:], scale[features:]) if targets else ()
    return Standardizer(mean[:features], scale[:features], *of_targets)


def _digest(data: Dataset) -> bytes:
    """First bytes of the SHA-256 of all samples, inputs and targets as float64 and labels as int64."""
    sha256 = hashlib.sha256()
    for rows in (data.train, *(() if data.test is None else (data.test,))):
        for x, y in sample_blocks(rows, np.arange(rows.samples), np.float64):
            sha256.update(x.data)
            sha256.update(y.data)
    return sha256.digest()[:DIGEST_BYTES]


def _copy_to_node(
    rows: Rows | None,
    shape: tuple[int, int],
    targets_shape: tuple[int, ...],
    dtype: DTypeLike,
    memory: NodeMemory,
    grid: ProcessGrid,
    *,
    all_ranks: bool,
) -> ArrayRows:
    """One copy of `rows` per node, written by the leader, or by all ranks a block each."""
    x = memory.allocate(shape, dtype)
    y = memory.allocate((shape[0], *targets_shape), dtype if targets_shape else np.int64)
    if rows is not None and (all_ranks or memory.is_leader):
        writers, writer = (grid.node_group.size, grid.node_group.rank) if all_ranks else (1, 0)
        first, end = block_bounds(shape[0], writers, writer)
        for start in range(first, end, COPY_ROWS):
            stop = min(start + COPY_ROWS, end)
            rows.take(np.arange(start, stop), x[start:stop], y[start:stop])
    return ArrayRows(x, y)
