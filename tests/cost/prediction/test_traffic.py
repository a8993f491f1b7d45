"""Predicted bytes equal the bytes that a training sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import predict
from hybridnn.pipeline.schedules.methods import METHODS
from reference.machines import make_machine
from reference.ranks import on_nodes

SIZES = [6, 12, 12, 12, 12, 12, 12, 12, 4]
NARROW = [6, 12, 2, 3, 12, 3, 2, 1]
BATCH_SIZE, STEPS = 24, 4


def check(
    comm: MPI.Intracomm, axes: dict[str, Any], *, residual: bool = False, sizes: list[int] = SIZES, **settings: Any
) -> int:
    """Train, and compare the bytes that all ranks have sent; returns them."""
    model = MLP(sizes, "relu", residual=residual)
    grid = ProcessGrid(comm, **axes)
    trainer = Trainer(model, SGD(lr=1e-3), grid=grid, batch_size=BATCH_SIZE, log_every=10**6, **settings)
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((STEPS * BATCH_SIZE, width)) for width in (sizes[0], sizes[-1]))
    sent = trainer.fit(x, y, epochs=1).epochs[-1].bytes_sent
    way = settings.get("distribution", "local")
    work = Workload(model, STEPS * BATCH_SIZE, BATCH_SIZE, classification=False, distribution=way)
    expected = predict(work, trainer.layout, make_machine()).bytes_per_step * STEPS
    if not trainer.layout.exact:  # the epoch ends with one broadcast of all its losses
        expected += 8 * STEPS * (comm.size - 1)
    # Each collective rounds down.
    assert sent == pytest.approx(expected, rel=0.01), (axes, settings)
    return sent


@pytest.mark.in_process(ranks=[2])
def test_two_ranks_send_what_is_predicted(comm: MPI.Intracomm) -> None:
    check(comm, {"batch": 2})
    check(comm, {"batch": 2}, shared_replicas=False)
    check(comm, {"batch": 2}, shared_replicas=False, overlap=False)
    for split in ("columns", "alternating"):
        for residual in (False, True):
            check(comm, {"batch": 1, "model": 2}, residual=residual, model_split=split)
    for method in METHODS:
        check(comm, {"pipeline": 2, "batch": 1}, method=method)


@pytest.mark.in_process(ranks=[4])
def test_four_ranks_send_what_is_predicted(comm: MPI.Intracomm) -> None:
    check(comm, {"batch": 2, "model": 2})
    for is_shared in (True, False):
        check(comm, {"batch": 2, "model": 2}, model_split="alternating", overlap=False, shared_replicas=is_shared)
    for way in ("scatter", "scatter-broadcast"):
        check(comm, {"batch": 2, "model": 2}, distribution=way)
    for method, axes in (("gpipe", (2, 1)), ("interleaved", (1, 2)), ("fr", (1, 2)), ("spectrain", (2, 1))):
        check(comm, {"pipeline": 2, "batch": axes[0], "model": axes[1]}, method=method)
    check(comm, {"stages": [(3, 1), (1, 1)]})
    check(comm, {"stages": [(3, 1), (1, 1)]}, shared_replicas=False)
    # What goes between nodes: slices of the gradient.
    for nodes in ((0, 0, 1, 1), (0, 0, 0, 1)):
        check(on_nodes(comm, nodes), {})
    check(comm, {"stages": [(1, 1), (1, 3)]})


@pytest.mark.in_process(ranks=[4])
def test_layers_with_fewer_outputs_than_model_ranks_send_what_is_predicted(comm: MPI.Intracomm) -> None:
    for split in ("columns", "alternating"):
        check(comm, {"model": 4}, sizes=NARROW, model_split=split)
        check(comm, {"batch": 2, "model": 2}, sizes=NARROW, model_split=split)
        check(comm, {"stages": [(1, 3), (1, 1)]}, sizes=NARROW, model_split=split)
