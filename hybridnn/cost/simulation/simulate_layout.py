"""Training steps of a layout on a machine, simulated: where the time goes, disturbed or not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.cost.simulation.disturbance import Disturbance, DisturbedCosts, Lanes, make_lanes, require_ranks
from hybridnn.pipeline.schedules.clock import ScheduleTimes, run
from hybridnn.pipeline.schedules.compiled_schedule import CompiledSchedule, compile_schedule
from hybridnn.utils.checks import require_whole

CALM = Disturbance()
"""No disturbance."""

ROUNDING = 1e-12
"""Share of the simulated time that sums of times may be off by: what is left of it below that is no bubble."""


@dataclass(frozen=True)
class StageSeconds:
    """Seconds per step of a stage, the mean over its ranks; together the whole step.

    Attributes
    ----------
    computing : float
        Passes and updates, loading, copying and Python; of a model group, at the pace of its slowest rank.
    communication : float
        Collectives that are waited for, and the part of messages that cannot be hidden.
    bubble : float
        Waiting for other stages, for their messages, and for slower ranks.
    """

    computing: float
    communication: float
    bubble: float


@dataclass(frozen=True)
class SimulatedStep:
    """Simulated minibatches of a layout.

    Attributes
    ----------
    workload : Workload
    layout : Layout
    run : Run
    lanes : Lanes or None
        Of the times of `run`, which has one per lane; None without disturbance, where one number is true of all.
    seconds : float
        From the start of the first minibatch to the end of the last.
    seconds_per_step : float
        Per minibatch; where minibatches overlap, what the second half of them adds.
    stages : tuple of StageSeconds
    """

    workload: Workload
    layout: Layout
    run: ScheduleTimes
    lanes: Lanes | None
    seconds: float
    seconds_per_step: float
    stages: tuple[StageSeconds, ...]

    @property
    def minibatches(self) -> int:
        """Minibatches that were simulated."""
        return self.run.program.schedule.minibatches

    @property
    def seconds_per_epoch(self) -> float:
        """Time of all minibatches of an epoch: those that were simulated, and for each more or fewer a step."""
        return self.seconds + (self.workload.steps_per_epoch - self.minibatches) * self.seconds_per_step

    @property
    def instructions(self) -> dict[str, float]:
        """Seconds per step by kind of instruction, the mean over all ranks."""
        kinds: defaultdict[str, float] = defaultdict(float)
        program, seconds = self.run.program, self.run.ends - self.run.starts
        for stage, (batch, model) in enumerate(self.layout.stages):
            own = program.of(stage)
            weight = batch * model / (self.layout.ranks * self.minibatches)
            means = _mean_over_ranks(seconds[own], self.lanes, stage)
            for instruction, mean in zip(program.computations[own], means.tolist(), strict=True):
                kinds[instruction.name] += weight * mean
        return dict(kinds)

    def mean(self) -> StageSeconds:
        """Seconds per step, the mean over all ranks."""
        ranks = np.array([prod(widths) for widths in self.layout.stages]) / self.layout.ranks
        of_stages = np.array([(stage.computing, stage.communication, stage.bubble) for stage in self.stages])
        return StageSeconds(*(ranks @ of_stages).tolist())


def usual_minibatches(layout: Layout) -> int:
    """As many minibatches as show how a layout runs: one, or where minibatches overlap, enough to fill the pipeline."""
    return 1 if layout.exact else 4 * len(layout.stages)


def compile_layout(layout: Layout, minibatches: int) -> CompiledSchedule:
    """Compile the schedule of a layout; it depends on everything but the widths of the stages.

    Raises
    ------
    SettingError
        If `minibatches` is not a whole number, 1 or more.
    """
    require_whole("minibatches", minibatches, 1)
    return compile_schedule(layout.schedule(minibatches, messages=False))


def simulate_layout(
    workload: Workload, layout: Layout, machine: Machine, program: CompiledSchedule, disturbance: Disturbance = CALM
) -> SimulatedStep:
    """Simulate minibatches of a layout on a machine.

    More ranks than the machine has take turns, and batch ranks without samples wait for those that have some, as in
    training.

    Parameters
    ----------
    workload : Workload
    layout : Layout
    machine : Machine
    program : CompiledSchedule
        From `compile_layout`, of this layout or of one that differs in the widths of its stages only.
    disturbance : Disturbance

    Returns
    -------
    SimulatedStep

    Raises
    ------
    SettingError
        If there is no such slow rank.
    """
    require_ranks(disturbance, layout.ranks)
    costs = StageCosts(workload, layout, machine)
    lanes = make_lanes([batch for batch, _ in layout.stages]) if disturbance else None
    done = _run(program, costs, layout, lanes, disturbance)
    seconds, minibatches = float(np.max(done.makespan)), program.schedule.minibatches
    if layout.exact or minibatches == 1:
        per_step = seconds / minibatches
    else:
        half = _run(compile_layout(layout, minibatches // 2), costs, layout, lanes, disturbance)
        per_step = (seconds - float(np.max(half.makespan))) / (minibatches - minibatches // 2)
    stages = _stage_seconds(costs, done, lanes, seconds, per_step)
    return SimulatedStep(workload, layout, done, lanes, seconds, per_step, stages)


def _run(
    program: CompiledSchedule, costs: StageCosts, layout: Layout, lanes: Lanes | None, disturbance: Disturbance
) -> ScheduleTimes:
    if lanes is None:
        return run(program, costs)
    return run(program, DisturbedCosts(costs, layout, lanes, disturbance), lanes.meet)


def _stage_seconds(
    costs: StageCosts, done: ScheduleTimes, lanes: Lanes | None, seconds: float, per_step: float
) -> tuple[StageSeconds, ...]:
    """Shares of the whole time, as seconds of a step."""
    program, scale = done.program, per_step / seconds if seconds else 0.0
    stages = []
    for stage, (busy, receiving) in enumerate(zip(done.busy, done.communication, strict=True)):
        own = program.computations[program.of(stage)]
        collectives = sum(costs.shares(stage, instruction).communication for instruction in own)
        computing = float(_mean_over_ranks(busy, lanes, stage)) - collectives
        communication = float(_mean_over_ranks(receiving, lanes, stage)) + collectives
        rest = seconds - computing - communication
        bubble = rest if rest > ROUNDING * seconds else 0.0
        stages.append(StageSeconds(computing * scale, communication * scale, bubble * scale))
    return tuple(stages)


def _mean_over_ranks(seconds: NDArray[np.float64], lanes: Lanes | None, stage: int) -> NDArray[np.float64]:
    """Mean over a stage's batch ranks of times whose last axis are lanes."""
    return seconds if lanes is None else np.asarray(seconds[..., lanes.firsts[stage]].mean(axis=-1))
