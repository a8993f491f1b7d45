"""What the page of a schedule has to show at a time, from the simulated schedule alone, without its animation."""

from bisect import bisect_right
from dataclasses import dataclass

from hybridnn.pipeline.checks.simulated_schedule import TimedInstruction, Timeline
from hybridnn.pipeline.schedules.instructions import (
    ALL_MICROBATCHES,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    Update,
    WeightGradient,
)

PASSES = (Forward, Recompute, Backward, InputGradient, WeightGradient)
GRADIENTS = (Backward, InputGradient, WeightGradient)


@dataclass(frozen=True)
class Shown:
    """A stage at a time: its computation, empty while it waits, and the labels of what it holds."""

    kind: str
    label: str
    version: str
    current: str
    weights: tuple[str, ...]
    activations: tuple[str, ...]


def label(timeline: Timeline, item: Instruction) -> str:
    """Number of a minibatch or microbatch, from 1; for schedules that have only one of both."""
    if timeline.schedule.microbatches == 1:
        return str(item.minibatch + 1)
    assert timeline.schedule.minibatches == timeline.schedule.chunks == 1
    return "" if item.microbatch == ALL_MICROBATCHES else str(item.microbatch + 1)


def moments(timeline: Timeline) -> list[float]:
    """Times at which a computation or a message begins or ends."""
    messages = (ReceiveActivations, ReceiveGradients)
    found = {0.0, timeline.makespan}
    for items in timeline.stages:
        found |= {time for item in items if isinstance(item.instruction, PASSES + messages) for time in item[1:3]}
    return sorted(found)


def shown(timeline: Timeline, stage: int, time: float) -> Shown:
    """What a stage does and holds at a time."""
    items = timeline.stages[stage]
    updates = sorted(item.end for item in items if isinstance(item.instruction, Update))
    current = bisect_right(updates, time)
    needed = {item.read.version for item in items if item.read is not None and item.end > time}
    running = [item for item in items if isinstance(item.instruction, PASSES) and item.start <= time < item.end]
    activations = [item for item in items if _is_held(items, item, time)]
    return Shown(
        "".join(item.instruction.name for item in running),
        "".join(label(timeline, item.instruction) for item in running),
        "".join(_version(item) for item in running),
        f"v{current}",
        tuple(f"v{version}" for version in range(current + 1) if version in needed or version == current),
        tuple(label(timeline, item.instruction) for item in activations),
    )


def _version(item: TimedInstruction) -> str:
    if item.read is None:
        return ""
    return f"v{item.read.version}" + (f"+{item.read.ahead}" if item.read.ahead else "")


def _is_held(items: tuple[TimedInstruction, ...], made: TimedInstruction, time: float) -> bool:
    """Whether activations that a pass has begun to compute are held: until the last gradient computed from them."""
    if not isinstance(made.instruction, Forward | Recompute) or made.start > time:
        return False
    same = [item for item in items if item.instruction.part == made.instruction.part]
    is_recomputed = any(isinstance(item.instruction, Recompute) for item in same)
    if isinstance(made.instruction, Forward) and is_recomputed:
        return time < made.end
    return any(isinstance(item.instruction, GRADIENTS) and time < item.end for item in same)


def at_barrier(timeline: Timeline, time: float) -> list[int]:
    """Stages that wait at a barrier."""
    return [
        stage
        for stage, items in enumerate(timeline.stages)
        if any(isinstance(item.instruction, Barrier) and item.start <= time < item.end for item in items)
    ]


def unread(timeline: Timeline, time: float) -> list[tuple[int, bool, str]]:
    """Messages that have been sent and not been used: receiver, whether they are gradients, and label."""
    found = []
    for stage, items in enumerate(timeline.stages):
        for item in items:
            gradients = isinstance(item.instruction, ReceiveGradients)
            if not gradients and not isinstance(item.instruction, ReceiveActivations):
                continue
            users = (Backward, InputGradient) if gradients else (Forward,)
            (use,) = (
                other.start
                for other in items
                if isinstance(other.instruction, users) and other.instruction.part == item.instruction.part
            )
            if item.start <= time < use:
                found.append((stage, gradients, label(timeline, item.instruction)))
    return sorted(found)
