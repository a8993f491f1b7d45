"""Checkpoints of arrays with values by formula, on every layout, written and checked without training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hybridnn import MLP, SGD, Adam, ProcessGrid
from hybridnn.checkpoints.folder import Origin
from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.optimizers import Optimizer, OptimizerState, new_state
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.layout import Layout
from hybridnn.training.records import Progress

OPTIMIZERS: dict[str, tuple[Optimizer, tuple[str, ...]]] = {
    "sgd": (SGD(momentum=0.0), ()),
    "momentum": (SGD(momentum=0.9), ("velocity",)),
    "adam": (Adam(), ("first", "second")),
}
"""Optimizers with the names of their slots."""

SIZES = (5, 13, 9, 3, 8, 1)
LAYERS = len(SIZES) - 1
PROGRESS = Progress(step=20, epoch=3, minibatches=7, loss_sum=0.1 + 0.2, samples=123)


def element(layer: int, kind: str, slot: int, row: Any, column: Any) -> Any:
    """An element of an array: a unique value that float32 represents."""
    return (((slot * 8 + layer) * 2 + (kind == "bias")) * 32 + row) * 32 + column + 0.5


def expected_arrays(optimizer: str, dtype: str, shift: float = 0) -> dict[str, NDArray[Any]]:
    """All global arrays of a checkpoint, by file name."""
    arrays = {}
    for layer, (inputs, outputs) in enumerate(pairwise(SIZES)):
        for slot, name in enumerate(("", *(f".{name}" for name in OPTIMIZERS[optimizer][1]))):
            rows, columns = np.indices((outputs, inputs))
            weight, bias = element(layer, "weight", slot, rows, columns), element(layer, "bias", slot, rows[:, 0], 0)
            arrays[f"layers.{layer}.weight{name}.npy"] = (weight + shift).astype(dtype)
            arrays[f"layers.{layer}.bias{name}.npy"] = (bias + shift).astype(dtype)
    return arrays


def laid_out(
    stages: tuple[tuple[int, int], ...], split: str = "columns", partition: tuple[int, ...] = (LAYERS,)
) -> Layout:
    """Layout of the layers, with (batch, model) ranks of each stage, and layers of each part."""
    return Layout(stages, partition, split, method="1f1b", chunks=len(partition) // len(stages))


@dataclass(frozen=True)
class LocalArrays:
    """Weights and optimizer state of a rank."""

    layout: Layout
    grid: ProcessGrid
    stages: list[ModelChunk]
    states: list[OptimizerState]

    @classmethod
    def of(cls, comm: MPI.Intracomm, layout: Layout, optimizer: str, dtype: str) -> LocalArrays:
        """Make arrays of zeros."""
        grid = ProcessGrid(comm, stages=layout.stages)
        parts = layout.layers_of(MLP(SIZES), grid.pipeline_rank)
        stages = [ModelChunk(part, grid, layout.model_split, dtype, overlap=False) for part in parts]
        states = [new_state(OPTIMIZERS[optimizer][0], stage.weights, NUMPY) for stage in stages]
        return cls(layout, grid, stages, states)

    def blocks(self) -> Iterator[tuple[int, str, int, slice, slice, NDArray[Any]]]:
        """Layer, kind, index of the slot, rows and columns, and the array of every block."""
        for stage, state in zip(self.stages, self.states, strict=True):
            for slot, flat in enumerate((stage.weights, *state.slots.values())):
                for shard, view in zip(stage.layout.shards, stage.layout.views(flat), strict=True):
                    yield shard.layer.index, "weight", slot, shard.rows, shard.columns, view.weight
                    yield shard.layer.index, "bias", slot, shard.bias_rows, slice(0, 1), view.bias_column

    def fill(self, shift: float = 0, updates: int = 20) -> None:
        """Set every element by the formula."""
        for layer, kind, slot, rows, columns, block in self.blocks():
            i, j = np.ogrid[rows, columns]
            block[...] = element(layer, kind, slot, i, j) + shift
        for state in self.states:
            state.updates = updates

    def check(self, shift: float = 0, updates: int = 20) -> None:
        """Compare every element with the formula."""
        for layer, kind, slot, rows, columns, block in self.blocks():
            i, j = np.ogrid[rows, columns]
            np.testing.assert_array_equal(block, element(layer, kind, slot, i, j) + shift, f"{layer} {kind} {slot}")
        assert [state.updates for state in self.states] == [updates] * len(self.states)

    def writer(self, folder: Path, keep: int = 3) -> CheckpointWriter:
        """Make a writer of these arrays."""
        origin = Origin(
            model=f"widths {SIZES}",
            optimizer="an optimizer",
            data="no data",
            settings={"training.seed": "5"},
            layout=self.layout,
        )
        return CheckpointWriter(folder, self.grid, MLP(SIZES), self.stages, self.states, origin, keep=keep)


def progress_at(step: int) -> Progress:
    """A progress of the training with this step."""
    return replace(PROGRESS, step=step)


def layouts(ranks: int) -> list[Layout]:
    """All grids of `ranks` ranks, with both splits, several partitions, and stages of different widths."""
    axes = [
        ((batch, ranks // pipeline // batch),) * pipeline
        for pipeline in range(1, ranks + 1)
        for batch in range(1, ranks + 1)
        if ranks % pipeline == 0 and ranks // pipeline % batch == 0
    ]
    uneven: dict[int, Sequence[tuple[tuple[int, int], ...]]] = {
        3: [((1, 1), (1, 2)), ((2, 1), (1, 1))],
        4: [((1, 1), (1, 3)), ((2, 1), (1, 2)), ((1, 2), (1, 1), (1, 1))],
    }
    return [
        laid_out(stages, split, partition)
        for stages in [*axes, *uneven.get(ranks, [])]
        for split in (["columns", "alternating"] if any(model > 1 for _, model in stages) else ["columns"])
        for partition in partitions(len(stages))
    ]


def partitions(stages: int) -> list[tuple[int, ...]]:
    """Layers of every part, for one part per stage and, if there are enough layers, for two."""
    return {1: [(LAYERS,)], 2: [(2, 3), (1, 2, 1, 1)], 3: [(1, 3, 1)], 4: [(1, 2, 1, 1)]}[stages]
