"""Small schedules of every method, and the times of their computations."""

from collections.abc import Callable, Iterator
from typing import Any

from hybridnn.pipeline.schedules.instructions import COMPUTATIONS, Barrier, Instruction
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule
from reference.schedule_semantics import Definition


def small(method: str, stages: int, minibatches: int = 3, chunks: int = 2, **options: Any) -> Schedule:
    """A schedule with two microbatches per stage, and with `chunks` chunks, if the method has them."""
    kind = METHODS[method]
    cut = {
        "microbatches": 2 * stages if kind.cuts_minibatches else 1,
        "chunks": chunks if chunks in kind.chunks else kind.chunks[0],
    }
    return make_schedule(method, stages=stages, minibatches=minibatches, **{**cut, **options})


def forms(method: str) -> Iterator[dict[str, Any]]:
    """The options of a method: where weight gradients are computed, and which versions are read."""
    yield {}
    if not METHODS[method].placed_weight_gradients:
        yield {"weight_grad": "merged"}


Times = list[list[float]]
"""One per computation or barrier of every stage."""


def times_of_computations(
    schedule: Schedule, duration: Callable[[int, Instruction], float], message: float
) -> tuple[Times, Times]:
    """Starts and ends; messages take the given time and do not occupy a stage."""
    definition = Definition(schedule.method, schedule.stages, 1, 1, schedule.chunks)
    last = definition.last
    lists = [[item for item in order if isinstance(item, (Barrier, *COMPUTATIONS))] for order in schedule.orders]
    starts: Times = [[] for _ in lists]
    ends: Times = [[] for _ in lists]
    made: dict[tuple[bool, int, int, int], float] = {}

    def advance(stage: int) -> bool:
        instruction = lists[stage][len(ends[stage])]
        start = ends[stage][-1] if ends[stage] else 0.0
        if isinstance(instruction, Barrier):
            return False
        virtual = definition.chunk(stage, instruction.chunk)
        forward, backward = instruction.name == "forward", instruction.name in ("backward", "input gradient")
        part = forward, instruction.minibatch, instruction.microbatch
        if (forward and virtual > 0) or (backward and virtual < last):
            before = virtual - 1 if forward else virtual + 1
            needed = *part, before
            if needed not in made:
                return False
            start = max(start, made[needed] + (message if definition.stage_of(before) != stage else 0))
        starts[stage].append(start)
        ends[stage].append(start + duration(stage, instruction))
        if forward or backward:
            made[(*part, virtual)] = ends[stage][-1]
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
