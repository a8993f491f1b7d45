"""Known wrong solutions of A1: finite differences and the gradients of activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridnn.nn.activations import ACTIVATIONS
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a1_dense.calls import Array
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a1_dense.solution import (
    activation_solution,
    numerical_gradient,
    special_activation,
)

LOOP_HINT = (
    "The values are right, but a Python loop has more iterations where the arrays are larger. Which NumPy function "
    "does the whole array in one call?"
)
MEMORY_HINT = (
    "The values are right, but expressions allocate arrays as large as the arguments. Which functions take `out`, and "
    "which of the arrays that you are given may hold intermediate results?"
)
REBINDS_HINT = (
    "An array that you should fill still has its old elements. What is the difference between a name that refers to a "
    "new array, and new elements in an array?"
)


# -- differences ------------------------------------------------------------------------------------------------------

Difference = Callable[[Callable[[Array], float], Array, float], Array]


def _one_sided(_: Variant) -> Difference:
    def numerical_gradient(function: Callable[[Array], float], point: Array, step: float) -> Array:
        gradient, moved, here = np.empty_like(point), point.copy(), function(point)
        for index in np.ndindex(point.shape):
            moved[index] += step
            gradient[index] = (function(moved) - here) / step
            moved[index] = point[index]
        return gradient

    return numerical_gradient


def _divided_by_step(_: Variant) -> Difference:
    return lambda function, point, step: 2 * numerical_gradient(function, point, step)


def _not_moved_back(_: Variant) -> Difference:
    def numerical_gradient(function: Callable[[Array], float], point: Array, step: float) -> Array:
        gradient, moved = np.empty_like(point), point.copy()
        for index in np.ndindex(point.shape):
            moved[index] += step
            above = function(moved)
            moved[index] -= 2 * step
            gradient[index] = (above - function(moved)) / (2 * step)
        return gradient

    return numerical_gradient


def _all_at_once(_: Variant) -> Difference:
    def numerical_gradient(function: Callable[[Array], float], point: Array, step: float) -> Array:
        slope = (function(point + point.dtype.type(step)) - function(point - point.dtype.type(step))) / (2 * step)
        return np.full_like(point, slope)

    return numerical_gradient


def _flat_gradient(_: Variant) -> Difference:
    return lambda function, point, step: numerical_gradient(function, point, step).ravel()


def _becomes_float64(_: Variant) -> Difference:
    return lambda function, point, step: numerical_gradient(function, point, step).astype(np.float64)


def _changes_point(_: Variant) -> Difference:
    def changing(function: Callable[[Array], float], point: Array, step: float) -> Array:
        gradient = numerical_gradient(function, point, step)
        point -= point.dtype.type(step)
        return gradient

    return changing


def _evaluated_too_often(_: Variant) -> Difference:
    def evaluating(function: Callable[[Array], float], point: Array, step: float) -> Array:
        for _index in np.ndindex(point.shape):
            function(point.copy())
        return numerical_gradient(function, point, step)

    return evaluating


DIFFERENCES = (
    Mistake(
        "one-sided-difference",
        _one_sided,
        "The function was evaluated at the point and on one side of it. How does the error of a difference over both "
        "sides depend on the step?",
    ),
    Mistake(
        "divided-by-one-step",
        _divided_by_step,
        "Every element is twice as large as it should be. How far apart are the two places of evaluation?",
    ),
    Mistake(
        "not-moved-back",
        _not_moved_back,
        "Elements after the first are wrong: the elements before them were still moved. Where is the point when the "
        "next element's turn comes?",
    ),
    Mistake(
        "all-elements-at-once",
        _all_at_once,
        "All elements were moved at the same time, which gives the slope in one direction. How many elements may "
        "differ from the point in an evaluation?",
    ),
    Mistake("flat-gradient", _flat_gradient, "The result is one-dimensional. Which shape has the point?"),
    Mistake(
        "becomes-float64",
        _becomes_float64,
        "The point is of float32, the result of float64. Which dtype has an array that NumPy makes from Python floats "
        "or with np.zeros?",
    ),
    Mistake(
        "point-changed",
        _changes_point,
        "The gradient is right, but the caller's array has changed. Whose memory did the steps change?",
    ),
    Mistake(
        "evaluated-too-often",
        _evaluated_too_often,
        "The gradient is right, but the function was evaluated more than twice for an element. Which evaluations does "
        "the formula contain?",
    ),
)


# -- activation -------------------------------------------------------------------------------------------------------


def _before(variant: Variant, replace: Callable[..., Array]) -> Callable[..., None]:
    """The gradient with another `y`: ``replace(activation, name, y, dy)`` returns it."""
    solution = activation_solution(variant)
    activations = {**ACTIVATIONS, "special": special_activation(variant)}

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        solution(name, replace(activations[name], name, y, dy), dy, out, scratch)

    return gradient_of_activation


def _derivative_of_input(variant: Variant) -> Callable[..., None]:
    def replace(activation: Any, name: str, y: Array, dy: Array) -> Array:
        again = y.copy()
        activation.apply(again, np.empty_like(y))
        return again

    return _before(variant, replace)


def _mask_of_gradient(variant: Variant) -> Callable[..., None]:
    return _before(variant, lambda activation, name, y, dy: dy if name == "relu" else y)


def _positive_at_zero(variant: Variant) -> Callable[..., None]:
    return _before(variant, lambda activation, name, y, dy: np.where(y == 0, 1e-300, y) if name == "special" else y)


def _mask_unused(variant: Variant) -> Callable[..., None]:
    return _before(variant, lambda activation, name, y, dy: np.ones_like(y) if name == "relu" else y)


def _gradient_left_out(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        solution(name, y, np.ones_like(dy), out, scratch)

    return gradient_of_activation


def _out_before_dy(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        solution(name, y, np.ones_like(dy), out, scratch)
        out *= dy

    return gradient_of_activation


def _square_left_out(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        if name == "tanh":
            out[...] = dy * (1 - y)
        else:
            solution(name, y, dy, out, scratch)

    return gradient_of_activation


def _changes_output(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        solution(name, y, dy, out, scratch)
        y *= y

    return gradient_of_activation


def _activation_rebinds(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        out = np.empty_like(dy)
        solution(name, y, dy, out, scratch)

    return gradient_of_activation


def _activation_loop(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        for i in range(len(y)):
            solution(name, y[i], dy[i], out[i], scratch[i])

    return gradient_of_activation


def _activation_allocates(variant: Variant) -> Callable[..., None]:
    solution = activation_solution(variant)

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        slopes = np.empty_like(y)
        solution(name, y, np.ones_like(y), slopes, scratch)
        out[...] = dy * slopes

    return gradient_of_activation


ACTIVATION = (
    Mistake(
        "derivative-of-input",
        _derivative_of_input,
        "The derivative was evaluated as if `y` were the input of the activation: the function was applied once more. "
        "What is the derivative in terms of the output?",
    ),
    Mistake(
        "mask-unused",
        _mask_unused,
        "The gradient passes through relu unchanged. What is its slope where the input was negative?",
    ),
    Mistake(
        "mask-of-gradient",
        _mask_of_gradient,
        "For relu, elements were kept where the gradient `dy` is positive. The sign of which array decides?",
    ),
    Mistake(
        "positive-at-zero",
        _positive_at_zero,
        "Elements where the output is exactly 0 have the slope of the positive side. Which side does the handout name?",
        {"activation": ("selu", "leaky_relu")},
    ),
    Mistake(
        "gradient-left-out",
        _gradient_left_out,
        "The result is the derivative of the activation. What does the chain rule multiply it by?",
    ),
    Mistake(
        "square-left-out",
        _square_left_out,
        "For tanh, slopes larger than 1 were used. Which slopes does tanh have, and are they equal at y and at -y?",
    ),
    Mistake(
        "out-before-dy",
        _out_before_dy,
        "The result is wrong only where `out` is the array `dy`. Which elements does your last line read, and what "
        "wrote to them?",
    ),
    Mistake(
        "output-changed",
        _changes_output,
        "The result is right, but the array `y` has changed. Which of the arrays may be overwritten?",
    ),
    Mistake("activation-rebinds-out", _activation_rebinds, REBINDS_HINT),
    Mistake("activation-loops", _activation_loop, LOOP_HINT),
    Mistake("activation-allocates", _activation_allocates, MEMORY_HINT),
)
