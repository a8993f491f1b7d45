"""Programs of a rank: a short list with its repeating part is the list of any number of minibatches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import pytest

from hybridnn.pipeline.schedules.instructions import Instruction, Update
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.program import StageProgram, make_program
from hybridnn.pipeline.schedules.schedule import Schedule

LONG = 101


@cache
def makers(stages: int) -> dict[str, Callable[[int], Schedule]]:
    """Schedules of many minibatches, from their number."""
    found: dict[str, Callable[[int], Schedule]] = {}
    for name, method in METHODS.items():
        if not method.exact:
            microbatches = stages + 1 if method.fills_pipeline else 1
            found[name] = lambda count, name=name, microbatches=microbatches: make_schedule(  # type: ignore[misc]
                name, stages=stages, minibatches=count, microbatches=microbatches
            )
    found["evaluation"] = partial(forward_only, stages)
    found["evaluation with chunks"] = lambda count: forward_only(stages, count, 2)
    return {name: cache(make) for name, make in found.items()}


def walked(program: StageProgram, minibatches: int) -> list[Instruction]:
    items = ((program.order[place], shift) for place, shift in program.walk(minibatches))
    return [item.of_minibatch(item.minibatch + shift) for item, shift in items]


@pytest.mark.parametrize("name", makers(2))
def test_program_of_any_number_of_minibatches_is_their_schedule(name: str) -> None:
    """Its length does not grow with their number."""
    for stages in (2, 3, 5):
        make = makers(stages)[name]
        longest = max(map(len, make(8 * stages).orders))
        numbers = (1, stages + 1, 6 * stages, 6 * stages + 1, 7 * stages - 1, 8 * stages, LONG)
        for minibatches, stage in product(numbers, range(stages)):
            program = make_program(make, stage, stages, minibatches)
            assert walked(program, minibatches) == list(make(minibatches).orders[stage])
            assert len(program.order) <= longest


@pytest.mark.parametrize("name", [name for name in makers(2) if "evaluation" not in name])
def test_repetitions_use_the_buffers_and_versions_of_the_whole_list(name: str) -> None:
    """Every read of an older version finds it among those kept, and no buffer is overwritten before its last use."""
    for stages, stage in ((2, 0), (2, 1), (3, 1), *((5, stage) for stage in range(5))):
        program = make_program(makers(stages)[name], stage, stages, LONG)
        held: list[int] = []  # ages of older versions
        owner: dict[tuple[int, int], tuple[int, int]] = {}
        for place, shift in program.walk(LONG):
            item = program.order[place]
            minibatch = item.minibatch + shift, item.microbatch
            if isinstance(item, Update):
                held = [age + 1 for age in [0, *held] if age + 1 in program.kept[place]]
            elif place in program.reads:
                age, ahead = program.reads[place]
                assert ahead or age == 0 or age in held
            slot = program.memory.input_slots.get((item.minibatch, item.microbatch, item.chunk))
            if slot is not None and item.name == "forward":
                owner[item.chunk, slot] = minibatch
            elif slot is not None and item.name in ("backward", "recompute"):
                assert owner[item.chunk, slot] == minibatch


@pytest.mark.parametrize("name", [name for name in makers(2) if "evaluation" not in name])
def test_mean_staleness_is_that_of_all_minibatches_counted_one_by_one(name: str) -> None:
    """Walked through the whole list: versions read by forward passes, and those that gradients are applied to."""
    for stages, minibatches in product((2, 5), (1, 2, 5, 31, LONG)):
        make = makers(stages)[name]
        full = make(minibatches)
        for stage in range(stages):
            read, staleness, updates = {}, [], 0
            for item in full.orders[stage]:
                if item.name == "forward":
                    version = full.weights_read(stage, item)
                    assert version is not None
                    read[item.minibatch] = version.version
                elif item.name == "update":
                    staleness.append(updates - read[item.minibatch])
                    updates += 1
            assert len(staleness) == minibatches
            found = full.policy.mean_staleness(stage, stages, minibatches)
            assert found == pytest.approx(sum(staleness) / minibatches, rel=1e-14)


def test_schedule_of_a_fixed_number_of_minibatches_runs_only_those() -> None:
    program = StageProgram(make_schedule("1f1b", stages=2, minibatches=1, microbatches=2), 0)
    with pytest.raises(ValueError, match="1 minibatches cannot run 2"):
        list(program.walk(2))
