"""The replicas of a pipeline, where its stages may have different numbers of them.

The samples of a microbatch are cut at every border between two batch ranks of any stage. What lies between two borders
is a lane: it is on one batch rank of every stage, so that every time is one number per lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridnn.pipeline.schedules.instructions import Instruction, ReduceGradients

__all__ = ["Lanes", "make_lanes"]


@dataclass(frozen=True)
class Lanes:
    """Lanes of a pipeline.

    Attributes
    ----------
    ranks : tuple of NDArray of int64
        Per stage, the batch rank of every lane.
    firsts : tuple of NDArray of int64
        Per stage, the first lane of every batch rank.
    """

    ranks: tuple[NDArray[np.int64], ...]
    firsts: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.ranks[0])

    def meet(self, stage: int, instruction: Instruction, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """When an instruction starts: all lanes of a rank together, and all ranks of a group that reduces gradients."""
        if isinstance(instruction, ReduceGradients):
            return np.full_like(times, times.max())
        firsts = self.firsts[stage]
        if len(firsts) == len(times):
            return times
        latest: NDArray[np.float64] = np.maximum.reduceat(times, firsts)[self.ranks[stage]]
        return latest


def make_lanes(batch_ranks: Sequence[int]) -> Lanes:
    """Make the lanes of stages with so many batch ranks each; with equal numbers, one per replica of the pipeline."""
    common = int(np.lcm.reduce(np.array(batch_ranks, dtype=object)))
    borders = sorted({number * common // ranks for ranks in batch_ranks for number in range(ranks)})
    ranks_of_lanes = tuple(
        np.array([border * ranks // common for border in borders], dtype=np.int64) for ranks in batch_ranks
    )
    firsts = tuple(np.flatnonzero(np.diff(ranks, prepend=-1)) for ranks in ranks_of_lanes)
    return Lanes(ranks_of_lanes, firsts)
