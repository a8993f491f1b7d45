"""Random edits of schedules: the linter refuses those that cannot run or that compute something else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridnn.pipeline.checks.lint import ScheduleError, lint
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule
from reference.schedule_semantics import Definition, WrongSchedule, check

pytestmark = pytest.mark.slow

Orders = tuple[tuple[Instruction, ...], ...]


def build(definition: Definition) -> Schedule:
    return make_schedule(
        definition.method,
        stages=definition.stages,
        minibatches=definition.minibatches,
        microbatches=definition.microbatches,
        chunks=definition.chunks,
        weight_grad="merged" if definition.merged else "per-microbatch",
        vertical_sync=definition.vertical_sync,
    )


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    method = draw(st.sampled_from(sorted(METHODS)))
    stages, minibatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    if method == "pipedream-2bw":
        return Definition(method, stages, minibatches, stages + draw(st.integers(0, 2)), merged=draw(st.booleans()))
    if method not in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        return Definition(method, stages, minibatches, vertical_sync=method == "pipedream" and draw(st.booleans()))
    minibatches = min(minibatches, 2)
    merged = method != "zb-h1" and draw(st.booleans())
    if method == "interleaved":
        stages = max(2, min(stages, 3))
        return Definition(method, stages, minibatches, stages * draw(st.integers(1, 2)), 2, merged=merged)
    microbatches = draw(st.integers(1, 5))
    return Definition(method, stages, minibatches, microbatches, merged=merged and microbatches > 1)


def broken(orders: Orders, edit: str, random: Random) -> Orders:
    """Drop, double or move an instruction of one stage, or swap two."""
    stage = random.randrange(len(orders))
    order = list(orders[stage])
    position = random.randrange(len(order))
    if edit == "swap":
        other = random.randrange(len(order))
        order[position], order[other] = order[other], order[position]
    elif edit == "swap neighbours":
        other = max(0, position - 1)
        order[position], order[other] = order[other], order[position]
    elif edit == "double":
        order.insert(random.randrange(len(order) + 1), order[position])
    else:
        instruction = order.pop(position)
        if edit == "move":
            order.insert(random.randrange(len(order) + 1), instruction)
    return (*orders[:stage], tuple(order), *orders[stage + 1 :])


EDITS = ("drop", "swap", "swap neighbours", "double", "move")


def refused(definition: Definition, orders: Orders) -> bool:
    try:
        check(definition, orders)
    except WrongSchedule:
        return True
    return False


def linted(schedule: Schedule) -> bool:
    """Whether the linter refuses; any other error than its own fails the test."""
    try:
        lint(schedule)
    except ScheduleError:
        return True
    return False


@given(definitions())
@settings(max_examples=150)
def test_schedules_compute_what_their_method_defines(definition: Definition) -> None:
    schedule = build(definition)
    check(definition, schedule.orders)
    lint(schedule)


@given(definitions(), st.lists(st.sampled_from(EDITS), min_size=1, max_size=3), st.integers(0, 2**32))
@settings(max_examples=1500)
def test_linter_refuses_wrong_schedules(definition: Definition, edits: list[str], seed: int) -> None:
    schedule, random = build(definition), Random(seed)
    orders = schedule.orders
    for edit in edits:
        orders = broken(orders, edit, random)
    # Without any of these it is an evaluation, which may be correct.
    assume(any(i.name in ("backward", "input gradient", "update") for order in orders for i in order))
    if refused(definition, orders):
        assert linted(replace(schedule, orders=orders))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_edit_breaks_schedules(method: str) -> None:
    """Every kind of edit makes lists that the definitions refuse, so that the property above is not empty.

    And the linter accepts some edited schedules.
    """
    cut = METHODS[method].cuts_minibatches
    definition = Definition(method, 3, 2 if cut else 5, 6 if cut else 1, 2 if method == "interleaved" else 1)
    schedule, random = build(definition), Random(7)
    wrong: Counter[str] = Counter()
    accepted = 0
    for edit in EDITS:
        for _ in range(40):
            orders = broken(schedule.orders, edit, random)
            wrong[edit] += refused(definition, orders)
            accepted += orders != schedule.orders and not linted(replace(schedule, orders=orders))
    assert wrong["drop"] >= 30
    assert all(wrong[edit] > 0 for edit in EDITS)
    assert accepted > 0
