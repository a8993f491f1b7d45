"""Prediction of a layout on a machine: time, bytes sent and memory per step; its simulated schedule; scaling curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

import numpy as np

from hybridnn.cost.machine import Machine
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.groups import Collective, Groups, replica_groups
from hybridnn.cost.prediction.memory import largest_memory
from hybridnn.cost.prediction.stage_costs import StageCosts, chunk_costs, of_shapes
from hybridnn.cost.prediction.times import (
    MessageTimes,
    ScheduleTimes,
    TimeBreakdown,
    compile_layout,
    parts_of_efficiency,
    seconds_per_added_minibatch,
)
from hybridnn.parallel.shared_replica import slice_bounds
from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble, split_idle
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import balance
from hybridnn.pipeline.schedules.compiled_schedule import BARRIER, CompiledSchedule
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Instruction
from hybridnn.utils.checks import require_choice


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
    """Predict the cost of a layout, which must be feasible (see `hybridnn.cost.plan.feasible_layouts`)."""
    costs = StageCosts(workload, layout, machine)
    timing = _time(costs)
    return Prediction(
        layout=layout,
        seconds_per_step=timing.seconds_per_step,
        seconds_per_epoch=timing.seconds_per_epoch,
        breakdown=_mean_breakdown(costs, timing),
        bytes_per_step=bytes_sent(costs),
        memory_bytes=largest_memory(workload, layout).total,
        instructions=_seconds_by_kind(costs, timing.instructions),
    )


def epoch_seconds(workload: Workload, layout: Layout, machine: Machine) -> float:
    """Seconds of an epoch, as `predict`."""
    return _time(StageCosts(workload, layout, machine)).seconds_per_epoch


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StepTimes:
    """Times of a layout, with the instructions of one step and the seconds in which messages occupy each stage."""

    seconds_per_step: float
    seconds_per_epoch: float
    instructions: tuple[tuple[Instruction, ...], ...]
    receiving: tuple[float, ...]


def run(program: CompiledSchedule, costs: StageCosts) -> ScheduleTimes:
    """Time a compiled schedule: see `CompiledSchedule.times`, with ``exposed = 1 - hidden``."""
    durations = [costs.duration(stage, item) for stage, item in zip(program.stages, program.computations, strict=True)]
    none = MessageTimes()
    messages = [none if message is None else costs.message(message) for message in program.messages]
    transfers, links = [times.transit for times in messages], [times.link for times in messages]
    barrier = costs.barrier_seconds() if BARRIER in program.order else 0.0
    exposed = 1.0 - costs.hidden
    times = program.times(durations, transfers, barrier, exposed, links if any(links) else None)
    return ScheduleTimes(program, np.array(times.starts), np.array(times.ends), exposed * np.array(transfers))


def _time(costs: StageCosts) -> _StepTimes:
    """Times of a layout; where minibatches follow one another without end, a step is what one more of them adds."""
    layout, steps = costs.layout, costs.workload.steps_per_epoch
    if layout.drains:
        times = run(compile_layout(layout, 1), costs)
        seconds = times.makespan
        return _StepTimes(seconds, seconds * steps, times.program.schedule.orders, _receiving(times))
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
    weights = [prod(shape) / costs.layout.ranks for shape in costs.layout.stages]
    return sum((stage * weight for stage, weight in zip(stages, weights, strict=True)), TimeBreakdown())


def _receiving(times: ScheduleTimes) -> tuple[float, ...]:
    minibatches = times.program.schedule.minibatches
    return tuple(seconds / minibatches for seconds in times.communication)


def _total(costs: StageCosts, stage: int, instructions: Sequence[Instruction]) -> TimeBreakdown:
    computations = (instruction for instruction in instructions if isinstance(instruction, COMPUTATIONS))
    return sum((costs.breakdown(stage, instruction) for instruction in computations), TimeBreakdown())


def _seconds_by_kind(costs: StageCosts, stages: Sequence[Sequence[Instruction]]) -> dict[str, float]:
    """Seconds of computing per step by kind of instruction, the mean over the stages."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for stage, instructions in enumerate(stages):
        for instruction in instructions:
            if isinstance(instruction, COMPUTATIONS) and (computing := costs.breakdown(stage, instruction).computing):
                loss = costs.loss_seconds(stage, instruction)
                seconds[instruction.name] += (computing - loss) / len(stages)
                seconds["loss"] += loss / len(stages)
    return {kind: total for kind, total in seconds.items() if total}


