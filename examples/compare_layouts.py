"""A small study in Python: what each layout of eight ranks sends in an epoch, and how much memory its ranks need.

    python examples/compare_layouts.py

The ranks are in one process, so the bytes are exact and no cluster is needed. `hybridnn study` measures times, and
writes files and reports.
"""

from __future__ import annotations

from typing import Any

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.data import load_dataset
from hybridnn.in_process import run_ranks

LAYOUTS = [(p, b, 8 // (p * b)) for p in (1, 2, 4) for b in (1, 2, 4, 8) if p * b <= 8]
digits = load_dataset("digits").train


def measure(comm: Any, pipeline: int, batch: int, model: int) -> tuple[float, int, int]:
    """Return the loss, the bytes that all ranks sent, and the bytes that this rank holds for training."""
    grid = ProcessGrid(comm, pipeline=pipeline, batch=batch, model=model)
    model = MLP([64, 96, 96, 96, 10])
    trainer = Trainer(model, SGD(lr=0.1), grid=grid, batch_size=200, dtype="float64", shared_replicas=False)
    record = trainer.fit(digits, epochs=1).epochs[0]
    return record.train_loss, record.bytes_sent, trainer.memory_bytes


print("pipeline x batch x model      loss    MB sent   kB on the largest rank")
for layout in LAYOUTS:
    results = run_ranks(8, measure, *layout).results
    loss, sent, _ = results[0]
    most = max(memory for _, _, memory in results)
    print(f"{' x '.join(map(str, layout)):>24}  {loss:.6f}  {sent / 1e6:9.2f}  {most / 1e3:22.0f}")
