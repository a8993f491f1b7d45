"""What a step of a layout takes on a machine: its schedule, simulated with the costs of every instruction.

What a prediction says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.layer_costs import InstructionSeconds
from hybridnn.cost.prediction.memory import fullest_rank
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.traffic import Traffic, traffic_of
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.pipeline.schedules.clock import ScheduleTimes, run
from hybridnn.pipeline.schedules.compiled_schedule import CompiledSchedule, compile_schedule
from hybridnn.pipeline.schedules.instructions import Instruction


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step, by where they go: the means over the ranks, which together are the whole step.

    Attributes
    ----------
    computing : float
        Passes, loss and update.
    communication : float
        Messages and collectives that the stage waits for.
    bubble : float
        Waiting for other stages.
    overhead : float
        Loading samples, copying messages, and Python between instructions.
    """

    computing: float
    communication: float
    bubble: float
    overhead: float


@dataclass(frozen=True)
class Prediction:
    """What a step of a layout is expected to cost.

    Attributes
    ----------
    layout : Layout
    seconds_per_step : float
        Per minibatch; in the long run, where minibatches overlap.
    seconds_per_epoch : float
        With filling and emptying the pipeline.
    parts : StepSeconds
    communication_hidden : float
        Seconds per step of communication that passes behind computing.
    bytes_per_step : int
        Sent by all ranks, counted by the rule of ``hybridnn.comm.recorder``.
    memory_bytes : int
        Of the rank that needs most.
    instructions : dict
        Seconds per step by kind of instruction, the mean over the stages: ``forward``, ``backward``, ``input
        gradient``, ``weight gradient``, ``recompute``, ``reduce gradients``, ``loss``, ``update``; collectives of the
        model group are part of the passes.
    largest_collective : tuple of (str, int, float)
        Name, bytes and seconds per step of the communication that takes the longest.
    """

    layout: Layout
    seconds_per_step: float
    seconds_per_epoch: float
    parts: StepSeconds
    communication_hidden: float
    bytes_per_step: int
    memory_bytes: int
    instructions: dict[str, float]
    largest_collective: tuple[str, int, float]


KEPT_PROGRAMS = 64
"""Schedules that are kept, because many layouts of a plan share them."""


def predict(workload: Workload, layout: Layout, machine: Machine) -> Prediction:
    """Predict what a layout costs.

    Parameters
    ----------
    workload : Workload
    layout : Layout
        Feasible: see ``hybridnn.cost.planning``.
    machine : Machine

    Returns
    -------
    Prediction
    """
    costs = StageCosts(workload, layout, machine)
    timing = _time_exact(workload, layout, costs) if layout.exact else _time_endless(workload, layout, costs)
    by_stage = [_sum(costs, stage, instructions) for stage, instructions in enumerate(timing.of_step)]
    traffic = traffic_of(workload, layout, costs)
    parts, hidden = _mean_parts(layout, timing, by_stage)
    return Prediction(
        layout=layout,
        seconds_per_step=timing.seconds_per_step,
        seconds_per_epoch=timing.seconds_per_epoch,
        parts=parts,
        communication_hidden=hidden,
        bytes_per_step=sum(item.bytes_sent for item in traffic),
        memory_bytes=fullest_rank(workload, layout).total,
        instructions=_by_kind(costs, timing.of_step),
        largest_collective=_largest(traffic),
    )


@dataclass(frozen=True)
class _Timing:
    """Times of a step, and the computations of one on every stage."""

    seconds_per_step: float
    seconds_per_epoch: float
    of_step: tuple[tuple[Instruction, ...], ...]
    receiving: tuple[float, ...]


def _time_exact(workload: Workload, layout: Layout, costs: StageCosts) -> _Timing:
    done = run(_program(layout, 1), costs)
    seconds = float(done.makespan)
    return _Timing(seconds, seconds * workload.steps_per_epoch, done.program.schedule.orders, _receiving(done, 1))


