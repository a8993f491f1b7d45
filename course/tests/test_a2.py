"""A2: the references against finite differences, brute force and NumPy."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.in_process import RunResult, run_ranks
from hybridnn_course.answers import Call, first_difference
from hybridnn_course.checks import check_task
from hybridnn_course.execution import make_group
from hybridnn_course.outcome import CheckOutcome
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.assignments.a2_batch.solution import GradientReducer
from hybridnn_course_staff.handout import render_handout
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner

A2 = load_assignment("a2")
STANDARD = A2.standard
KEY = b"0123456789abcdef"


def _solution(task: str, **choices: str) -> Any:
    return A2.task(task).solution({**STANDARD, **choices})


# -- bounds, minibatches, buckets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("longer", ["first", "last"])
def test_bounds_are_those_of_items_dealt_one_by_one(longer: str) -> None:
    block_bounds = _solution("bounds", longer_parts=longer)
    for items, parts in product(range(40), range(1, 10)):
        sizes = [0] * parts
        for item in range(items):
            sizes[item % parts if longer == "first" else parts - 1 - item % parts] += 1
        found = [block_bounds(items, parts, part) for part in range(parts)]
        assert found == [(sum(sizes[:part]), sum(sizes[: part + 1])) for part in range(parts)]


@pytest.mark.parametrize("short", ["first", "last"])
def test_minibatches_have_every_sample_once_and_one_short_batch(short: str) -> None:
    minibatches = _solution("minibatches", short_minibatch=short)
    for samples, size in product(range(30), range(1, 9)):
        order = np.random.default_rng(samples).permutation(samples)
        found = list(minibatches(order, size))
        assert [sample for batch in found for sample in batch] == order.tolist()
        assert len(found) == math.ceil(samples / size)
        full = found[1:] if short == "first" else found[:-1]
        assert all(len(batch) == size for batch in full)
        assert all(len(batch) > 0 for batch in found)


def _plans(layers: int) -> list[list[range]]:
    """All divisions of the layers into buckets of consecutive ones, the last layers first."""
    found = []
    for cuts in product((False, True), repeat=layers - 1):
        starts = [0, *(layer for layer, cut in enumerate(cuts, 1) if cut)]
        found.append([range(a, b) for a, b in zip(starts, [*starts[1:], layers], strict=True)][::-1])
    return found


@pytest.mark.parametrize("bucket_size", ["at least", "at most"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_buckets_are_the_only_division_that_the_sentences_allow(bucket_size: str, place: str) -> None:
    plan_buckets = _solution("buckets", bucket_size=bucket_size, loss_place=place)
    random = np.random.default_rng(1)
    for _ in range(100):
        widths = random.integers(1, 12, random.integers(1, 7)).tolist()
        limit = int(random.integers(1, 25))
        offset = int(place == "first")
        ends = [offset + sum(widths[: layer + 1]) for layer in range(len(widths))]
        sizes = list(widths)
        sizes[0 if place == "first" else -1] += 1  # the loss

        def elements(layers: Sequence[int], sizes: list[int] = sizes) -> int:
            return sum(sizes[layer] for layer in layers)

        def is_allowed(bucket: range, limit: int = limit) -> bool:
            if bucket_size == "at least":
                is_full = elements(bucket) >= limit or bucket.start == 0
                return is_full and elements(bucket[1:]) < limit
            fits = len(bucket) == 1 or elements(bucket) <= limit
            return fits and (bucket.start == 0 or elements([bucket.start - 1, *bucket]) > limit)

        (only,) = [plan for plan in _plans(len(widths)) if all(map(is_allowed, plan))]
        stops = [sum(sizes[: bucket.stop]) for bucket in only]
        expected = [(bucket.start, (stop - elements(bucket), stop)) for bucket, stop in zip(only, stops, strict=True)]
        assert list(plan_buckets(ends, sum(sizes), limit).items()) == expected


# -- gradient ---------------------------------------------------------------------------------------------------------


def _mean_loss(weights: NDArray[Any], bias: NDArray[Any], x: NDArray[Any], labels: NDArray[Any]) -> float:
    """The mean cross-entropy over all samples, by the formulas of the handout."""
    losses = []
    for sample, label in zip(x, labels, strict=True):
        z = [
            math.fsum(w * v for w, v in zip(row, sample, strict=True)) + b for row, b in zip(weights, bias, strict=True)
        ]
        losses.append(math.log(math.fsum(math.exp(one) for one in z)) - z[label])
    return math.fsum(losses) / len(losses)


def _difference(function: Any, at: NDArray[Any]) -> NDArray[np.float64]:
    """Central differences of a function of an array."""
    found, step = np.empty(at.shape), 1e-5
    for index in np.ndindex(at.shape):
        shift = np.zeros(at.shape)
        shift[index] = step
        found[index] = (function(at + shift) - function(at - shift)) / (2 * step)
    return found


DEALS = {
    1: [6],
    2: [5, 1],
    3: [2, 1, 0],
    4: [0, 3, 0, 2],
    5: [1, 0, 0, 0, 4],
    6: [2, 2, 1, 1, 1, 1],
    7: [0, 0, 1, 0, 0, 0, 0],
    8: [1, 2, 0, 1, 0, 2, 1, 0],
    9: [0, 1, 1, 1, 0, 1, 1, 1, 0],
}


@pytest.mark.parametrize("ranks", DEALS)
def test_the_gradient_is_that_of_finite_differences_whatever_the_deal(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    deal, samples = DEALS[ranks], sum(DEALS[ranks])
    weights, bias = random.normal(size=(3, 4)), random.normal(size=3)
    x, labels = random.normal(size=(samples, 4)), random.integers(3, size=samples)
    starts = [sum(deal[:rank]) for rank in range(ranks)]

    def program(comm: Any) -> Any:
        own = slice(starts[comm.rank], starts[comm.rank] + deal[comm.rank])
        return _solution("gradient")(make_group(comm), weights, bias, x[own], labels[own])

    for gradient, bias_gradient, loss in run_ranks(ranks, program, order=3).results:
        assert loss == pytest.approx(_mean_loss(weights, bias, x, labels), rel=1e-12)
        expected = _difference(lambda at: _mean_loss(at, bias, x, labels), weights)
        np.testing.assert_allclose(gradient, expected, atol=1e-8)
        expected = _difference(lambda at: _mean_loss(weights, at, x, labels), bias)
        np.testing.assert_allclose(bias_gradient, expected, atol=1e-8)


# -- reducer ----------------------------------------------------------------------------------------------------------

SIZES, BUCKETS = [3, 2, 4], {2: (5, 10), 0: (0, 5)}
"""Elements of three layers, and their buckets, the loss last."""


def _reduce(reducer: Any, ranks: int, **options: Any) -> tuple[RunResult, NDArray[Any]]:
    """Two steps on so many ranks: what each rank has after each step, and the buffers before, by step and rank."""
    own = np.random.default_rng(ranks).integers(-50, 50, (2, ranks, 10)).astype(float)

    def program(comm: Any) -> list[tuple[float, NDArray[Any]]]:
        group, buffer, found = make_group(comm), np.zeros(10), []
        reducing = reducer(group, buffer, BUCKETS)
        for step in own[:, comm.rank]:
            buffer[9] = step[9]
            for layer, (start, stop) in ((2, (5, 9)), (1, (3, 5)), (0, (0, 3))):
                group.barrier()
                buffer[start:stop] = step[start:stop]
                reducing.ready(layer)
            found.append((reducing.finish(), buffer.copy()))
        return found

    return run_ranks(ranks, program, alpha=1e-6, **options), own


@pytest.mark.parametrize("ranks", range(1, 10))
def test_the_reducer_sums_every_step_in_every_order_of_the_ranks(ranks: int) -> None:
    for order, delivery in product(range(3), ("late", "early")):
        run, own = _reduce(GradientReducer, ranks, order=order, delivery=delivery)
        for steps in run.results:
            for (loss, buffer), before in zip(steps, own, strict=True):
                np.testing.assert_array_equal(buffer, before.sum(axis=0))
                assert loss == before[:, 9].sum()


def test_buckets_are_under_way_beside_the_passes_that_follow_them() -> None:
    run, _ = _reduce(GradientReducer, 2)
    calls = [(record.name, record.nbytes) for record in run.messages if record.rank == 0 and record.name != "barrier"]
    assert calls == [("allreduce", 40), ("allreduce", 40)] * 2
    passes = [record.begun.call for record in run.messages if record.rank == 0 and record.name == "barrier"]
    sums = [record for record in run.messages if record.rank == 0 and record.name == "allreduce"]
    beside = [sum(one.begun.call < moment <= one.waited.call for moment in passes) for one in sums]
    assert beside == [2, 0, 2, 0]  # the bucket of layer 2 beside layers 1 and 0, that of layer 0 beside none


class _TestsOnTheWay(GradientReducer):
    """Completes what has arrived whenever a layer is ready, as the library does."""

    def ready(self, layer: int) -> None:
        self._requests = [request for request in self._requests if not request.test()]
        super().ready(layer)


def _failed(reducer: Any) -> list[CheckOutcome]:
    """Checks of the reducer, but the training, without all their points."""
    task = A2.task("reducer")
    outcome = check_task(TrustedRunner({"reducer": reducer}), TaskKey(A2, task, STANDARD, KEY), whole=False)
    return [check for check in outcome.checks if not check.passed]


def test_a_reducer_that_completes_sums_early_has_all_points() -> None:
    assert _failed(_TestsOnTheWay) == []


class _Barriers(GradientReducer):
    """Calls barriers of its own, and waits for each sum at once."""

    def ready(self, layer: int) -> None:
        super().ready(layer)
        self._group.barrier()
        super().finish()


def test_the_overlap_and_half_of_the_cases_are_lost_where_each_sum_is_waited_for_at_once() -> None:
    """Barriers of the student's own do not count as passes."""
    wrong = next(mistake for mistake in A2.task("reducer").mistakes if mistake.name == "waits-at-once")
    for reducer in (wrong.function(STANDARD), _Barriers):
        *cases, budget = _failed(reducer)
        assert (budget.name, budget.points) == ("buckets that no backward pass overlaps", 0)
        assert {check.points / check.possible for check in cases} == {0.5}


