"""Memory of a rank's arrays by purpose, as measured, reported and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hybridnn.nn.optimizers import OptimizerState
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.parallel.model_chunk import ModelChunk
    from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes of a rank's arrays, without the samples of the data set; of arrays that ranks share, this rank's share."""

    # current weights with their gradients, and the optimizer state
    weight_bytes: int
    optimizer_bytes: int
    weight_version_bytes: int  # stashed and predicted weights
    activation_bytes: int  # inputs and activations of the microbatches in flight
    buffer_bytes: int  # messages, gradients of activations, and microbatches concatenated for one product

    @classmethod
    def of_rank(
        cls, chunks: Sequence[ModelChunk], states: Sequence[OptimizerState], runtimes: Sequence[ChunkRuntime]
    ) -> MemoryBreakdown:
        """Add up the arrays of a rank."""
        return cls(
            sum(chunk.nbytes for chunk in chunks),
            sum(map(_state_bytes, chunks, states)),
            sum(runtime.weights.nbytes for runtime in runtimes),
            sum(runtime.activation_bytes for runtime in runtimes),
            sum(runtime.buffer_bytes for runtime in runtimes),
        )

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(astuple(self))

    def largest_of_stages(self, grid: ProcessGrid) -> tuple[MemoryBreakdown, ...]:
        """The maxima over the ranks of every stage, given each rank's own breakdown; collective over the grid."""
        table = np.zeros((grid.pipeline, len(fields(self))), np.int64)
        table[grid.pipeline_rank] = astuple(self)
        grid.world.allreduce(table, "max")
        return tuple(MemoryBreakdown(*row) for row in table.tolist())


def _state_bytes(chunk: ModelChunk, state: OptimizerState) -> int:
    return int(state.scratch.nbytes + sum(chunk.replica.bytes_per_rank(slot.nbytes) for slot in state.slots.values()))
