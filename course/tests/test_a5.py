"""A5: references against the library, closed forms, an event-driven pipeline and a search over all orders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import pytest

from hybridnn.pipeline.checks.simulated_schedule import Durations, Timeline, simulate
from hybridnn.pipeline.schedules.compiled_schedule import compile_schedule
from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, WeightGradient
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError, ScheduleSize
from hybridnn.pipeline.schedules.weight_policies import EXACT
from hybridnn_course.answers import MEASURED, Answer
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a5_pipeline.notation import KEPT, checked_rules, timed, to_order, to_schedule, to_text
from hybridnn_course_staff.assignments.a5_pipeline import assignment as a5
from hybridnn_course_staff.assignments.a5_pipeline.assignment import ASSIGNMENT
from hybridnn_course_staff.assignments.a5_pipeline.solution import (
    OrderFunction,
    gpipe_solution,
    measure,
    most_in_flight,
    one_forward_one_backward_solution,
    zero_bubble_solution,
)
from hybridnn_course_staff.handout import render_handout

VARIANTS = [dict(zip(ASSIGNMENT.axes, choice, strict=True)) for choice in product(*ASSIGNMENT.axes.values())]
STANDARD = ASSIGNMENT.standard
MOVED = {axis: list(choices)[-1] for axis, choices in ASSIGNMENT.axes.items()}
KEY = b"a key of a term."
SIZES = [ScheduleSize(stages, t, m) for stages in (1, 2, 3, 5) for t in (1, 2) for m in (1, 2, 4, 9)]


def _wrong(task: str, name: str) -> OrderFunction:
    return next(mistake.function(STANDARD) for mistake in ASSIGNMENT.task(task).mistakes if mistake.name == name)


def _texts(function: OrderFunction, size: ScheduleSize) -> list[str]:
    return [to_text(function(size, stage), size.minibatches) for stage in range(size.stages)]


# -- orders -----------------------------------------------------------------------------------------------------------


def _planned(variant: Variant, function: OrderFunction, size: ScheduleSize) -> Timeline:
    """The timeline of an order by the library, which has passed the linter."""
    return timed(size, _texts(function, size))


@pytest.mark.parametrize("variant", VARIANTS[::2])
def test_orders_have_the_bubble_and_the_memory_of_the_closed_forms(variant: Variant) -> None:
    for size in SIZES:
        fraction = (size.stages - 1) / (size.microbatches + size.stages - 1)
        merged = variant["weight_gradients"] == "merged"
        for function, bounds in (
            (gpipe_solution(variant), [size.microbatches] * size.stages),
            (
                one_forward_one_backward_solution(variant),
                [min(most_in_flight(variant, size, stage), size.microbatches) for stage in range(size.stages)],
            ),
        ):
            timeline = _planned(variant, function, size)
            stored = [plan.peak_live_activations for plan in timeline.plans]
            assert stored == ([size.microbatches] * size.stages if merged else bounds)
            if not merged:
                assert timeline.bubble_fraction == pytest.approx(fraction, abs=1e-12)


@pytest.mark.parametrize("twice", [False, True])
def test_1f1b_is_what_stages_do_that_prefer_backward_passes(twice: bool) -> None:
    """Stages start a backward pass as soon as they can, and else a forward pass unless the bound forbids it."""
    variant = {**STANDARD, "in_flight": "twice the distance" if twice else "fewest"}
    for stages, microbatches in product((1, 2, 3, 5), (1, 3, 8)):
        size = ScheduleSize(stages, 1, microbatches)
        bounds = [(2 if twice else 1) * (stages - 1 - stage) + 1 for stage in range(stages)]
        # With messages as long as a forward pass, the larger bound is just enough; with none, the smaller one.
        found = _event_driven(bounds, microbatches, message=1 if twice else 0)
        assert found == [text.removesuffix(" R U") for text in _texts(one_forward_one_backward_solution(variant), size)]


def _event_driven(bounds: Sequence[int], microbatches: int, message: int) -> list[str]:
    """Orders of stages that decide at each moment; forward passes take 1, backward passes 2."""
    stages = len(bounds)
    free, done = [0] * stages, [[0, 0] for _ in range(stages)]
    arrived: list[dict[str, int]] = [{} for _ in range(stages)]
    orders: list[list[str]] = [[] for _ in range(stages)]
    for now in range(100):
        for stage in range(stages):
            if free[stage] > now:
                continue
            forwards, backwards = done[stage]
            has_gradient = stage == stages - 1 or arrived[stage].get(f"B{backwards}", 99) <= now
            has_input = stage == 0 or arrived[stage].get(f"F{forwards}", 99) <= now
            if backwards < forwards and has_gradient:
                name, seconds, to = f"B{backwards}", 2, stage - 1
                done[stage][1] += 1
            elif forwards < microbatches and forwards - backwards < bounds[stage] and has_input:
                name, seconds, to = f"F{forwards}", 1, stage + 1
                done[stage][0] += 1
            else:
                continue
            orders[stage].append(name)
            free[stage] = now + seconds
            if 0 <= to < stages:
                arrived[to][name] = now + seconds + message
    return [" ".join(order) for order in orders]


# -- zero bubble ------------------------------------------------------------------------------------------------------


def test_zero_bubble_is_as_fast_as_the_budget_says() -> None:
    task = ASSIGNMENT.task("zb-h1")
    assert task.budget is not None
    for size in SIZES:
        case = a5._order_case(size.stages, size.microbatches, size.minibatches)
        bounds = task.budget(case, _answer(size, _texts(zero_bubble_solution(STANDARD), size)), STANDARD)
        assert [bound.value for bound in bounds] == [bound.full for bound in bounds]
        split = _wrong("zb-h1", "weights-at-once")
        makespan, _ = task.budget(case, _answer(size, _texts(split, size)), STANDARD)
        assert makespan.value == makespan.zero


def _answer(size: ScheduleSize, texts: Any) -> Answer:
    return Answer(outputs=({MEASURED: {"orders": texts}},))


def test_no_order_of_two_stages_is_faster_than_the_budget_asks() -> None:
    """All orders with at most two stored microbatches."""
    for microbatches in (1, 2, 3):
        size = ScheduleSize(2, 1, microbatches)
        orders = [" ".join([*order, "R", "U"]) for order in _all_orders(microbatches)]
        allowed = [order for order in orders if _most_stored(order) <= min(2, microbatches)]
        ends = []
        for pair in product(allowed, repeat=2):
            schedule = _unplaced(size, pair)
            try:
                ends.append(simulate(schedule, Durations()).makespan)
            except ScheduleError:
                continue  # the stages wait for each other
        best = 3 * microbatches + 1 + max(0, 2 - microbatches)
        assert min(ends) == best


def _unplaced(size: ScheduleSize, texts: Sequence[str]) -> Schedule:
    orders = tuple(tuple(to_order(text)) for text in texts)
    counts = size.stages, 1, size.minibatches, size.microbatches
    return Schedule("an order", *counts, EXACT, orders, (size.microbatches,) * size.stages)


def _all_orders(microbatches: int) -> list[list[str]]:
    """All orders of F, I and W of ascending microbatches, each after what it needs."""
    found: list[list[str]] = []

    def extend(order: list[str], counts: tuple[int, int, int]) -> None:
        if len(order) == 3 * microbatches:
            found.append(order)
        for kind, letter in enumerate("FIW"):
            limit = counts[kind - 1] if kind else microbatches
            if counts[kind] < limit:
                more = tuple(count + (number == kind) for number, count in enumerate(counts))
                extend([*order, f"{letter}{counts[kind]}"], (more[0], more[1], more[2]))

    extend([], (0, 0, 0))
    return found


def _most_stored(order: str) -> int:
    letters = [word[0] for word in order.split()]
    return max(letters[: n + 1].count("F") - letters[:n].count("W") for n in range(len(letters)))


@pytest.mark.parametrize(
    "texts",
    [
        None,
        5,
        ["F0 I0 W0 R U"],
        ["F0 I0 W0 R U"] * 3,
        [0, 1],
        ["F0 I0 W0 R U", "Z9"],
        ["F0 I0 W0 R U", "F0 W0 I0 R U"],
        ["F0 I0 W0 R U", "F0 I0 W0 R U " * 20_000],
    ],
)
def test_measured_orders_that_are_none_earn_nothing(texts: Any) -> None:
    task = ASSIGNMENT.task("zb-h1")
    assert task.budget is not None
    for bound in task.budget(a5._order_case(2, 1), _answer(ScheduleSize(2, 1, 1), texts), STANDARD):
        assert bound.fraction == 0


def test_orders_with_random_changes_are_refused_or_run() -> None:
    """Whatever a text is, the grader ends with a timeline or with one of the two errors that it expects."""
    random = Random(1)
    refused = 0
    for _ in range(300):
        size = ScheduleSize(random.randint(1, 3), random.randint(1, 2), random.randint(1, 3))
        texts = [text.split() for text in _texts(zero_bubble_solution(STANDARD), size)]
        for _ in range(random.randint(0, 2)):
            row = random.choice(texts)
            position = random.randrange(len(row))
            other = random.choice("FBIWRU") + random.choice(["", "0", "9", "*", "1.0", "7.7", "1.*"])
            row[position : position + random.randint(0, 1)] = random.choice([[], [other], [row[-1]], [row[0], other]])
        refused += checked_rules(size, [" ".join(row) for row in texts]) != KEPT
    assert 100 < refused < 280


# -- measure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exposed", [False, True])
def test_measure_agrees_with_the_clock_of_the_library(exposed: bool) -> None:
    random = Random(2)
    ran = 0
    for _ in range(100):
        stages, minibatches, count = random.randint(1, 5), random.randint(1, 2), random.randint(1, 5)
        texts = a5._with_warm_ups([random.randint(0, 4) for _ in range(stages)], count, minibatches)
        size = ScheduleSize(stages, minibatches, count)
        orders = [to_order(text) for text in texts]
        forward, backward, message = (random.random() for _ in range(3))
        schedule = _unplaced(size, texts)
        try:
            program = compile_schedule(schedule)
        except ScheduleError:
            with pytest.raises(ValueError, match="never"):
                measure(orders, forward, backward, message, exposed=exposed)
            continue
        ran += 1
        seconds = Durations(forward=forward, backward=backward, weight=0.0, message=message)
        transfers = [message] * len(program.computations)
        times = program.times(seconds.of(program), transfers, exposed=float(exposed))
        starts, bubble, in_flight = measure(orders, forward, backward, message, exposed=exposed)
        for stage, row in enumerate(starts):
            assert row == pytest.approx(times.starts[program.of(stage)], rel=1e-12)
        busy, end = stages * minibatches * count * (forward + backward), max(times.ends)
        assert bubble == pytest.approx(1 - busy / (stages * end), abs=1e-12)
        plans = simulate(to_schedule(size, texts), seconds).plans
        assert in_flight == [plan.peak_live_activations for plan in plans]
    assert 20 < ran < 100


# -- trainings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "name", "run", "reason"),
    [
        ("1f1b", "all-forwards-first", a5.run_one_forward_one_backward, "the bound is"),
        ("1f1b", "stages-reversed", a5.run_one_forward_one_backward, "never happens"),
        ("gpipe", "reduce-forgotten", a5.run_gpipe, "is missing"),
        ("zb-h1", "weights-last", a5.run_zero_bubble, "the bound is 4"),
    ],
)
def test_the_training_refuses_orders_that_break_a_rule(task: str, name: str, run: Any, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        run(_wrong(task, name), STANDARD)


# -- texts ------------------------------------------------------------------------------------------------------------


def test_notation_is_read_as_it_was_written() -> None:
    for size, variant in product(SIZES, (STANDARD, MOVED)):
        for solution in (gpipe_solution, one_forward_one_backward_solution, zero_bubble_solution):
            for stage in range(size.stages):
                order = solution(variant)(size, stage)
                assert to_order(to_text(order, size.minibatches)) == order


@pytest.mark.parametrize("order", [["F0"], [None], [(Forward, 0)], [Forward]])
def test_what_is_no_instruction_is_an_error(order: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        to_text(order, 1)


def test_the_handout_shows_what_the_library_draws() -> None:
    text = render_handout(ASSIGNMENT, STANDARD)
    size = ScheduleSize(3, 1, 4)
    at_once = _wrong("zb-h1", "weights-at-once")
    for function in (gpipe_solution(STANDARD), one_forward_one_backward_solution(STANDARD), at_once):
        for line in _drawn(_planned(STANDARD, function, size)):
            assert line in text
    assert to_text(one_forward_one_backward_solution(STANDARD)(size, 1), 1) in text
    orders = [to_order("F0 F1 B0 B1 R U"), to_order("F0 B0 F1 B1 R U")]
    for message, exposed in ((0.0, False), (0.5, False), (0.5, True)):
        starts, bubble, in_flight = measure(orders, 1.0, 2.0, message, exposed=exposed)
        cells = [", ".join(f"{start:g}" for start in row) for row in starts]
        assert f"| {cells[0]} | {cells[1]} | 1 " in text
        assert f"= {bubble:.4g} | {in_flight[0]}, {in_flight[1]} |" in text


def _drawn(timeline: Timeline) -> list[str]:
    rows = []
    for stage, items in enumerate(timeline.stages):
        cells = ["··"] * int(timeline.makespan)
        for item in items:
            kind = type(item.instruction)
            if kind in (Forward, Backward, InputGradient, WeightGradient):
                cells[int(item.start)] = f"{kind.__name__[0]}{item.instruction.microbatch}"
                cells[int(item.start) + 1 : int(item.end)] = ["──"] * (int(item.end) - int(item.start) - 1)
        rows.append(f"stage {stage}  {' '.join(cells)}")
    return rows
