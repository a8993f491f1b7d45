"""Default partitions and numbers of microbatches: exact methods train as one rank does, whatever is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.mpi import import_mpi
from hybridnn.pipeline.partition import uniform_partition
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.training.config import TrainConfig
from hybridnn.training.layout_choice import resolve_layout
from reference.cases import assert_arrays_close

if TYPE_CHECKING:
    from mpi4py import MPI

NETWORKS = ([40, 9, 8, 7, 6, 5, 3], [5, 6, 6, 6, 6, 60, 60, 3])
"""Networks whose work is not in the middle."""


def trained(grid: ProcessGrid, sizes: list[int], **options: Any) -> Trainer:
    random = np.random.default_rng(len(sizes))
    x, y = random.standard_normal((53, sizes[0])), random.integers(0, 3, 53)
    trainer = Trainer(MLP(sizes, "tanh"), SGD(lr=0.1), grid=grid, batch_size=24, dtype="float64", **options)
    trainer.fit(x, y, epochs=2)
    return trainer


@pytest.mark.in_process(ranks=[2, 3])
@pytest.mark.parametrize("sizes", NETWORKS)
def test_defaults_of_exact_methods_train_as_one_rank_does(comm: MPI.Intracomm, sizes: list[int]) -> None:
    alone = trained(ProcessGrid(import_mpi().COMM_SELF), sizes).weights()
    grids = [ProcessGrid(comm, pipeline=comm.size)]
    if comm.size == 3:
        grids += [ProcessGrid(comm, stages=[(2, 1), (1, 1)]), ProcessGrid(comm, stages=[(1, 1), (1, 2)])]
    uneven = 0
    for grid in grids:
        for method in (method for method in METHODS.values() if method.exact):
            trainer = trained(grid, sizes, method=method.name)
            layout = trainer.layout
            uneven += layout.layers != uniform_partition(len(sizes) - 1, len(layout.layers))
            assert_arrays_close(trainer.weights(), alone, f"{layout.describe()}, layers {layout.layers}", 1e-10)
    assert uneven  # else the test would be of equal numbers of layers


def test_the_default_partition_follows_the_work() -> None:
    model = MLP([784, 128, 127, 126, 125, 124, 123, 10])
    for method in ("pipedream", "gpipe", "1f1b"):
        config = TrainConfig(model, batch_size=128, method=method)
        assert resolve_layout(config, ((1, 1),) * 2, 2).layers == (2, 5)
