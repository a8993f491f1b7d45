"""When each computation of a schedule runs, where stages work through their lists as early as the data allows.

Messages do not occupy a stage: they go on beside the computations and are waited for where their content is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Barrier, Instruction
from hybridnn.pipeline.schedules.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError

Duration = Callable[[int, Instruction], float]
"""From (stage, computation) to how long it takes."""


@dataclass(frozen=True)
class Times:
    """When everything happens.

    Attributes
    ----------
    starts, ends : list of list of float
        Start and end of every instruction of every stage. A barrier lasts while the stage waits; loads and messages
        have the moment at which the stage comes to them.
    made : dict
        End of the computation that makes each message.
    """

    starts: list[list[float]]
    ends: list[list[float]]
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
    starts: list[list[float]] = [[] for _ in schedule.orders]
    ends: list[list[float]] = [[] for _ in schedule.orders]
    clocks = [0.0] * schedule.stages
    made: dict[Message, float] = {}
    waiting: dict[Message, int] = {}
    at_barrier: list[int] = []
    runnable = list(range(schedule.stages))
    while runnable:
        stage = runnable.pop()
        order = schedule.orders[stage]
        while len(ends[stage]) < len(order):
            instruction = order[len(ends[stage])]
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
                    clocks = _leave_barrier(clocks, starts, ends)
                    runnable += at_barrier
                    at_barrier.clear()
                break
            starts[stage].append(start)
            ends[stage].append(end)
            clocks[stage] = end
    for stage, order in enumerate(schedule.orders):
        if len(ends[stage]) < len(order):
            place = len(ends[stage])
            raise ScheduleError(stage, place, order[place], "waits for something that never happens")
    return Times(starts, ends, made)


def _leave_barrier(clocks: list[float], starts: list[list[float]], ends: list[list[float]]) -> list[float]:
    """Note that all stages wait for the last one, and return the clocks with which they go on."""
    end = max(clocks)
    for stage, clock in enumerate(clocks):
        starts[stage].append(clock)
        ends[stage].append(end)
    return [end] * len(clocks)
