"""A1: references against scalar formulas and finite differences, and the cost of functions."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.nn.activations import ACTIVATIONS
from hybridnn_course.assignment import Variant
from hybridnn_course.checks import check_task
from hybridnn_course.measuring import LOOPS, TEMPORARIES, CountedArray, counted, measure
from hybridnn_course.outcome import TaskOutcome
from hybridnn_course_staff.assignments.a1_dense.assignment import ASSIGNMENT
from hybridnn_course_staff.assignments.a1_dense.solution import numerical_gradient
from hybridnn_course_staff.handout import render_handout
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner

Array = NDArray[Any]

STANDARD = ASSIGNMENT.standard
KEY = b"a key of a term."


def _solution(name: str, **choices: str) -> Callable[..., Any]:
    return ASSIGNMENT.task(name).solution({**STANDARD, **choices})


def _choices(axis: str) -> list[str]:
    return list(ASSIGNMENT.axes[axis])


# -- references -------------------------------------------------------------------------------------------------------


def test_central_differences_of_a_quadratic_polynomial_are_exact() -> None:
    random = np.random.default_rng(1)
    matrix = random.integers(-4, 5, (6, 6)).astype(float)
    point = random.integers(-4, 5, (2, 3)).astype(float)
    found = numerical_gradient(lambda p: float(p.ravel() @ matrix @ p.ravel()), point, 0.25)
    expected = [
        sum(Fraction(matrix[i, j] + matrix[j, i]) * Fraction(point.ravel()[j]) for j in range(6)) for i in range(6)
    ]
    assert found.ravel().tolist() == [float(value) for value in expected]


def _loss_of_sample(logits: list[float], label: int, smoothing: float) -> float:
    largest = max(logits)
    logarithm = largest + math.log(math.fsum(math.exp(logit - largest) for logit in logits))
    targets = [smoothing / len(logits) + (1 - smoothing) * (c == label) for c in range(len(logits))]
    return math.fsum(t * (logarithm - z) for t, z in zip(targets, logits, strict=True))


@pytest.mark.parametrize("choice", _choices("loss"))
def test_the_loss_is_that_of_every_sample_and_its_gradient_that_of_finite_differences(choice: str) -> None:
    random = np.random.default_rng(2)
    logits, labels, scale = random.normal(0, 2, (4, 5)), np.array([0, 3, 3, 1, 2]), 1 / 7
    gradient, loss = np.empty((4, 5)), np.empty(1)
    _solution("loss", loss=choice)(logits, labels, np.arange(5), scale, gradient, loss)

    def total(at: Array) -> float:
        smoothing = 0.1 if choice == "smoothed" else 0.0
        return math.fsum(_loss_of_sample(at[:, j].tolist(), int(labels[j]), smoothing) for j in range(5))

    assert loss[0] == pytest.approx(total(logits) * (scale if choice == "mean" else 1), rel=1e-13)
    np.testing.assert_allclose(gradient, scale * numerical_gradient(total, logits, 1e-5), atol=1e-9)


@pytest.mark.parametrize("choice", _choices("loss"))
def test_large_logits_lose_no_digits(choice: str) -> None:
    logits, gradient, loss = np.array([[1000.0, -900], [200.0, -1000]]), np.empty((2, 2)), np.empty(1)
    _solution("loss", loss=choice)(logits, np.array([1, 0]), np.arange(2), 0.5, gradient, loss)
    expected = {"sum": 800.0, "mean": 400.0, "smoothed": 0.95 * 800 + 0.05 * 100}[choice]
    assert loss[0] == pytest.approx(expected, rel=1e-14)
    edge = 0.05 if choice == "smoothed" else 0.0
    np.testing.assert_allclose(gradient, [[0.5 - edge / 2, edge / 2 - edge], [edge / 2 - 0.5, edge / 2]], atol=0.06)
    np.testing.assert_allclose(gradient.sum(axis=0), 0, atol=1e-15)


FORMULAS: dict[str, Callable[[float], float]] = {
    "identity": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "tanh": math.tanh,
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "selu": lambda z: 1.0507009873554805 * (z if z > 0 else 1.6732632423543772 * math.expm1(z)),
    "leaky_relu": lambda z: z if z > 0 else 0.1 * z,
    "softsign": lambda z: z / (1 + abs(z)),
}


def _named(name: str, choice: str) -> Callable[[float], float]:
    return FORMULAS[choice if name == "special" else name]


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_of_activations_are_differences_of_their_formulas(name: str) -> None:
    """At 0, the slope is that of the negative side."""
    function, step = FORMULAS[name], 1e-5
    choice, named = (name, "special") if name in _choices("activation") else (STANDARD["activation"], name)
    gradient, inputs = _solution("activation", activation=choice), [-3.0, -1.2, -0.3, 0.2, 0.9, 2.5]
    dy, out = np.linspace(-1, 2, 6), np.empty(6)
    gradient(named, np.array([function(z) for z in inputs]), dy, out, np.empty(6))
    slopes = [(function(z + step) - function(z - step)) / (2 * step) for z in inputs]
    np.testing.assert_allclose(out, dy * slopes, atol=1e-9)
    at_zero = np.empty(1)
    gradient(named, np.array([function(0.0)]), np.ones(1), at_zero, np.empty(1))
    assert at_zero[0] == pytest.approx((function(0.0) - function(-1e-7)) / 1e-7, rel=1e-6)


@pytest.mark.parametrize("arrangement", _choices("samples"))
def test_a_layer_is_the_sum_over_its_inputs_and_its_gradients_those_of_finite_differences(arrangement: str) -> None:
    random = np.random.default_rng(3)
    outputs, inputs, samples = 3, 4, 5
    weight, bias = random.normal(size=(outputs, inputs)), random.normal(size=outputs)
    x, dy = random.normal(size=(samples, inputs)), random.normal(size=(samples, outputs))

    def arranged(rows: Array) -> Array:
        return rows if arrangement == "rows" else np.ascontiguousarray(rows.T)

    def output(weight: Array, bias: Array, x: Array) -> Array:
        rows = [
            [math.tanh(bias[i] + sum(weight[i, j] * sample[j] for j in range(inputs))) for i in range(outputs)]
            for sample in x
        ]
        return np.array(rows)

    y = arranged(np.empty((samples, outputs)))
    scratch = np.empty_like(y)
    _solution("forward", samples=arrangement)(weight, bias, arranged(x), ACTIVATIONS["tanh"], y, scratch)
    np.testing.assert_allclose(y, arranged(output(weight, bias, x)), rtol=1e-12)

    dz, dw, db, dx = np.empty_like(y), np.empty_like(weight), np.empty(outputs), np.empty_like(arranged(x))
    _solution("backward", samples=arrangement)(
        weight, arranged(x), y, arranged(dy), ACTIVATIONS["tanh"], dz, dw, db, dx, scratch
    )
    of_weight = numerical_gradient(lambda at: float(np.sum(dy * output(at, bias, x))), weight, 1e-5)
    of_bias = numerical_gradient(lambda at: float(np.sum(dy * output(weight, at, x))), bias, 1e-5)
    of_x = numerical_gradient(lambda at: float(np.sum(dy * output(weight, bias, at))), x, 1e-5)
    for found, expected in ((dw, of_weight), (db, of_bias), (dx, arranged(of_x))):
        np.testing.assert_allclose(found, expected, atol=1e-8)


def _steps(settings: Any, choice: str, w: float, gradients: list[float], rates: list[float]) -> tuple[float, float]:
    """One weight and its velocity after several steps, by the formulas of the handout."""
    v = 0.0
    for g, lr in zip(gradients, rates, strict=True):
        g += settings.weight_decay * w
        if choice == "steps":
            v = settings.momentum * v + lr * (1 - settings.dampening) * g
            w -= lr * g + settings.momentum * v if settings.nesterov else v
        else:
            v = settings.momentum * v + (1 - settings.dampening) * g
            w -= lr * (g + settings.momentum * v if settings.nesterov else v)
    return w, v


@pytest.mark.parametrize("choice", _choices("velocity"))
@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "dampening": 0.3, "nesterov": False, "weight_decay": 0.1},
        {"momentum": 0.5, "dampening": 0.0, "nesterov": True, "weight_decay": 0.2},
        {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.1},
    ],
)
def test_an_update_is_the_formula_for_every_weight(choice: str, settings: Mapping[str, Any]) -> None:
    random = np.random.default_rng(4)
    weights, gradients, rates = random.normal(size=6), random.normal(size=(4, 6)), [0.5, 0.2, 0.2, 0.1]
    own, found = SimpleNamespace(**settings), weights.copy()
    velocity = np.zeros(6) if own.momentum else None
    for gradient, lr in zip(gradients, rates, strict=True):
        _solution("update", velocity=choice)(found, gradient, velocity, found, np.empty(6), own, (lr,))
    expected = [_steps(own, choice, float(weights[i]), gradients[:, i].tolist(), rates) for i in range(6)]
    np.testing.assert_allclose(found, [w for w, _ in expected], rtol=1e-12)
    if velocity is not None:
        np.testing.assert_allclose(velocity, [v for _, v in expected], rtol=1e-12)


# -- submissions ------------------------------------------------------------------------------------------------------

VARIANT = {"loss": "smoothed", "activation": "softsign", "samples": "rows", "velocity": "steps"}


GRADIENT_BEFORE_ACTIVATION = """
def dense_backward(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch):
    weight_gradient[:] = dy.T @ x
    activation.gradient(y, dy, dz, scratch)
    bias_gradient[:] = dz.sum(axis=0)
    if dx is not None:
        dx[:] = dz @ weight
