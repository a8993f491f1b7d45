"""Programs of a rank: a short list with its repeating part is the list of any number of minibatches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hybridnn.pipeline.execution.program import StageProgram, make_program
from hybridnn.pipeline.schedules.instructions import Instruction, Update
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule

LONG = 200


def makers(stages: int) -> dict[str, Callable[[int], Schedule]]:
    """Schedules of many minibatches, from their number."""
    found: dict[str, Callable[[int], Schedule]] = {}
    for name, method in METHODS.items():
        if not method.exact:
            microbatches = stages + 1 if method.fills_pipeline else 1
            found[name] = lambda count, name=name, microbatches=microbatches: make_schedule(  # type: ignore[misc]
                name, stages=stages, minibatches=count, microbatches=microbatches
            )
    found["vertical sync"] = lambda count: make_schedule(
        "pipedream", stages=stages, minibatches=count, vertical_sync=True
    )
    found["evaluation"] = partial(forward_only, stages)
    found["evaluation with chunks"] = lambda count: forward_only(stages, count, 2)
    return found


def walked(program: StageProgram, minibatches: int) -> list[Instruction]:
    items = ((program.order[place], shift) for place, shift in program.walk(minibatches))
    return [item.of_minibatch(item.minibatch + shift) for item, shift in items]


@pytest.mark.parametrize("stages", range(2, 6))
@pytest.mark.parametrize("name", makers(2))
def test_program_of_any_number_of_minibatches_is_their_schedule(name: str, stages: int) -> None:
    make = makers(stages)[name]
    for minibatches in (1, 2, stages + 1, *range(6 * stages, 8 * stages + 2), LONG):
        full = make(minibatches)
        for stage in range(stages):
            program = make_program(make, stage, stages, minibatches)
            assert walked(program, minibatches) == list(full.orders[stage])


@pytest.mark.parametrize("stages", range(2, 6))
@pytest.mark.parametrize("name", makers(2))
def test_length_of_a_program_does_not_grow_with_the_minibatches(name: str, stages: int) -> None:
    make = makers(stages)[name]
    longest = max(map(len, make(8 * stages).orders))
    for stage in range(stages):
        assert len(make_program(make, stage, stages, 10_000 + stage).order) <= longest


@pytest.mark.parametrize("stages", range(2, 6))
@pytest.mark.parametrize("name", [name for name in makers(2) if "evaluation" not in name])
def test_repetitions_use_the_buffers_and_versions_of_the_whole_list(name: str, stages: int) -> None:
    """Every read of an older version finds it among those kept, and no buffer is overwritten before its last use."""
    make = makers(stages)[name]
    for stage in range(stages):
        program = make_program(make, stage, stages, LONG)
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


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("name", [name for name in makers(2) if "evaluation" not in name])
def test_mean_staleness_is_that_of_all_minibatches_counted_one_by_one(name: str, stages: int) -> None:
    """Walked through the whole list: versions read by forward passes, and those that gradients are applied to."""
    make = makers(stages)[name]
    for minibatches in (1, 2, 5, 6 * stages + 1, 8 * stages, LONG):
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
            found = make_program(make, stage, stages, minibatches).mean_staleness(minibatches)
            assert found == pytest.approx(sum(staleness) / minibatches, rel=1e-14)


def test_schedule_of_a_fixed_number_of_minibatches_runs_only_those() -> None:
    program = StageProgram(make_schedule("1f1b", stages=2, minibatches=1, microbatches=2), 0)
    with pytest.raises(ValueError, match="1 minibatches cannot run 2"):
        list(program.walk(2))
