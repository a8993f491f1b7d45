"""A6, stale weights: the references against pipelines that are carried out, and against the library."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridnn import SGD
from hybridnn_course.answers import MEASURED, Answer
from hybridnn_course.checks import check_task
from hybridnn_course.exercises.a6_stale.budgets import needed_bytes, predict_budget, stage_budget, store_budget
from hybridnn_course.exercises.a6_stale.calls import call_stage, call_store
from hybridnn_course.exercises.a6_stale.runs import METHODS
from hybridnn_course.measuring import LOOPS, TEMPORARIES
from hybridnn_course_staff.assignment import Task, load_assignment
from hybridnn_course_staff.assignments.a6_stale.cases import (
    hidden_stage,
    hidden_store,
    public_predict,
    public_stage,
    public_store,
)
from hybridnn_course_staff.assignments.a6_stale.solution import (
    distance_solution,
    predict_solution,
    rules_solution,
    stage_solution,
    store_solution,
)
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner

ASSIGNMENT = load_assignment("a6")
KEY = b"a key of 16 byte"
TASKS = {task.name: task for task in ASSIGNMENT.tasks}


def variants_of(task: Task) -> list[dict[str, str]]:
    """Every combination of the choices that change a task."""
    combinations = product(*(ASSIGNMENT.axes[axis] for axis in task.axes))
    return [{**ASSIGNMENT.standard, **dict(zip(task.axes, choice, strict=True))} for choice in combinations]


def lost(name: str, function: Any) -> list[tuple[str, str, str]]:
    """Checks of a function, but the training, without all their points."""
    key = TaskKey(ASSIGNMENT, TASKS[name], ASSIGNMENT.standard, KEY)
    checks = check_task(TrustedRunner({name: function}), key, whole=False).checks
    return [(check.name, check.kind, check.mistake) for check in checks if check.points < check.possible - 1e-9]


# -- the library ------------------------------------------------------------------------------------------------------


# -- rules and distance: a pipeline that is carried out ---------------------------------------------------------------


class Pipeline:
    """When the passes of 1F1B without flush begin and end, on one clock."""

    def __init__(self, stages: int, minibatches: int, backward_length: int) -> None:
        self.stages, self.minibatches = stages, minibatches
        self.begin: dict[tuple[str, int, int], int] = {}
        self.end: dict[tuple[str, int, int], int] = {}
        orders = [self._order(stage) for stage in range(stages)]
        free = [0] * stages
        while any(orders):
            for stage, order in enumerate(orders):
                while order and (ready := self._ready(*order[0], stage)) is not None:
                    kind, minibatch = order.pop(0)
                    begin = max(ready, free[stage])
                    free[stage] = begin + (1 if kind == "F" else backward_length)
                    self.begin[kind, stage, minibatch], self.end[kind, stage, minibatch] = begin, free[stage]

    def _order(self, stage: int) -> list[tuple[str, int]]:
        warm_up, forwards = self.stages - 1 - stage, [("F", t) for t in range(self.minibatches)]
        order = forwards[:warm_up]
        for t in range(self.minibatches):
            order += [*forwards[warm_up + t : warm_up + t + 1], ("B", t)]
        return order

    def _ready(self, kind: str, minibatch: int, stage: int) -> int | None:
        """When the message of a pass has arrived; None if its sender is not known yet."""
        if kind == "F":
            return 0 if stage == 0 else self.end.get(("F", stage - 1, minibatch))
        return self.end.get(("F", stage, minibatch) if stage == self.stages - 1 else ("B", stage + 1, minibatch))

    def updates(self, stage: int, moment: int, without: int | None = None) -> int:
        """Updates of a stage until a moment, without that of one minibatch."""
        return sum(self.end["B", stage, t] <= moment for t in range(self.minibatches) if t != without)


@pytest.mark.parametrize("variant", variants_of(TASKS["rules"]), ids=lambda item: item["extra_method"])
def test_versions_are_the_updates_that_a_pipeline_has_made(variant: dict[str, str]) -> None:
    rule = rules_solution(variant)
    for stages, minibatches in ((1, 3), (2, 5), (5, 9), (6, 4)):
        pipeline = Pipeline(stages, minibatches, 1)
        halves = [range(stages // 2), range(stages // 2, stages)]
        pairs = [range(start, min(start + 2, stages)) for start in range(0, stages, 2)]
        groups = halves if variant["extra_method"] == "halves" else pairs
        for stage, t in product(range(stages), range(minibatches)):
            newest = [pipeline.updates(k, pipeline.begin["F", k, t]) for k in range(stages)]
            own, current = newest[stage], pipeline.updates(stage, pipeline.begin["B", stage, t])
            common = min(newest)  # the newest version that every stage has
            extra = min(next([newest[k] for k in group] for group in groups if stage in group))
            if variant["extra_method"] == "two versions":
                extra = max(0, current - 1)
            expected = {
                "vanilla": (own, own, current),
                "ddg": (own, own, own),
                "fr": (own, current, current),
                "pipedream": (own, own, own),
                "vertical sync": (common, common, common),
                "extra": (extra, extra, extra),
            }
            for method in METHODS:
                assert rule(method, stage, stages, t) == expected[method]


@pytest.mark.parametrize("length", ["1", "2"])
def test_predictions_aim_at_the_end_of_the_round_trip(length: str) -> None:
    rule = distance_solution({"backward_length": length})
    for stages, minibatches in product(range(1, 8), (1, 2, 5, 12)):
        pipeline = Pipeline(stages, minibatches, int(length))
        for stage, t in product(range(stages), range(minibatches)):
            aim = pipeline.updates(stage, pipeline.end["B", 0, t], without=t)
            for (version, ahead), kind in zip(rule(stage, stages, t, minibatches), "FB", strict=True):
                assert version == pipeline.updates(stage, pipeline.begin[kind, stage, t])
                assert version + ahead == aim


# -- store ------------------------------------------------------------------------------------------------------------


class AllVersions:
    """Weight versions that are all kept, by copies."""

    def __init__(self, weights: Any, versions: int) -> None:
        self._all = [weights.copy()]

    def read(self, age: int) -> Any:
        return self._all[-1 - age]

    def update(self, rule: Any, kept: Any = ()) -> None:
        new = np.empty_like(self._all[-1])
        rule(self._all[-1].copy(), new)
        self._all.append(new)


def test_versions_are_those_of_a_list_without_end() -> None:
    variant = ASSIGNMENT.standard
    hidden = [hidden_store(Random(number), variant, number % 6) for number in range(30)]
    for case in [*public_store(variant), *hidden]:
        inputs = case.inputs[0]
        found = call_store(store_solution(variant), inputs, None, variant)
        assert np.array_equal(found["read"], call_store(AllVersions, inputs, None, variant)["read"])
        assert found[MEASURED] == {"buffers": inputs["versions"], "bytes copied": 0}


# -- stage ------------------------------------------------------------------------------------------------------------


def slope(outputs: Any, x: Any, dy: Any) -> Any:
    """Gradient of the sum of dy * outputs(x) with respect to x, by central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        found[place] = np.sum(dy * (outputs(x + step) - outputs(x - step))) / 2e-6
    return found


