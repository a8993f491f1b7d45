"""Memory of a rank's arrays in bytes, by purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a rank; arrays of a shared replica count with this rank's share.

    Attributes
    ----------
    weights : int
        Current weights and their gradients.
    optimizer : int
        Optimizer state.
    weight_versions : int
        Stashed and predicted weights.
    activations : int
        Inputs and activations of the microbatches in flight.
    buffers : int
        Messages, gradients of activations, and microbatches concatenated for one product.
    """

    weights: int
    optimizer: int
    weight_versions: int
    activations: int
    buffers: int

    @classmethod
    def of(
        cls, chunks: Sequence[ModelChunk], states: Sequence[OptimizerState], runtimes: Sequence[ChunkRuntime]
    ) -> StageMemory:
        """Add up the arrays of a rank."""
        chunk_bytes = [runtime.bytes for runtime in runtimes]
        return cls(
            weights=sum(chunk.nbytes for chunk in chunks),
            optimizer=sum(map(_state_bytes, chunks, states)),
            weight_versions=sum(item.weight_versions for item in chunk_bytes),
            activations=sum(item.activations for item in chunk_bytes),
            buffers=sum(item.buffers for item in chunk_bytes),
        )

    @property
    def total(self) -> int:
        """Total bytes."""
        return sum(getattr(self, item.name) for item in fields(self))


def _state_bytes(chunk: ModelChunk, state: OptimizerState) -> int:
    return int(state.scratch.nbytes + sum(chunk.replica.bytes_per_rank(slot.nbytes) for slot in state.slots.values()))


def memory_of_stages(grid: ProcessGrid, memory: StageMemory) -> tuple[StageMemory, ...]:
    """The maxima over the ranks of every stage; collective over the grid.

    Parameters
    ----------
    memory : StageMemory
        Of this rank.
    """
    names = [item.name for item in fields(StageMemory)]
    table = np.zeros((grid.pipeline, len(names)), np.int64)
    table[grid.pipeline_rank] = [getattr(memory, name) for name in names]
    grid.world.allreduce(table, "max")
    return tuple(StageMemory(*(int(nbytes) for nbytes in row)) for row in table)
