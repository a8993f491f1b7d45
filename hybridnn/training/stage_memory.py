"""What the arrays of a rank take, by what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.stage import Stage
from hybridnn.pipeline.execution.chunk import Chunk


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a rank.

    Attributes
    ----------
    weights : int
        Current weights and their gradients; of arrays that ranks share, here and below, this rank's part.
    optimizer : int
        Optimizer state.
    weight_versions : int
        Copies of older weights and predicted ones.
    activations : int
        Inputs and activations that wait for their backward pass.
    buffers : int
        Messages, gradients on their way through the layers, microbatches joined for one product.
    """

    weights: int
    optimizer: int
    weight_versions: int
    activations: int
    buffers: int

    @classmethod
    def of(cls, stages: Sequence[Stage], states: Sequence[OptimizerState], chunks: Sequence[Chunk]) -> StageMemory:
        """Add up the arrays of a rank."""
        parts = [chunk.bytes for chunk in chunks]
        return cls(
            weights=sum(stage.nbytes for stage in stages),
            optimizer=sum(map(_state_bytes, stages, states)),
            weight_versions=sum(part.weight_versions for part in parts),
            activations=sum(part.activations for part in parts),
            buffers=sum(part.buffers for part in parts),
        )

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(getattr(self, item.name) for item in fields(self))


def _state_bytes(stage: Stage, state: OptimizerState) -> int:
    return int(state.scratch.nbytes + sum(stage.replica.bytes_per_rank(slot.nbytes) for slot in state.slots.values()))


def memory_of_stages(grid: ProcessGrid, mine: StageMemory) -> tuple[StageMemory, ...]:
    """The largest figures among the ranks of every stage; collective over the grid."""
    names = [item.name for item in fields(StageMemory)]
    table = np.zeros((grid.pipeline, len(names)), np.int64)
    table[grid.pipeline_rank] = [getattr(mine, name) for name in names]
    grid.world.allreduce(table, "max")
    return tuple(StageMemory(*(int(figure) for figure in row)) for row in table)
