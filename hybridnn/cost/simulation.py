"""Simulation of training steps: a layout's schedule on the clock of a machine, and scaling curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from hybridnn.cost.machine import Machine
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.times import (
    ScheduleTimes,
    TimeBreakdown,
    compile_layout,
    parts_of_efficiency,
    run,
    seconds_per_added_minibatch,
)
from hybridnn.cost.prediction.workload import Workload
from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble, split_idle
from hybridnn.pipeline.layout import Layout

ROUNDING_ERROR = 1e-12  # relative error of sums of times: a remainder below it is no bubble


@dataclass(frozen=True)
class SimulatedStep:
    """Simulated minibatches of a layout."""

    workload: Workload
    layout: Layout
    times: ScheduleTimes
    seconds: float  # from the start of the first minibatch to the end of the last
    seconds_per_step: float  # per minibatch; where minibatches overlap, what the second half of them adds
    # of a step, for the ranks of every stage; the bubble includes waiting for slower stages
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
            for instruction, duration in zip(program.computations[own], seconds[own].tolist(), strict=True):
                kinds[instruction.name] += weight * duration
        return dict(kinds)

    def stage_activities(self) -> list[dict[str, float]]:
        """Seconds of a step for the ranks of every stage, by the names of all reports."""
        bubble = schedule_bubble(self.layout, self.workload.steps_per_epoch) * self.seconds_per_step
        found = []
        for parts in self.stages:
            idle = split_idle(parts.bubble, bubble)
            seconds = (parts.computing, parts.overhead, parts.communication, *idle)
            found.append(dict(zip(("compute", "overhead", "communicate", "bubble", "wait"), seconds, strict=True)))
        return found

    def mean_activities(self) -> dict[str, float]:
        """Means of `stage_activities` over all ranks."""
        weights, stages = [prod(shape) / self.layout.ranks for shape in self.layout.stages], self.stage_activities()
        return {name: sum(w * stage[name] for w, stage in zip(weights, stages, strict=True)) for name in stages[0]}


def simulate_layout(workload: Workload, layout: Layout, machine: Machine) -> SimulatedStep:
    """Simulate a minibatch of a layout on a machine, or if minibatches overlap, enough to reach the steady state.

    More ranks than the machine has share its cores, and batch ranks without samples wait for those that have some, as
    in training.
    """
    costs = StageCosts(workload, layout, machine)
    minibatches = 1 if layout.exact else 4 * len(layout.stages)
    times = run(compile_layout(layout, minibatches), costs)
    per_step = times.makespan
    if not layout.exact:
        per_step = seconds_per_added_minibatch(run(compile_layout(layout, minibatches // 2), costs), times)
    return SimulatedStep(workload, layout, times, times.makespan, per_step, _stage_breakdowns(costs, times, per_step))


def _stage_breakdowns(costs: StageCosts, times: ScheduleTimes, per_step: float) -> tuple[TimeBreakdown, ...]:
    """Breakdowns of the whole time, scaled to one step."""
    program, seconds = times.program, times.makespan
    scale = per_step / seconds if seconds else 0.0
    stages = []
    for stage, (busy, receiving) in enumerate(zip(times.busy, times.communication, strict=True)):
        own = program.computations[program.of(stage)]
        collectives = sum(costs.breakdown(stage, instruction).communication for instruction in own)
        overhead = sum(costs.breakdown(stage, instruction).overhead for instruction in own)
        computing, communication = busy - collectives - overhead, receiving + collectives
        rest = seconds - busy - receiving
        bubble = rest if rest > ROUNDING_ERROR * seconds else 0.0
        stages.append(TimeBreakdown(computing, communication, bubble, overhead) * scale)
    return tuple(stages)


# -- scaling curves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalingPoint:
    """Simulation of one number of ranks.

    The speed-up is samples per second over those of one rank, the efficiency the speed-up per rank, and `shares` are
    the parts of the ranks' time by `parts_of_efficiency`.
    """

    ranks: int
    batch_size: int
    seconds_per_step: float
    speed_up: float
    efficiency: float
    shares: dict[str, float]


@dataclass(frozen=True)
class ScalingCurve:
    """A strong or weak curve, by number of ranks; its first point is one rank, the reference of the speed-up."""

    kind: str
    points: tuple[ScalingPoint, ...]


def scaling_curve(workload: Workload, layout: Layout, machine: Machine, kind: str) -> ScalingCurve:
    """Simulate a layout with 1, 2, 4, ... times the replicas of its smallest form, up to its own.

    The minibatch of the workload is that of every point of a ``"strong"`` curve, and of the smallest layout of a
    ``"weak"`` one.
    """
    serial = simulate_layout(workload, Layout.uniform([(1, 1)], len(workload.model.layers)), machine)
    points = [_point(serial, serial)]
    for replicas, wide in _replicated(layout):
        batch_size = workload.batch_size * (replicas if kind == "weak" else 1)
        if wide.ranks > 1:
            grown = replace(workload, batch_size=batch_size)
            points.append(_point(simulate_layout(grown, wide, machine), serial))
    return ScalingCurve(kind, tuple(points))


def _replicated(layout: Layout) -> Iterator[tuple[int, Layout]]:
    """The layout with the fewest batch ranks in its stages' proportions, and with 2, 4, ... times as many."""
    most = gcd(*(batch for batch, _ in layout.stages))
    for replicas in (*(2**power for power in range((most - 1).bit_length())), most):
        stages = tuple((batch // most * replicas, model) for batch, model in layout.stages)
        yield replicas, replace(layout, stages=stages)


def _point(step: SimulatedStep, serial: SimulatedStep) -> ScalingPoint:
    seconds, batch_size, ranks = step.seconds_per_step, step.workload.batch_size, step.layout.ranks
    speed_up = batch_size / seconds * serial.seconds_per_step / serial.workload.batch_size
    shares = parts_of_efficiency(_per_sample(step), _per_sample(serial))
    return ScalingPoint(ranks, batch_size, seconds, speed_up, speed_up / ranks, shares)


def _per_sample(step: SimulatedStep) -> dict[str, float]:
    """Seconds of all ranks per sample, by activity."""
    ranks_per_sample = step.layout.ranks / step.workload.batch_size
    return {name: seconds * ranks_per_sample for name, seconds in step.mean_activities().items()}