"""

LOOP_OVER_SAMPLES = """
import numpy as np

def dense_forward(weight, bias, x, activation, y, scratch):
    y[:] = np.array([weight @ sample + bias for sample in x]).reshape(y.shape)
    activation.apply(y, scratch)
"""


def _checked(name: str, text: str, key: bytes | None = KEY) -> TaskOutcome:
    """All checks of a function of a file of students but the training."""
    task, names = ASSIGNMENT.task(name), dict[str, Any]()
    exec(text, names)
    runner = TrustedRunner({name: names[task.function]})
    return check_task(runner, TaskKey(ASSIGNMENT, task, VARIANT, key), whole=False)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_wrong_program_of_another_style_is_recognized(key: bytes | None) -> None:
    checks = _checked("backward", GRADIENT_BEFORE_ACTIVATION, key).checks
    assert {check.mistake for check in checks if check.hint} == {"dw-from-dy"}


def test_a_comprehension_and_a_temporary_array_cost_the_budget_and_half_of_the_large_cases() -> None:
    outcome = _checked("forward", LOOP_OVER_SAMPLES)
    lost = {check.name: check.points / check.possible for check in outcome.checks if not check.passed}
    large = {"132 inputs, 130 outputs, 1024 samples, relu": 0.5, "hidden case 1": 0.5}
    assert lost == {LOOPS: 0, TEMPORARIES: 0} | large
    assert sum(check.points for check in outcome.checks) == pytest.approx(outcome.points)


@pytest.mark.parametrize(
    ("function", "loops", "allocates"),
    [
        (lambda a: np.multiply(a, 2, out=a), 0, 0),
        (lambda a: a * 2, 0, 1),
        (lambda a: [np.multiply(row, 2, out=row) for row in a], 1, 0),
        (lambda a: np.apply_along_axis(np.sum, 1, a), 1, 0),
        (lambda a: sum(float(row[0]) for row in a), 1, 0),
        (lambda a: [np.multiply(part, 2, out=part) for part in np.split(a, 2)], 0, 0),
        (lambda a: list(map(np.sum, a)), 1, 0),
        (lambda a: sum(a[:, 0]), 1, 0),
        (lambda a: max(np.abs(a[:, 0] - 1).tolist()), 1, 0),
        (lambda a: (next(iter(a)), *a[:50, 0]), 0, 0),
        (lambda a: [np.abs(-a[i] + 1).max() for i in range(len(a) // 3)], 0, 0),
    ],
)
def test_loops_and_temporary_arrays_are_counted(
    function: Callable[[Array], object], loops: int, allocates: int
) -> None:
    small, large = np.ones((4, 5)), np.ones((130, 1024))
    amounts = measure(lambda: counted(function)(small), lambda: counted(function)(large))
    assert amounts == {LOOPS: loops, TEMPORARIES: allocates}


def test_counted_arrays_are_those_of_the_caller() -> None:
    array, number = np.ones(3), 2.0
    first, second, third, fourth = counted(lambda *arguments: arguments)(array, number, array, array[:2])
    assert first is second or first is third
    assert (second, type(first), type(fourth)) == (2.0, CountedArray, CountedArray)
    first[0] = 5
    assert array[0] == fourth[0] == 5


@pytest.mark.parametrize(
    "function",
    [
        lambda a, z: [np.sum(a), a.sum(), a.mean(), a.max(), a.std(), a.var(), np.median(a), np.linalg.norm(a)],
        lambda a, z: [a[0] @ a[1], np.dot(a[0], a[1]), np.vdot(a, a), np.einsum("ij,ij", a, a), np.trace(a)],
        lambda a, z: [a[0, 1], a.item(2), a.argmax(), np.count_nonzero(a), (a > 1).all(), np.any(a == 2), a[0, 1] + 1],
        lambda a, z: [np.exp(z), z + 1, -z, z.sum(), float(z), z[()], np.add.reduce(a, axis=None), 2 * z > 1],
        lambda a, z: [*np.divmod(z, 2), *np.modf(z), np.sqrt(z, dtype=np.float32), np.maximum.reduce(a[0])],
        lambda a, z: [a @ a.T, a.sum(axis=0), a.sum(axis=0, keepdims=True), np.where(a > 1, a, 0), np.add.outer(a, a)],
        lambda a, z: [np.add(a, 1, out=np.empty((2, 3))), np.add(1, 2, out=z), np.matmul(a[0], a[1], out=z), z, a],
        lambda a, z: [a.astype(np.float32), a[:, [0, 2]], a[a > 2], np.concatenate([a, a]), np.eye(6)[a.astype(int)]],
        lambda a, z: [np.iterable(a), np.iterable(z), [*a[0]], a.tolist(), z.tolist(), 2.0 in a, sum(a), max(a[1])],
    ],
)
def test_counted_arrays_give_the_results_of_plain_ones(function: Callable[..., list[object]]) -> None:
    def arguments() -> tuple[Array, Array]:
        return np.arange(6.0).reshape(2, 3), np.array(0.5)

    plain, found = function(*arguments()), counted(function)(*arguments())
    for one, other in zip(plain, found, strict=True):
        assert isinstance(other, type(one))
        assert isinstance(one, np.ndarray) or type(other) is type(one)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        np.testing.assert_array_equal(one, other)


# -- handout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [STANDARD, VARIANT])
def test_the_program_of_the_handout_finds_no_difference(
    variant: Variant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = {task.function: task.solution(variant) for task in ASSIGNMENT.tasks}
    for name in ("differences", "network"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**functions))
    found = re.search(r"```python\n(.*?)```", render_handout(ASSIGNMENT, variant), re.S)
    assert found is not None
    exec(found.group(1), {})
    assert float(capsys.readouterr().out) < 1e-8


def test_the_numbers_of_the_handout_are_right() -> None:
    text = render_handout(ASSIGNMENT, STANDARD)
    logits, gradient, loss = np.array([[2.0, 0], [1, 0], [0, 3]]), np.empty((3, 2)), np.empty(1)
    for choice in _choices("loss"):
        _solution("loss", loss=choice)(logits, np.array([0, 2]), np.arange(2), 0.25, gradient, loss)
        first, second = (", ".join(f"{value:.4f}" for value in column) for column in gradient.T)
        assert f"| {first} | {second} | {loss[0]:.4f} |" in text
    for choice in _choices("activation"):
        out = np.empty(3)
        _solution("activation", activation=choice)("special", np.array([0.5, 0, -0.5]), np.full(3, 2.0), out, out * 0)
        assert ", ".join(f"{value:.5g}" for value in out) in text
    for choice, nesterov in product(_choices("velocity"), (False, True)):
        settings = SimpleNamespace(momentum=0.5, dampening=0 if nesterov else 0.5, nesterov=nesterov, weight_decay=0.1)
        w, v = (
            [f"{value:.7g}" for value in pair]
            for pair in zip(
                *(_steps(settings, choice, w, [g, g], [0.1, 0.05]) for w, g in ((1.0, 0.4), (-2.0, 0.2))), strict=True
            )
        )
        assert f"| {', '.join(w)} | {v[0]}, 0 |" in text