# -- layers of the stages ----------------------------------------------------------------------------------------------


def balanced_layers(
    workload: Workload,
    machine: Machine,
    stages: Sequence[tuple[int, int]],
    *,
    placed: Sequence[int] = (),
    microbatches: int = 1,
) -> tuple[int, ...]:
    """Layers of every virtual stage for which the slowest stage, or boundary between two, is as fast as possible.

    The cost of a layer is that of its passes with a microbatch, split by its outputs over the model ranks of its stage:
    the smaller microbatches are, the more calls count beside arithmetic. The stages, of (batch, model) ranks, times the
    chunks are at most the layers. `placed` are the stages of the virtual stages, by default one chunk of each.
    """
    layers = workload.model.layers
    groups = Groups(Layout.uniform(stages, len(layers)), machine)
    samples = ceil(workload.batch_size / microbatches)

    def layer_seconds(batch: int, model: int) -> Iterator[float]:
        """Seconds of the passes through every layer on a stage of so many ranks."""
        group, rows = groups.model(stages.index((batch, model))), ceil(samples / batch)
        shared = group.ranks, group.crossings, workload.dtype, groups.busy_ranks, 1.0, True
        for layer in layers:
            costs = chunk_costs(machine, of_shapes([layer]), "columns", *shared)
            yield (costs.forward(rows) + costs.backward(rows, accumulate=False)).total

    # Which boundary lies between nodes is not known before the partition: all cost as much as the slowest.
    flows = {groups.flows(stage, stage + 1) for stage in range(len(stages) - 1)}
    sizes = [layer.outputs * samples * workload.itemsize for layer in layers[:-1]]
    slowest = (max(machine.message_seconds(size, spans_nodes=it > 0, flows=it) for it in flows) for size in sizes)
    boundaries = [2 * seconds for seconds in slowest]
    return balance([stages[stage] for stage in placed or range(len(stages))], layer_seconds, boundaries)


# -- traffic -----------------------------------------------------------------------------------------------------------


def bytes_sent(costs: StageCosts) -> int:
    """Bytes that all ranks together send in a step."""
    chunks = [(stage, chunk) for stage in range(len(costs.layout.stages)) for chunk in range(costs.layout.chunks)]
    parts = (_batch_groups, _model_groups, _between_stages)
    of_chunks = sum(part(costs, stage, chunk) for stage, chunk in chunks for part in parts)
    # Samples and targets that rank 0 distributes; the model groups send as much as one with all samples would.
    workload = costs.workload
    sample_bytes = workload.model.sizes[0] * workload.itemsize, workload.target_bytes
    loads = sum(_sum(costs.loads(nbytes, workload.batch_size)) for nbytes in sample_bytes)
    return of_chunks + loads + _sum(costs.loss_broadcast())


def _sum(collectives: Iterable[Collective]) -> int:
    return sum(item.bytes_sent for item in collectives)


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
    before, _ = costs.around[stage][chunk]
    if before is None or before == stage:
        return 0
    features = costs.chunks[stage][chunk].splits[0].layer.inputs
    receivers = stages[stage][1] + stages[before][1]
    return features * workload.itemsize * workload.batch_size * receivers


# -- simulated steps -------------------------------------------------------------------------------------------------

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
    minibatches = 1 if layout.drains else 4 * len(layout.stages)
    times = run(compile_layout(layout, minibatches), costs)
    per_step = times.makespan
    if not layout.drains:
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

MODEL_ERROR, SHORT_STEP, SHORT_STEP_ERROR = 0.2, 5e-4, 0.4
"""Error of a predicted step beside others of the same machine, at least; that of steps of fewer seconds is larger."""


