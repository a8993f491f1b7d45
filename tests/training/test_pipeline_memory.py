"""Memory of pipelines: reported bytes against Python's tracer."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer

SIZES = (400,) * 9
BATCH = 24


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    shape = (BATCH * 4, SIZES[0])
    return random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32)


def trainer_of(comm: MPI.Intracomm, **pipelining: object) -> Trainer:
    grid = ProcessGrid(comm, pipeline=comm.size, batch=1)
    return Trainer(MLP(SIZES), SGD(1e-3), grid=grid, batch_size=BATCH, **pipelining)


@pytest.mark.mpi(ranks=[2])
def test_the_reported_bytes_are_those_that_were_allocated(comm: MPI.Intracomm) -> None:
    x, y = data()
    trainer_of(comm).fit(x, y, epochs=1)  # imports modules and fills caches, which is not counted
    for pipelining in (
        {"method": "pipedream"},
        {"method": "spectrain"},
        {"method": "gpipe", "microbatches": 4},
        {"method": "1f1b", "microbatches": 4, "weight_grad": "per-microbatch"},
        {"method": "zb-h1", "microbatches": 4},
        {"method": "interleaved", "microbatches": 4},
        {"method": "fr"},
    ):
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        trainer = trainer_of(comm, **pipelining)
        trainer.fit(x, y, epochs=1)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert trainer.memory_bytes == pytest.approx(after - before, rel=0.05), pipelining
        del trainer