def _time_endless(workload: Workload, layout: Layout, costs: StageCosts) -> _Timing:
    """Minibatches follow one another without end: a step is what one more of them adds."""
    fills = 2 * len(layout.stages)
    short, long = (run(_program(layout, count), costs) for count in (fills, 2 * fills))
    orders = tuple(_of_minibatch(order, fills) for order in long.program.schedule.orders)
    receiving = _receiving(long, 2 * fills)
    busiest = max(
        _sum(costs, stage, order).total + seconds
        for stage, (order, seconds) in enumerate(zip(orders, receiving, strict=True))
    )
    # Runs of unlike length may end on different stages: their difference is a little off, but no stage can be faster.
    per_step = max(busiest, float(long.makespan - short.makespan) / fills)
    steps = workload.steps_per_epoch
    if steps <= fills:
        epoch = float(run(_program(layout, steps), costs).makespan)
    else:
        epoch = float(short.makespan) + (steps - fills) * per_step
    return _Timing(per_step, epoch, orders, receiving)


def _mean_parts(layout: Layout, timing: _Timing, by_stage: Sequence[InstructionSeconds]) -> tuple[StepSeconds, float]:
    """Where the step's time goes, and what hides, as means over the ranks."""
    parts = np.zeros(5)
    for (batch, model), shares, receiving in zip(layout.stages, by_stage, timing.receiving, strict=True):
        communication = shares.communication + receiving
        waiting = max(0.0, timing.seconds_per_step - shares.total - receiving)
        of_stage = (shares.computing, communication, waiting, shares.overhead, shares.hidden)
        parts += batch * model / layout.ranks * np.array(of_stage)
    *mean, hidden = parts.tolist()
    return StepSeconds(*mean), hidden


def _receiving(done: ScheduleTimes, minibatches: int) -> tuple[float, ...]:
    return tuple(float(seconds) / minibatches for seconds in done.communication)


def _of_minibatch(order: Sequence[Instruction], minibatch: int) -> tuple[Instruction, ...]:
    return tuple(instruction for instruction in order if instruction.minibatch == minibatch)


def _sum(costs: StageCosts, stage: int, instructions: Sequence[Instruction]) -> InstructionSeconds:
    return sum((costs.shares(stage, one) for one in instructions if costs.computes(one)), InstructionSeconds())


def _by_kind(costs: StageCosts, of_step: Sequence[Sequence[Instruction]]) -> dict[str, float]:
    """Seconds of computing per step by kind of instruction, the mean over the stages."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for stage, instructions in enumerate(of_step):
        for one in instructions:
            if costs.computes(one) and (computing := costs.shares(stage, one).computing):
                loss = costs.loss_seconds(stage, one)
                seconds[one.name] += (computing - loss) / len(of_step)
                seconds["loss"] += loss / len(of_step)
    return {kind: total for kind, total in seconds.items() if total}


def _largest(traffic: Sequence[Traffic]) -> tuple[str, int, float]:
    if not traffic:
        return "", 0, 0.0
    most = max(traffic, key=lambda item: item.seconds)
    return f"{most.operation} ({most.axis})", most.nbytes, most.seconds


def _program(layout: Layout, minibatches: int) -> CompiledSchedule:
    """The schedule of so many minibatches, compiled; many layouts of a plan share it."""
    stages = len(layout.stages)
    bare = Layout(
        ((1, 1),) * stages,
        (1,) * (stages * layout.chunks),
        method=layout.method,
        microbatches=layout.microbatches,
        chunks=layout.chunks,
        vertical_sync=layout.vertical_sync,
        merges=layout.merges,
    )
    return _compiled(bare, minibatches)


@lru_cache(KEPT_PROGRAMS)
def _compiled(layout: Layout, minibatches: int) -> CompiledSchedule:
    return compile_schedule(layout.schedule(minibatches, messages=False))
