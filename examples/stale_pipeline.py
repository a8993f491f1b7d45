"""Train four pipeline stages inside one process, without MPI: an exact method and two that have stale weights.

    python examples/stale_pipeline.py

1F1B computes the same training as one rank, but the stages are idle while the pipeline fills and empties. PipeDream
never waits, and updates with gradients of older weights, and needs more epochs. SpecTrain predicts newer weights.
"""

from __future__ import annotations

from typing import Any

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.data import load_dataset
from hybridnn.in_process import run_ranks

digits = load_dataset("digits")


def train(comm: Any, method: str) -> list[float]:
    """Return the loss of every epoch; every rank calls this function, with its own communicator."""
    trainer = Trainer(
        MLP([64, 48, 32, 24, 10]),
        SGD(lr=0.05, momentum=0.5),
        grid=ProcessGrid(comm, pipeline=comm.size),
        method=method,
        batch_size=50,
        dtype="float64",
    )
    return [record.train_loss for record in trainer.fit(digits.train, epochs=5).epochs]


for ranks, method in ((1, "1f1b"), (4, "1f1b"), (4, "pipedream"), (4, "spectrain")):
    losses = run_ranks(ranks, train, method).results[0]
    print(f"{ranks} stages, {method:<9}", "  ".join(f"{loss:.4f}" for loss in losses))
