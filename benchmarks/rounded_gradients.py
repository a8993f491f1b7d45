"""Effect of rounded gradients on a training: digits on four ranks that simulate two nodes.

``PYTHONPATH=tests mpirun -n 4 python -m benchmarks.rounded_gradients [SEEDS]`` measures no times, so its output is the
same on every machine except for the last digits.
"""

from __future__ import annotations

import sys
from statistics import mean, stdev
from typing import Any

from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.config.settings import DataSettings
from hybridnn.runs.data import place_data
from reference.ranks import on_nodes

WIRES = ("same", "bfloat16", "float16")
SHOWN = (1, 2, 5, 10, 20)
"""Epochs that are printed; training ends with the last."""


def train(grid: ProcessGrid, data: Any, wire_dtype: str, seed: int) -> list[Any]:
    """The records of all epochs."""
    trainer = Trainer(MLP([64, 256, 256, 10]), SGD(lr=0.005), grid=grid, seed=seed, wire_dtype=wire_dtype)
    epochs = trainer.fit(data.train, epochs=SHOWN[-1], validation=(data.test, None)).epochs
    trainer.free()
    return epochs


def main() -> None:
    """Train with every `wire_dtype`, and print losses and final accuracies."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    world = MPI.COMM_WORLD
    grid = ProcessGrid(on_nodes(world, [2 * rank // world.size for rank in range(world.size)]))
    data = place_data(
        DataSettings(name="digits").load,
        grid,
        generated=False,
        distribution="local",
        standardize=True,
        test_fraction=0.2,
        seed=0,
        dtype="float32",
    )
    runs = {wire: [train(grid, data, wire, seed) for seed in seeds] for wire in WIRES}
    if world.rank == 0:
        print("wire dtype  " + "".join(f"{f'epoch {epoch}':>10}" for epoch in SHOWN) + "   test accuracy    sent, MB")
        for wire, found in runs.items():
            losses = "".join(f"{found[0][epoch - 1].train_loss:>10.5f}" for epoch in SHOWN)
            last = [100 * epochs[-1].test_accuracy for epochs in found]
            spread = f"{mean(last):.2f} ± {stdev(last) if len(last) > 1 else 0:.2f} %"
            sent = sum(epoch.bytes_sent for epoch in found[0]) / 1e6
            print(f"{wire:<12}{losses}{spread:>18}{sent:>11.1f}")
    data.memory.free()


if __name__ == "__main__":
    main()