@pytest.mark.parametrize("method", ["ddg", "fr"])
@pytest.mark.parametrize("rate_text", ["constant", "by staleness"])
def test_gradients_are_slopes_at_the_weights_of_the_method(method: str, rate_text: str) -> None:
    random = np.random.default_rng(5)
    x, dy = random.normal(size=(4, 3, 2)), random.normal(size=(4, 2, 2))
    stage = stage_solution({"stale_rate": rate_text})(random.normal(size=(2, 3)), "tanh", method, 0.25)
    for t in range(2):
        stage.forward(t, x[t])
    versions = [stage.weights.copy()]
    read = {0: 0, 1: 0}
    for t in range(4):
        current = versions[-1]
        used = current if method == "fr" else versions[read[t]]
        dx = stage.backward(t, dy[t])
        assert np.allclose(dx, slope(lambda inputs, used=used: np.tanh(used @ inputs), x[t], dy[t]), atol=1e-8)
        rate = 0.25 / (1 + t - read[t]) if rate_text == "by staleness" else 0.25
        gradient = slope(lambda weights, t=t: np.tanh(weights @ x[t]), used, dy[t])
        assert np.allclose(stage.weights, current - rate * gradient, atol=1e-8)
        versions.append(stage.weights.copy())
        if t + 2 < 4:
            read[t + 2] = t + 1
            stage.forward(t + 2, x[t + 2])


