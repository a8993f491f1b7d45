"""Simulation of training steps: a layout's schedule on a machine, with slow ranks and jitter; and scaling curves.

With a disturbance, the replicas of a pipeline differ. Stages may have different numbers of batch ranks: the samples of
a microbatch are cut at every border between two batch ranks of any stage, and the samples between two borders are a
lane. A lane is on one batch rank of every stage, so that every time is one number per lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import gcd, log1p, prod, sqrt
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.machine import Machine
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.times import (
    TimeBreakdown,
    compile_layout,
    makespan,
    mean_over_ranks,
    seconds_per_added_minibatch,
)
from hybridnn.cost.prediction.workload import Workload
from hybridnn.errors import SettingError
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.clock import ScheduleTimes, Seconds, run
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Instruction, ReduceGradients
from hybridnn.utils.checks import require_choice, require_number, require_whole


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
        self.hidden, self.barrier_seconds = costs.hidden, costs.barrier_seconds
        self.message, self.link = costs.message, costs.link
        self._first_ranks = tuple(accumulate(map(prod, costs.layout.stages), initial=0))
        self._factors_of: dict[tuple[int, type[Instruction], int], NDArray[np.float64]] = {}

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Seconds of a computation, of which computing and overhead are disturbed."""
        cost = self._costs.breakdown(stage, instruction)
        return cost.communication + (cost.total - cost.communication) * self._factors(stage, instruction)

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
        first, count = self._first_ranks[stage], (layout.microbatches + 1) * layout.chunks
        of_ranks = [self._disturbance.factors(first + rank, instruction, count) for rank in range(batch * model)]
        of_batch_ranks = np.array(of_ranks).reshape(batch, model, count).max(axis=1)
        return np.ascontiguousarray(of_batch_ranks[self._lanes.ranks[stage]].T)


# -- simulated steps ---------------------------------------------------------------------------------------------------

UNDISTURBED = Disturbance()

ROUNDING_ERROR = 1e-12  # relative error of sums of times: a remainder below it is no bubble


@dataclass(frozen=True)
class SimulatedStep:
    """Simulated minibatches of a layout."""

    workload: Workload
    layout: Layout
    times: ScheduleTimes
    # lanes of the last axis of `times`; None without disturbance, where all ranks have the same times
    lanes: Lanes | None
    seconds: float  # from the start of the first minibatch to the end of the last
    seconds_per_step: float  # per minibatch; where minibatches overlap, what the second half of them adds
    # of a step, the mean over the ranks of every stage. Computing includes overhead, and runs at the pace of the
    # slowest rank of a model group; the bubble includes waiting for slower ranks.
    stages: tuple[TimeBreakdown, ...]

    @property
    def minibatches(self) -> int:
        """Simulated minibatches."""
        return self.times.program.schedule.minibatches

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of an epoch, extrapolated from the simulated minibatches by the time of a step."""
        return self.seconds + (self.workload.steps_per_epoch - self.minibatches) * self.seconds_per_step

    @property
    def instructions(self) -> dict[str, float]:
        """Seconds per step by kind of instruction, the mean over all ranks."""
        kinds: defaultdict[str, float] = defaultdict(float)
        program, seconds = self.times.program, self.times.ends - self.times.starts
        for stage, (batch, model) in enumerate(self.layout.stages):
            own = program.of(stage)
            weight = batch * model / (self.layout.ranks * self.minibatches)
            means = _mean_over_lanes(seconds[own], self.lanes, stage)
            for instruction, mean in zip(program.computations[own], means.tolist(), strict=True):
                kinds[instruction.name] += weight * mean
        return dict(kinds)

    def mean(self) -> TimeBreakdown:
        """Breakdown of a step, the mean over all ranks."""
        return mean_over_ranks(self.layout, self.stages)


def default_minibatches(layout: Layout) -> int:
    """Minibatches to simulate: one, or if minibatches overlap, enough to reach the steady state."""
    return 1 if layout.exact else 4 * len(layout.stages)


def simulate_layout(
    workload: Workload, layout: Layout, machine: Machine, minibatches: int, disturbance: Disturbance = UNDISTURBED
) -> SimulatedStep:
    """Simulate minibatches of a layout on a machine.

    More ranks than the machine has share its cores, and batch ranks without samples wait for those that have some, as
    in training.

    Raises
    ------
    SettingError
        If a slow rank does not exist, or `minibatches` is not a whole number, 1 or more.
    """
    for rank in disturbance.slow:
        if rank >= layout.ranks:
            raise SettingError("slow", rank, f"a rank from 0 to {layout.ranks - 1}")
    costs = StageCosts(workload, layout, machine)
    lanes = make_lanes([batch for batch, _ in layout.stages]) if disturbance else None
    times = _run(costs, minibatches, lanes, disturbance)
    seconds = makespan(times)
    if layout.exact or minibatches == 1:
        per_step = seconds / minibatches
    else:
        per_step = seconds_per_added_minibatch(_run(costs, minibatches // 2, lanes, disturbance), times)
    stages = _stage_breakdowns(costs, times, lanes, per_step)
    return SimulatedStep(workload, layout, times, lanes, seconds, per_step, stages)


def _run(costs: StageCosts, minibatches: int, lanes: Lanes | None, disturbance: Disturbance) -> ScheduleTimes:
    program = compile_layout(costs.layout, minibatches)
    if lanes is None:
        return run(program, costs)
    return run(program, DisturbedCosts(costs, lanes, disturbance), lanes.meet)


def _stage_breakdowns(
    costs: StageCosts, times: ScheduleTimes, lanes: Lanes | None, per_step: float
) -> tuple[TimeBreakdown, ...]:
    """Breakdowns of the whole time, scaled to one step."""
    program, seconds = times.program, makespan(times)
    scale = per_step / seconds if seconds else 0.0
    stages = []
    for stage, (busy, receiving) in enumerate(zip(times.busy, times.communication, strict=True)):
        own = program.computations[program.of(stage)]
        collectives = sum(costs.breakdown(stage, instruction).communication for instruction in own)
        computing = float(_mean_over_lanes(busy, lanes, stage)) - collectives
        communication = float(_mean_over_lanes(receiving, lanes, stage)) + collectives
        rest = seconds - computing - communication
        bubble = rest if rest > ROUNDING_ERROR * seconds else 0.0
        stages.append(TimeBreakdown(computing, communication, bubble) * scale)
    return tuple(stages)


def _mean_over_lanes(seconds: NDArray[np.float64], lanes: Lanes | None, stage: int) -> NDArray[np.float64]:
    """Mean over a stage's batch ranks of times whose last axis is the lanes."""
    return seconds if lanes is None else np.asarray(seconds[..., lanes.firsts[stage]].mean(axis=-1))


