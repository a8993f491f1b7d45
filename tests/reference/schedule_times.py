"""Times of the computations of a schedule, stage by stage: an implementation independent of the clock."""

from __future__ import annotations

from collections.abc import Callable

from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Barrier, Instruction
from hybridnn.pipeline.schedules.schedule import Message, MessageFlow, Schedule

Times = list[list[float]]
"""One per computation or barrier of every stage."""


def times_of_computations(
    schedule: Schedule, duration: Callable[[int, Instruction], float], message: float
) -> tuple[Times, Times]:
    """Starts and ends; messages take the given time and do not occupy a stage."""
    flow = MessageFlow(schedule)
    lists = [[item for item in order if isinstance(item, (Barrier, *COMPUTATIONS))] for order in schedule.orders]
    starts: Times = [[] for _ in lists]
    ends: Times = [[] for _ in lists]
    made: dict[Message, float] = {}

    def advance(stage: int) -> bool:
        instruction = lists[stage][len(ends[stage])]
        start = ends[stage][-1] if ends[stage] else 0.0
        if isinstance(instruction, Barrier):
            return False
        needed = flow.needed(stage, instruction)
        if needed is not None:
            if needed not in made:
                return False
            start = max(start, made[needed] + message)
        starts[stage].append(start)
        ends[stage].append(start + duration(stage, instruction))
        product = flow.made(stage, instruction)
        if product is not None:
            made[product] = ends[stage][-1]
        return True

    def pass_barrier() -> bool:
        if not all(isinstance(item, Barrier) for item in following()):
            return False
        clocks = [own[-1] if own else 0.0 for own in ends]
        for stage, clock in enumerate(clocks):
            starts[stage].append(clock)
            ends[stage].append(max(clocks))
        return True

    def following() -> list[Instruction]:
        return [items[len(own)] for items, own in zip(lists, ends, strict=True) if len(own) < len(items)]

    while following():
        unfinished = [stage for stage, items in enumerate(lists) if len(ends[stage]) < len(items)]
        assert any([advance(stage) for stage in unfinished]) or pass_barrier(), "a deadlock"
    return starts, ends
