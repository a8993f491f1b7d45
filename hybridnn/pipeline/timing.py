"""When each computation of a schedule runs, where stages work through their lists as early as the data allows.

Messages do not occupy a stage: they go on beside the computations and are waited for where their content is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridnn.pipeline.instructions import (
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    Recompute,
    ReduceGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedule import Schedule
from hybridnn.pipeline.schedule_error import ScheduleError

__all__ = ["COMPUTATIONS", "Duration", "Times", "time_computations"]

COMPUTATIONS = (Forward, Recompute, Backward, InputGradient, WeightGradient, ReduceGradients, Update)
"""What occupies a stage."""

Duration = Callable[[int, Instruction], float]
"""From (stage, computation) to how long it takes."""


@dataclass(frozen=True)
class Times:
    """When everything happens.

    Attributes
    ----------
    spans : tuple of tuple of (float, float)
        Start and end of every instruction of every stage. A barrier lasts while the stage waits; loads and messages
        have the moment at which the stage comes to them.
    made : dict
        End of the computation that makes each message.
    """

    spans: tuple[tuple[tuple[float, float], ...], ...]
    made: dict[Message, float]


def time_computations(schedule: Schedule, duration: Duration, message: float = 0.0) -> Times:
    """Time the computations of all stages; loads and messages of the lists are passed over.

    Parameters
    ----------
    schedule : Schedule
        With or without loads and messages.
    duration : callable
        From (stage, computation) to how long it takes.
    message : float
        Time between the end of a computation and the arrival of what it made at another stage.

    Returns
    -------
    Times

    Raises
    ------
    ScheduleError
        If a stage waits for something that never happens.
    """
    flow = MessageFlow(schedule)
    spans: list[list[tuple[float, float]]] = [[] for _ in schedule.orders]
    clocks = [0.0] * schedule.stages
    made: dict[Message, float] = {}
    waiting: dict[Message, int] = {}
    at_barrier: list[int] = []
    runnable = list(range(schedule.stages))
    while runnable:
        stage = runnable.pop()
        order, done = schedule.orders[stage], spans[stage]
        while len(done) < len(order):
            instruction = order[len(done)]
            start = end = clocks[stage]
            if type(instruction) in COMPUTATIONS:
                need = flow.needed(stage, instruction)
                if need is not None:
                    if need not in made:
                        waiting[need] = stage
                        break
                    start = max(start, made[need] + message)
                end = start + duration(stage, instruction)
                product = flow.made(stage, instruction)
                if product is not None:
                    made[product] = end
                    if product in waiting:
                        runnable.append(waiting.pop(product))
            elif isinstance(instruction, Barrier):
                at_barrier.append(stage)
                if len(at_barrier) == schedule.stages:
                    _release(at_barrier, clocks, spans)
                    runnable += at_barrier
                    at_barrier.clear()
                break
            done.append((start, end))
            clocks[stage] = end
    _require_finished(schedule, spans)
    return Times(tuple(map(tuple, spans)), made)


def _release(stages: list[int], clocks: list[float], spans: list[list[tuple[float, float]]]) -> None:
    """Let all stages go on from a barrier when the last has come."""
    end = max(clocks)
    for stage in stages:
        spans[stage].append((clocks[stage], end))
        clocks[stage] = end


def _require_finished(schedule: Schedule, spans: list[list[tuple[float, float]]]) -> None:
    for stage, (order, done) in enumerate(zip(schedule.orders, spans, strict=True)):
        if len(done) < len(order):
            reason = "waits for something that never happens"
            raise ScheduleError(stage, len(done), order[len(done)], reason)