def test_one_stage_has_nothing_stale() -> None:
    """All methods and variants agree with plain gradient descent."""
    inputs = public_stage(ASSIGNMENT.standard)[0].inputs[0]
    weights = inputs["layers"][0]
    for x, target in zip(inputs["batches"], inputs["targets"], strict=True):
        weights = weights - inputs["rate"] * (weights @ x - target) @ x.T
    for method, rate in product(("vanilla", "ddg", "fr"), ASSIGNMENT.axes["stale_rate"]):
        stage = stage_solution({"stale_rate": rate})
        found = call_stage(stage, {**inputs, "method": method}, None, ASSIGNMENT.standard)
        assert np.allclose(found["weights of stage 0"], weights, rtol=1e-13)


def test_the_reference_holds_what_is_needed() -> None:
    for number in range(12):
        case = hidden_stage(Random(number), ASSIGNMENT.standard, number % 6)
        found = call_stage(stage_solution(ASSIGNMENT.standard), case.inputs[0], None, ASSIGNMENT.standard)
        assert found[MEASURED]["bytes held"] == needed_bytes(case)


# -- predict ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("velocity", ["constant", "decays"])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_predictions_are_updates_with_gradients_that_are_known(velocity: str, steps: int) -> None:
    """Gradients that leave the velocity as it is, or none at all."""
    random = np.random.default_rng(3)
    weights, v = random.normal(size=(2, 5))
    optimizer, out = SGD(lr=0.5, momentum=0.75), np.empty(5)
    state = SimpleNamespace(slots={"velocity": v.copy()})
    predict_solution({"velocity": velocity})(optimizer, weights, state, 0.125, steps, out)
    for _ in range(steps):
        gradient = (1 - optimizer.momentum) * v if velocity == "constant" else np.zeros(5)
        v = optimizer.momentum * v + gradient
        weights = weights - 0.125 * v
    assert np.allclose(out, weights, rtol=1e-13)


# -- points of a wrong solution ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "name", "check"),
    [
        ("store", "copied", "bytes copied"),
        ("stage", "copied-weights", "bytes held"),
        ("predict", "temporary-arrays", TEMPORARIES),
        pytest.param("predict", "element-by-element", LOOPS, marks=pytest.mark.slow),
    ],
)
def test_too_much_memory_costs_points_of_the_budget(task: str, name: str, check: str) -> None:
    """Where none of them are left, the cases are those of another method."""
    mistake = next(item for item in TASKS[task].mistakes if item.name == name)
    *cases, budget = lost(task, mistake.function(ASSIGNMENT.standard))
    assert budget == (check, "budget", name)
    assert {(kind, of) for _, kind, of in cases} <= {("public", name), ("hidden", name)}
    assert bool(cases) == (name != "copied-weights")


AMOUNTS = ("buffers", "bytes copied", "bytes held", LOOPS, TEMPORARIES)


@pytest.mark.parametrize(
    "measured",
    [None, "few", {}, *(dict.fromkeys(AMOUNTS, value) for value in (-1, float("nan"), 10**400, np.zeros(2)))],
    ids=lambda value: repr(value)[:30],
)
def test_amounts_that_were_not_measured_have_no_points(measured: object) -> None:
    """They come from the process of a submission."""
    variant = ASSIGNMENT.standard
    answer = Answer(outputs=({MEASURED: measured},))
    for cases, budget in ((public_store, store_budget), (public_stage, stage_budget), (public_predict, predict_budget)):
        bounds = budget(cases(variant)[1], answer, variant)
        assert [bound.fraction for bound in bounds] == [0.0] * len(bounds)