def error_factor(seconds: float, machine: Machine) -> float:
    """Factor by which the ratio of two predictions may be off, the shorter one of `seconds`; not for a doubtful file.

    They err in opposite directions, each by the error that the machine file states, and by `MODEL_ERROR` at least.
    """
    least = SHORT_STEP_ERROR if seconds < SHORT_STEP else MODEL_ERROR
    error = max(least, machine.quality.held_out_error if machine.quality else 0.0)
    return (1 + error) / (1 - error)


CURVES = ("strong", "weak")
"""Strong scaling: the same minibatch for all numbers of ranks. Weak scaling: it grows with them."""


@dataclass(frozen=True)
class ScalingPoint:
    """Simulation of one number of ranks.

    The speed-up is samples per second over those of one rank, between `low` and `high` by the errors of both
    predictions (None if the machine file is doubtful). The efficiency is the speed-up per rank, and `shares` are the
    parts of the ranks' time by `parts_of_efficiency`.
    """

    ranks: int
    layout: Layout
    batch_size: int
    seconds_per_step: float
    speed_up: float
    low: float | None
    high: float | None
    efficiency: float
    shares: dict[str, float]


@dataclass(frozen=True)
class ScalingCurve:
    """A curve by number of ranks: of replicas of one layout, strong or weak, or of the best layouts."""

    kind: str  # one of `CURVES`, or "best"
    points: tuple[ScalingPoint, ...]


def scaling_curve(workload: Workload, layout: Layout, machine: Machine, kind: str) -> ScalingCurve:
    """Simulate one rank, and a layout with 1, 2, 4, ... times the replicas of its smallest form, up to its own.

    The minibatch of the workload is that of every point of a strong curve, and of the smallest layout of a weak one.
    """
    require_choice("curve", kind, CURVES)
    cases = [(workload.batch_size, Layout.uniform([(1, 1)], len(workload.model.layers)))]
    for replicas, wide in _replicated(layout):
        if wide.ranks > 1:
            cases.append((workload.batch_size * (replicas if kind == "weak" else 1), wide))
    return ScalingCurve(kind, tuple(scaling_points(workload, cases, machine)))


def scaling_points(workload: Workload, cases: Iterable[tuple[int, Layout]], machine: Machine) -> Iterator[ScalingPoint]:
    """Simulate layouts with the sizes of their minibatches; speed-ups are against one rank with the workload's."""
    serial = simulate_layout(workload, Layout.uniform([(1, 1)], len(workload.model.layers)), machine)
    for batch_size, layout in cases:
        step = simulate_layout(replace(workload, batch_size=batch_size), layout, machine)
        seconds, ranks = step.seconds_per_step, layout.ranks
        speed_up = batch_size / seconds * serial.seconds_per_step / workload.batch_size
        factor = error_factor(min(seconds, serial.seconds_per_step), machine) if ranks > 1 else 1.0
        low, high = (None, None) if machine.doubt else (speed_up / factor, speed_up * factor)
        shares = parts_of_efficiency(_per_sample(step), _per_sample(serial))
        yield ScalingPoint(ranks, layout, batch_size, seconds, speed_up, low, high, speed_up / ranks, shares)


def _replicated(layout: Layout) -> Iterator[tuple[int, Layout]]:
    """The layout with the fewest batch ranks in its stages' proportions, and with 2, 4, ... times as many."""
    most = gcd(*(batch for batch, _ in layout.stages))
    for replicas in (*(2**power for power in range((most - 1).bit_length())), most):
        stages = tuple((batch // most * replicas, model) for batch, model in layout.stages)
        yield replicas, replace(layout, stages=stages)


def _per_sample(step: SimulatedStep) -> dict[str, float]:
    """Seconds of all ranks per sample, by activity."""
    ranks_per_sample = step.layout.ranks / step.workload.batch_size
    return {name: seconds * ranks_per_sample for name, seconds in step.mean_activities().items()}