def test_calls_without_passes_overlap_nothing() -> None:
    from hybridnn_course.exercises.a2_batch.budgets import _beside_a_pass

    calls = [
        Call(0, "barrier", -1, 0, 1, 1, 1),
        Call(0, "allreduce", -1, 8, 2, 9, 9),
        Call(0, "barrier", -1, 0, 3, 3, 3),
    ]
    assert _beside_a_pass(calls, 2) == 1
    assert _beside_a_pass(calls, 3) == 0


# -- handout ----------------------------------------------------------------------------------------------------------


def test_examples_of_the_handout() -> None:
    text = render_handout(A2, STANDARD)
    for longer in ("first", "last"):
        bounds = [_solution("bounds", longer_parts=longer)(10, 4, part) for part in range(4)]
        sizes = ", ".join(str(stop - start) for start, stop in bounds)
        assert f"| where the {longer} parts are longer | {sizes} | `{bounds[1]}` |" in text
    rows = re.findall(r"^\| (first|last) \| ([\d, ]+) \| `(\[.*?\])`, (\d+) \| `(.*?)` \| `(.*?)` \|$", text, re.M)
    assert [place for place, *_ in rows] == ["last", "last", "first"]
    for place, layers, ends, size, at_least, at_most in rows:
        widths = [int(width) for width in layers.split(",")]
        assert ends == str((np.cumsum(widths) + (place == "first")).tolist())
        assert int(size) == sum(widths) + 1
        for shown, choice in ((at_least, "at least"), (at_most, "at most")):
            solution = _solution("buckets", bucket_size=choice, loss_place=place)
            plan = solution(ast.literal_eval(ends), int(size), 10)
            assert str(plan) == shown


@pytest.mark.parametrize("place", ["first", "last"])
def test_the_training_of_buckets_has_the_loss_where_the_variant_has_it(place: str) -> None:
    variant, seen = {**load_assignment("a2").standard, "loss_place": place}, []
    task = load_assignment("a2").task("buckets")
    right = task.solution(variant)

    def plan_buckets(ends: list[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        seen.append((type(ends), size - ends[-1]))
        found: dict[int, tuple[int, int]] = right(ends, size, min_elements)
        return found

    assert task.whole is not None
    found = task.whole.run(plan_buckets, variant)
    assert first_difference([found], [task.whole.expected(variant)], task.whole.tolerance) is None
    assert set(seen) == {(list, int(place == "last"))}
