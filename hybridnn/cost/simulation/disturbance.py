"""Disturbances of a simulation: jitter of computations and slow ranks, on the replicas of a pipeline.

Stages may have different numbers of batch ranks. The samples of a microbatch are cut at every border between two batch
ranks of any stage; the samples between two borders are a lane. A lane is on one batch rank of every stage, so that
every time is one number per lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log1p, sqrt
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.pipeline.schedules.clock import Seconds
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Instruction, ReduceGradients
from hybridnn.pipeline.schedules.schedule import Message
from hybridnn.utils.checks import require_number, require_whole


@dataclass(frozen=True)
class Lanes:
    """Lanes of a pipeline: for every stage, the batch rank of every lane, and the first lane of every batch rank."""

    ranks: tuple[NDArray[np.int64], ...]
    firsts: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.ranks[0])

    def meet(self, stage: int, instruction: Instruction, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Start times of an instruction: the latest of a rank's lanes, or of all lanes for a gradient reduction."""
        if isinstance(instruction, ReduceGradients):
            return np.full_like(times, times.max())
        firsts = self.firsts[stage]
        if len(firsts) == len(times):
            return times
        latest: NDArray[np.float64] = np.maximum.reduceat(times, firsts)[self.ranks[stage]]
        return latest


def make_lanes(batch_ranks: Sequence[int]) -> Lanes:
    """Lanes of stages with these numbers of batch ranks; if all are equal, one per batch rank."""
    units = int(np.lcm.reduce(np.array(batch_ranks, dtype=object)))
    borders = sorted({number * units // ranks for ranks in batch_ranks for number in range(ranks)})
    ranks_of_lanes = tuple(
        np.array([border * ranks // units for border in borders], dtype=np.int64) for ranks in batch_ranks
    )
    firsts = tuple(np.flatnonzero(np.diff(ranks, prepend=-1)) for ranks in ranks_of_lanes)
    return Lanes(ranks_of_lanes, firsts)


KIND_NUMBERS = MappingProxyType({kind: number for number, kind in enumerate(COMPUTATIONS)})
"""Part of the random counter, so that every kind of computation has random numbers of its own."""

MOST_JITTER = 10.0


@dataclass(frozen=True)
class Disturbance:
    """Differences of computing between ranks and between repetitions; communication is not disturbed.

    `jitter` is the relative standard deviation of the time of a computation on a rank, lognormal with the mean
    unchanged; `slow` has factors on the computing time of some ranks, by position in the grid.

    Raises
    ------
    SettingError
        If `jitter` is not in 0 … `MOST_JITTER`, a factor is not positive, or `seed` is not a whole number.
    """

    jitter: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        require_number(
            "jitter", self.jitter, at_least=0, at_most=MOST_JITTER, allowed=f"a number from 0 to {MOST_JITTER:g}"
        )
        require_whole("seed", self.seed, 0)
        for rank, factor in self.slow.items():
            require_whole("slow", rank, 0)
            require_number("slow", factor, above=0, allowed="a finite factor above 0")

    def __bool__(self) -> bool:
        return self.jitter > 0 or bool(self.slow)

    def within(self, ranks: int) -> Disturbance:
        """The disturbance of a job with fewer ranks: without the slow ranks from `ranks` on."""
        return replace(self, slow={rank: factor for rank, factor in self.slow.items() if rank < ranks})

    def factors(self, rank: int, instruction: Instruction, count: int) -> NDArray[np.float64]:
        """First `count` factors on a rank's computations of the kind and minibatch of `instruction`.

        A function of the seed, the rank, the kind and the minibatch, independent of what was drawn before.
        """
        slow = self.slow.get(rank, 1.0)
        if not self.jitter:
            return np.full(count, slow)
        counter = [0, 0, KIND_NUMBERS[type(instruction)], instruction.minibatch]
        generator = np.random.Generator(np.random.Philox(key=[self.seed, rank], counter=counter))
        variance = log1p(self.jitter**2)
        return slow * np.exp(sqrt(variance) * generator.standard_normal(count) - variance / 2)


class DisturbedCosts:
    """Costs of a layout's instructions with a disturbance, one time per lane.

    The ranks of a model group communicate in every pass, so that the slowest of them determines its time.
    """

    def __init__(self, costs: StageCosts, lanes: Lanes, disturbance: Disturbance) -> None:
        self._costs, self._lanes, self._disturbance = costs, lanes, disturbance
        self.hidden = costs.hidden
        self._factors_of: dict[tuple[int, type[Instruction], int], NDArray[np.float64]] = {}

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Seconds of a computation, of which computing and overhead are disturbed."""
        cost = self._costs.breakdown(stage, instruction)
        return cost.communication + (cost.total - cost.communication) * self._factors(stage, instruction)

    def message(self, message: Message) -> Seconds:
        """Seconds of a message, not disturbed."""
        return self._costs.message(message)

    def barrier_seconds(self) -> Seconds:
        """Seconds of a barrier, not disturbed."""
        return self._costs.barrier_seconds()

    def _factors(self, stage: int, instruction: Instruction) -> NDArray[np.float64]:
        """Factor of every lane."""
        key = (stage, type(instruction), instruction.minibatch)
        if key not in self._factors_of:
            self._factors_of[key] = self._draw(stage, instruction)
        # A product over all microbatches (-1) has the last factors.
        number = instruction.microbatch * self._costs.layout.chunks + instruction.chunk
        factors: NDArray[np.float64] = self._factors_of[key][number]
        return factors

    def _draw(self, stage: int, instruction: Instruction) -> NDArray[np.float64]:
        """Factors of a stage's computations of a kind and minibatch, shape (microbatches and chunks, lanes)."""
        layout = self._costs.layout
        batch, model = layout.stages[stage]
        first, count = layout.first_rank(stage), (layout.microbatches + 1) * layout.chunks
        of_ranks = [self._disturbance.factors(first + rank, instruction, count) for rank in range(batch * model)]
        of_batch_ranks = np.array(of_ranks).reshape(batch, model, count).max(axis=1)
        return np.ascontiguousarray(of_batch_ranks[self._lanes.ranks[stage]].T)
