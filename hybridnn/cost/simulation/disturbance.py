"""What makes equal ranks unequal: jitter of every computation, and ranks that are slow.

The replicas of a pipeline, where its stages may have different numbers of them.

The samples of a microbatch are cut at every border between two batch ranks of any stage. What lies between two borders
is a lane: it is on one batch rank of every stage, so that every time is one number per lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log1p, sqrt
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.workload import Layout
from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.clock import Seconds
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Instruction, ReduceGradients
from hybridnn.pipeline.schedules.message_flow import Message
from hybridnn.utils.checks import require_number, require_whole


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


KIND_NUMBERS = MappingProxyType({kind: number for number, kind in enumerate(COMPUTATIONS)})
"""What tells the random numbers of one kind of computation from those of another."""

MOST_JITTER = 10.0
"""More is taken for a mistake."""


@dataclass(frozen=True)
class Disturbance:
    """How computing differs between ranks and from one time to the next; collectives and messages take what they take.

    Attributes
    ----------
    jitter : float
        Relative standard deviation of the time of a computation on a rank; it is lognormal, and its mean stays.
    slow : mapping of int to float
        Factor on the computing of some ranks, by their position in the grid.
    seed : int

    Raises
    ------
    SettingError
        If the jitter is negative or beyond all sense, a factor not positive, or the seed no whole number.
    """

    jitter: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        require_number("jitter", self.jitter, 0, MOST_JITTER, f"a number from 0 to {MOST_JITTER:g}")
        require_whole("seed", self.seed, 0)
        for rank, factor in self.slow.items():
            require_whole("slow", rank, 0)
            require_number("slow", factor, 0, inf, "a finite factor above 0", open_ends="(")

    def __bool__(self) -> bool:
        return self.jitter > 0 or bool(self.slow)

    def within(self, ranks: int) -> Disturbance:
        """Without the slow ranks that so many ranks do not have."""
        return replace(self, slow={rank: factor for rank, factor in self.slow.items() if rank < ranks})

    def factors(self, rank: int, instruction: Instruction, count: int) -> NDArray[np.float64]:
        """Factors on one rank's computations of a kind and minibatch.

        They depend on the seed, the rank, the kind and the minibatch, not on what was drawn before.

        Parameters
        ----------
        rank : int
            Position in the grid.
        instruction : Instruction
            Of that kind and minibatch.
        count : int
            How many; a larger count begins with the factors of a smaller one.
        """
        slow = self.slow.get(rank, 1.0)
        if not self.jitter:
            return np.full(count, slow)
        counter = [0, 0, KIND_NUMBERS[type(instruction)], instruction.minibatch]
        generator = np.random.Generator(np.random.Philox(key=[self.seed, rank], counter=counter))
        variance = log1p(self.jitter**2)
        return slow * np.exp(sqrt(variance) * generator.standard_normal(count) - variance / 2)


def require_ranks(disturbance: Disturbance, ranks: int) -> None:
    """Refuse a slow rank that does not exist.

    Raises
    ------
    SettingError
        Naming it.
    """
    for rank in disturbance.slow:
        if rank >= ranks:
            raise SettingError("slow", rank, f"a rank from 0 to {ranks - 1}")


class DisturbedCosts:
    """Costs of a layout's instructions with a disturbance, one time per lane.

    The ranks of a model group meet in every pass, so that the slowest counts.

    Parameters
    ----------
    costs : StageCosts
        Without disturbance.
    layout : Layout
    lanes : Lanes
    disturbance : Disturbance
    """

    def __init__(self, costs: StageCosts, layout: Layout, lanes: Lanes, disturbance: Disturbance) -> None:
        self._costs, self._layout, self._lanes, self._disturbance = costs, layout, lanes, disturbance
        self._known: dict[tuple[int, type[Instruction], int], NDArray[np.float64]] = {}

    @property
    def hidden(self) -> float:
        """As without disturbance."""
        return self._costs.hidden

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Time of a computation; only its computing and Python are disturbed."""
        shares = self._costs.shares(stage, instruction)
        return shares.communication + (shares.total - shares.communication) * self._factors(stage, instruction)

    def message(self, message: Message) -> Seconds:
        """Time of a message, as without disturbance."""
        return self._costs.message(message)

    def barrier_seconds(self) -> Seconds:
        """Time of a barrier, as without disturbance."""
        return self._costs.barrier_seconds()

    def _factors(self, stage: int, instruction: Instruction) -> NDArray[np.float64]:
        """Factor of every lane."""
        key = (stage, type(instruction), instruction.minibatch)
        if key not in self._known:
            self._known[key] = self._drawn(stage, instruction)
        # A product over all microbatches stands at the end.
        number = instruction.microbatch * self._layout.chunks + instruction.chunk
        factors: NDArray[np.float64] = self._known[key][number]
        return factors

    def _drawn(self, stage: int, instruction: Instruction) -> NDArray[np.float64]:
        """Factors of the stage's computations of a kind and minibatch, by microbatch, chunk and lane."""
        batch, model = self._layout.stages[stage]
        first, count = self._layout.first_rank(stage), (self._layout.microbatches + 1) * self._layout.chunks
        of_ranks = [self._disturbance.factors(first + rank, instruction, count) for rank in range(batch * model)]
        of_batch_ranks = np.array(of_ranks).reshape(batch, model, count).max(axis=1)
        return np.ascontiguousarray(of_batch_ranks[self._lanes.ranks[stage]].T)
