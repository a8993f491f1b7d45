"""Prediction of a layout: its time, bytes sent and memory per step on a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hybridnn.cost.machine import Machine
from hybridnn.cost.prediction.groups import Collective, replica_groups
from hybridnn.cost.prediction.memory import largest_memory
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.cost.prediction.times import (
    ScheduleTimes,
    TimeBreakdown,
    compile_layout,
    mean_over_ranks,
    run,
    seconds_per_added_minibatch,
)
from hybridnn.cost.prediction.workload import Workload
from hybridnn.parallel.shared_replica import slice_bounds
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import Instruction


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of a layout."""

    layout: Layout
    seconds_per_step: float  # per minibatch; in the steady state, where minibatches overlap
    # includes warm-up and drain of the pipeline
    seconds_per_epoch: float
    breakdown: TimeBreakdown  # of a step, the mean over the ranks
    bytes_per_step: int  # sent by all ranks, counted as in ``hybridnn.comm.recorder``
    memory_bytes: int  # of the rank that needs most
    # seconds per step by kind of instruction, the mean over the stages: ``forward``, ``backward``, ``input
    # gradient``, ``weight gradient``, ``recompute``, ``reduce gradients``, ``loss``, ``update``; collectives of the
    # model group are part of the passes
    instructions: dict[str, float]


def predict(workload: Workload, layout: Layout, machine: Machine) -> Prediction:
    """Predict the cost of a layout, which must be feasible (see `hybridnn.cost.layouts`)."""
    costs = StageCosts(workload, layout, machine)
    timing = _time_exact(costs) if layout.exact else _time_asynchronous(costs)
    return Prediction(
        layout=layout,
        seconds_per_step=timing.seconds_per_step,
        seconds_per_epoch=timing.seconds_per_epoch,
        breakdown=_mean_breakdown(costs, timing),
        bytes_per_step=bytes_sent(costs),
        memory_bytes=largest_memory(workload, layout).total,
        instructions=_seconds_by_kind(costs, timing.instructions),
    )


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StepTimes:
    """Times of a layout, with the instructions of one step and the seconds in which messages occupy each stage."""

    seconds_per_step: float
    seconds_per_epoch: float
    instructions: tuple[tuple[Instruction, ...], ...]
    receiving: tuple[float, ...]


def _time_exact(costs: StageCosts) -> _StepTimes:
    times = run(compile_layout(costs.layout, 1), costs)
    seconds = times.makespan
    epoch = seconds * costs.workload.steps_per_epoch
    return _StepTimes(seconds, epoch, times.program.schedule.orders, _receiving(times))


def _time_asynchronous(costs: StageCosts) -> _StepTimes:
    """Minibatches follow one another without end: a step is what one more of them adds."""
    layout = costs.layout
    warm_up = 2 * len(layout.stages)
    short, long = (run(compile_layout(layout, count), costs) for count in (warm_up, 2 * warm_up))
    orders = tuple(
        tuple(instruction for instruction in order if instruction.minibatch == warm_up)
        for order in long.program.schedule.orders
    )
    receiving = _receiving(long)
    busiest = max(
        _total(costs, stage, order).total + seconds
        for stage, (order, seconds) in enumerate(zip(orders, receiving, strict=True))
    )
    # Schedules of unlike length may end on different stages, which makes the difference inexact; a stage's work is a
    # lower bound.
    per_step = max(busiest, seconds_per_added_minibatch(short, long))
    steps = costs.workload.steps_per_epoch
    if steps <= warm_up:
        epoch = run(compile_layout(layout, steps), costs).makespan
    else:
        epoch = short.makespan + (steps - warm_up) * per_step
    return _StepTimes(per_step, epoch, orders, receiving)


def _mean_breakdown(costs: StageCosts, timing: _StepTimes) -> TimeBreakdown:
    stages = []
    for stage, (instructions, receiving) in enumerate(zip(timing.instructions, timing.receiving, strict=True)):
        work = _total(costs, stage, instructions)
        bubble = max(0.0, timing.seconds_per_step - work.total - receiving)
        stages.append(replace(work, communication=work.communication + receiving, bubble=bubble))
    return mean_over_ranks(costs.layout, stages)


