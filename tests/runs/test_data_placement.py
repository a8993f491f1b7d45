"""Data on the ranks: split, standardized and unchanged; large generated data are never held whole."""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

from hybridnn.data import Dataset, Rows, SyntheticRows, SyntheticSpec, load_dataset, split
from hybridnn.errors import DataError, HybridnnError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs import data as data_placement
from hybridnn.runs.data import PlacedData, place_data
from reference.ranks import replace_on_this_rank

RANKS = [1, 3]


def everything(rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.empty((rows.samples, rows.features))
    y = np.empty((rows.samples, *rows.targets_shape), np.float64 if rows.targets_shape else np.int64)
    rows.take(np.arange(rows.samples), x, y)
    return x, y


def place(grid: ProcessGrid, data: Dataset, distribution: str, **changes: Any) -> PlacedData:
    options: dict[str, Any] = {"generated": False, "standardize": True, "test_fraction": 0.25, "seed": 3}
    options |= {"dtype": "float64"} | changes
    return place_data(lambda: data, grid, distribution=distribution, **options)


@pytest.mark.in_process(ranks=RANKS)
def test_labels_stay_labels_and_raw_data_stay_raw(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    digits = load_dataset("digits")
    placed = place(grid, digits, "local", standardize=False, dtype="float32")
    assert placed.train is not None
    x, y = everything(placed.train)
    whole_x, whole_y = everything(split(digits.train, 0.25, 3)[0])
    np.testing.assert_allclose(x, whole_x, rtol=1e-6)
    np.testing.assert_array_equal(y, whole_y)
    placed.memory.free()


@pytest.mark.in_process(ranks=RANKS)
@pytest.mark.parametrize("shared_bytes", [2**30, 0])
def test_generated_data_are_the_same_shared_or_made_on_demand(comm, shared_bytes, monkeypatch) -> None:
    monkeypatch.setattr(data_placement, "SHARED_BYTES", shared_bytes)
    taken: list[int] = []
    take = SyntheticRows.take

    def counted(self: SyntheticRows, indices: Any, x: Any, y: Any) -> None:
        taken.append(len(indices))
        take(self, indices, x, y)

    replace_on_this_rank(monkeypatch, SyntheticRows, "take", counted)
    data = load_dataset("synthetic", rows=500, synthetic=SyntheticSpec(test_samples=60, inputs=3))
    expected = everything(data.train)
    taken.clear()
    placed = place(ProcessGrid(comm), data, "local", generated=True, standardize=False)
    # Shared: every rank makes its shard. On demand: nothing is made before it is asked for.
    shards = sum(taken)
    assert shards == 0 if shared_bytes == 0 else shards <= 560 // comm.size + 2
    assert placed.train is not None
    for made, wanted in zip(everything(placed.train), expected, strict=True):
        np.testing.assert_array_equal(made, wanted)
    placed.memory.free()


@pytest.mark.in_process(ranks=[3])
def test_a_loader_that_fails_on_one_rank_fails_on_all(comm: MPI.Intracomm) -> None:
    def load() -> Dataset:
        raise DataError("digits.npz: cannot be read")

    grid, options = ProcessGrid(comm), {"standardize": True, "test_fraction": 0.2, "seed": 0, "dtype": "float32"}
    for distribution in ("local", "scatter"):
        with pytest.raises(HybridnnError, match=r"^digits\.npz: cannot be read$"):
            place_data(load, grid, generated=False, distribution=distribution, **options)  # type: ignore[arg-type]
