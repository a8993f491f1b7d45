"""Edited schedules: the linter refuses those that cannot run or that compute something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybridnn.pipeline.checks.lint import ScheduleError, lint
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule
from reference.schedule_semantics import Definition, WrongSchedule, check

Orders = tuple[tuple[Instruction, ...], ...]


def build(definition: Definition) -> Schedule:
    return make_schedule(
        definition.method,
        stages=definition.stages,
        minibatches=definition.minibatches,
        microbatches=definition.microbatches,
        chunks=definition.chunks,
        weight_grad="merged" if definition.merged else "per-microbatch",
    )


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    method = draw(st.sampled_from(sorted(METHODS)))
    stages, minibatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    if method == "pipedream-2bw":
        return Definition(method, stages, minibatches, stages + draw(st.integers(0, 2)), merged=draw(st.booleans()))
    if method not in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        return Definition(method, stages, minibatches)
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
def test_schedules_compute_what_their_method_defines(definition: Definition) -> None:
    schedule = build(definition)
    check(definition, schedule.orders)
    lint(schedule)


@given(definitions(), st.lists(st.sampled_from(EDITS), min_size=1, max_size=3), st.integers(0, 2**32))
def test_linter_refuses_wrong_schedules(definition: Definition, edits: list[str], seed: int) -> None:
    schedule, random = build(definition), Random(seed)
    orders = schedule.orders
    for edit in edits:
        orders = broken(orders, edit, random)
    # Without any of these it is an evaluation, which may be correct.
    assume(any(i.name in ("backward", "input gradient", "update") for order in orders for i in order))
    if refused(definition, orders):
        assert linted(replace(schedule, orders=orders))


def small_edits(orders: Orders) -> Iterator[tuple[str, Orders]]:
    """Drop or double every instruction, swap every pair of neighbours, and move every instruction to the front."""
    for stage, order in enumerate(orders):
        for place, item in enumerate(order):
            before, after = order[:place], order[place + 1 :]
            edited = {
                "drop": (*before, *after),
                "double": (*order, item),
                "swap": (*before[:-1], item, *before[-1:], *after),
                "move": (item, *before, *after),
            }
            for edit, changed in edited.items():
                yield edit, (*orders[:stage], changed, *orders[stage + 1 :])


@pytest.mark.parametrize("method", sorted(METHODS))
def test_linter_refuses_every_small_edit_that_is_wrong(method: str) -> None:
    """The definitions refuse edits of every kind, so that these tests are not empty; the linter accepts some others."""
    cut = METHODS[method].cuts_minibatches
    minibatches, chunks = (1, 2) if METHODS[method].chunked else (2 if cut else 4, 1)
    definition = Definition(method, 3, minibatches, 3 if cut else 1, chunks)
    schedule = build(definition)
    wrong, accepted = dict.fromkeys(("drop", "double", "swap", "move"), 0), 0
    for edit, orders in small_edits(schedule.orders):
        refuses = linted(replace(schedule, orders=orders))
        if refused(definition, orders):
            assert refuses, (edit, orders)
            wrong[edit] += 1
        accepted += orders != schedule.orders and not refuses
    assert wrong["drop"] >= 30
    assert all(wrong.values())
    assert accepted > 0