def _receiving(times: ScheduleTimes) -> tuple[float, ...]:
    minibatches = times.program.schedule.minibatches
    return tuple(seconds / minibatches for seconds in times.communication)


def _total(costs: StageCosts, stage: int, instructions: Sequence[Instruction]) -> TimeBreakdown:
    computations = filter(costs.is_computation, instructions)
    return sum((costs.breakdown(stage, instruction) for instruction in computations), TimeBreakdown())


def _seconds_by_kind(costs: StageCosts, stages: Sequence[Sequence[Instruction]]) -> dict[str, float]:
    """Seconds of computing per step by kind of instruction, the mean over the stages."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for stage, instructions in enumerate(stages):
        for instruction in filter(costs.is_computation, instructions):
            if computing := costs.breakdown(stage, instruction).computing:
                loss = costs.loss_seconds(stage, instruction)
                seconds[instruction.name] += (computing - loss) / len(stages)
                seconds["loss"] += loss / len(stages)
    return {kind: total for kind, total in seconds.items() if total}


# -- traffic -----------------------------------------------------------------------------------------------------------


def bytes_sent(costs: StageCosts) -> int:
    """Bytes that all ranks together send in a step."""
    chunks = [(stage, chunk) for stage in range(len(costs.layout.stages)) for chunk in range(costs.layout.chunks)]
    parts = (_batch_groups, _model_groups, _between_stages)
    of_chunks = sum(part(costs, stage, chunk) for stage, chunk in chunks for part in parts)
    return of_chunks + _loads(costs) + _sum(costs.loss_broadcast())


def _sum(collectives: Iterable[Collective]) -> int:
    return sum(item.bytes_sent for item in collectives)


def _loads(costs: StageCosts) -> int:
    """Samples and targets that rank 0 distributes; the model groups send as much as one with all samples would."""
    workload = costs.workload
    sample_bytes = workload.model.sizes[0] * workload.itemsize, workload.target_bytes
    return sum(_sum(costs.loads(nbytes, workload.batch_size)) for nbytes in sample_bytes)


def _batch_groups(costs: StageCosts, stage: int, chunk: int) -> int:
    """Reduction of the gradients and the loss, and the update of shared replicas."""
    if costs.layout.stages[stage][0] == 1:
        return 0
    total = 0
    for placement, groups in replica_groups(costs.layout, stage).items():
        total += costs.reduction(stage, chunk, placement).bytes_sent * groups
        if max(placement) > 1 and len(placement) > 1:
            slices, elements = max(placement), costs.chunks[stage][chunk].parameters
            bounds = [slice_bounds(elements, slices, number) for number in range(slices)]
            total += _sum(costs.slice_reduction(stage, stop - start, placement) for start, stop in bounds) * groups
    return total


def _model_groups(costs: StageCosts, stage: int, chunk: int) -> int:
    """Collectives of the layers in both passes; the groups send as much as one with all samples would."""
    layers, samples = costs.chunks[stage][chunk], costs.workload.batch_size
    forward, backward = (
        sum(_sum(layers.collectives(split, samples, backward=backward)) for split in layers.splits)
        for backward in (False, True)
    )
    return (1 + costs.layout.recomputes(stage)) * forward + backward


def _between_stages(costs: StageCosts, stage: int, chunk: int) -> int:
    """Messages with the activations that a chunk receives and the gradients that it returns: whole for every rank."""
    workload, stages = costs.workload, costs.layout.stages
    if stage == 0 and chunk == 0:
        return 0
    features = costs.chunks[stage][chunk].splits[0].layer.inputs
    receivers = stages[stage][1] + stages[(stage - 1) % len(stages)][1]
    return features * workload.itemsize * workload.batch_size * receivers