# -- scaling curves --------------------------------------------------------------------------------------------------

CURVES = ("strong", "weak")
"""Strong scaling: the same minibatch for all numbers of ranks. Weak scaling: it grows with them."""


@dataclass(frozen=True)
class ScalingPoint:
    """Simulation of one number of ranks.

    The speed-up is samples per second over those of one rank, the efficiency the speed-up per rank, and the shares are
    fractions of the ranks' time.
    """

    ranks: int
    batch_size: int
    seconds_per_step: float
    speed_up: float
    efficiency: float
    communication_share: float
    bubble_share: float


@dataclass(frozen=True)
class ScalingCurve:
    """A strong or weak curve, by number of ranks; its first point is one rank, the reference of the speed-up."""

    kind: str
    points: tuple[ScalingPoint, ...]


def scaling_curve(
    workload: Workload,
    layout: Layout,
    machine: Machine,
    kind: str,
    minibatches: int,
    disturbance: Disturbance = UNDISTURBED,
) -> ScalingCurve:
    """Simulate a layout with 1, 2, 4, ... times the replicas of its smallest form, up to its own.

    The minibatch of the workload is that of every point of a strong curve, and of the smallest layout of a weak one.
    Every point is simulated for `minibatches` minibatches, the reference for one. Slow ranks disturb the layouts that
    have them; the reference is not disturbed. Errors are those of `simulate_layout`.
    """
    require_choice("curve", kind, CURVES)
    serial = simulate_layout(workload, Layout.uniform([(1, 1)], len(workload.model.layers)), machine, 1)
    points = [_point(serial, serial)]
    for replicas, wide in _replicated(layout):
        batch_size = workload.batch_size * (replicas if kind == "weak" else 1)
        if wide.ranks > 1:
            grown = replace(workload, batch_size=batch_size)
            step = simulate_layout(grown, wide, machine, minibatches, disturbance.within(wide.ranks))
            points.append(_point(step, serial))
    return ScalingCurve(kind, tuple(points))


def _replicated(layout: Layout) -> Iterator[tuple[int, Layout]]:
    """The layout with the fewest batch ranks in its stages' proportions, and with 2, 4, ... times as many."""
    most = gcd(*(batch for batch, _ in layout.stages))
    for replicas in (*(2**power for power in range((most - 1).bit_length())), most):
        stages = tuple((batch // most * replicas, model) for batch, model in layout.stages)
        yield replicas, replace(layout, stages=stages)


def _point(step: SimulatedStep, serial: SimulatedStep) -> ScalingPoint:
    seconds, mean = step.seconds_per_step, step.mean()
    batch_size, ranks = step.workload.batch_size, step.layout.ranks
    speed_up = batch_size / seconds * serial.seconds_per_step / serial.workload.batch_size
    return ScalingPoint(
        ranks, batch_size, seconds, speed_up, speed_up / ranks, mean.communication / seconds, mean.bubble / seconds
    )
