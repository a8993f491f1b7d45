"""Known wrong solutions of A1: the dense layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a1_dense.calls import Array
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a1_dense.mistakes import LOOP_HINT, MEMORY_HINT, REBINDS_HINT
from hybridnn_course_staff.assignments.a1_dense.solution import backward_solution, forward_solution


def _columns(variant: Variant, array: Array) -> Array:
    """A view with one sample per column."""
    return array if variant["samples"] == "columns" else array.T


Layer = Callable[..., None]


# -- forward ----------------------------------------------------------------------------------------------------------


def _linear(variant: Variant, combine: Callable[[Array, Array, Array], Array], *, last: bool = True) -> Layer:
    """A layer whose ``W x + b`` is ``combine(weight, bias, x)``, of samples in columns."""

    def dense_forward(weight: Array, bias: Array, x: Array, activation: Any, y: Array, scratch: Array) -> None:
        _columns(variant, y)[...] = combine(weight, bias, _columns(variant, x))
        if last:
            activation.apply(y, scratch)

    return dense_forward


def _bias_missing(variant: Variant) -> Callable[..., None]:
    return _linear(variant, lambda weight, bias, x: weight @ x)


def _bias_along_samples(variant: Variant) -> Callable[..., None]:
    return _linear(variant, lambda weight, bias, x: weight @ x + bias)


def _bias_per_sample(variant: Variant) -> Callable[..., None]:
    return _linear(variant, lambda weight, bias, x: weight @ x + x.shape[1] * bias[:, None])


def _weight_transposed(variant: Variant) -> Callable[..., None]:
    return _linear(variant, lambda weight, bias, x: weight.T @ x + bias[:, None])


def _activation_left_out(variant: Variant) -> Callable[..., None]:
    return _linear(variant, lambda weight, bias, x: weight @ x + bias[:, None], last=False)


def _forward_allocates(variant: Variant) -> Callable[..., None]:
    return _linear(variant, lambda weight, bias, x: weight @ x + bias[:, None])


def _bias_after_activation(variant: Variant) -> Callable[..., None]:
    def dense_forward(weight: Array, bias: Array, x: Array, activation: Any, y: Array, scratch: Array) -> None:
        _columns(variant, y)[...] = weight @ _columns(variant, x)
        activation.apply(y, scratch)
        _columns(variant, y)[...] += bias[:, None]

    return dense_forward


def _forward_rebinds(variant: Variant) -> Callable[..., None]:
    solution = forward_solution(variant)

    def dense_forward(weight: Array, bias: Array, x: Array, activation: Any, y: Array, scratch: Array) -> None:
        y = np.empty_like(y)
        solution(weight, bias, x, activation, y, scratch)

    return dense_forward


def _forward_loop(variant: Variant) -> Callable[..., None]:
    def dense_forward(weight: Array, bias: Array, x: Array, activation: Any, y: Array, scratch: Array) -> None:
        inputs, outputs = _columns(variant, x), _columns(variant, y)
        for j in range(inputs.shape[1]):
            outputs[:, j] = weight @ inputs[:, j] + bias
        activation.apply(y, scratch)

    return dense_forward


FORWARD = (
    Mistake(
        "bias-missing", _bias_missing, "The bias was not added. What is the output of a layer for an input of zeros?"
    ),
    Mistake(
        "bias-along-samples",
        _bias_along_samples,
        "The elements of the bias were added to samples, not to outputs. Along which axis does NumPy broadcast a "
        "one-dimensional array?",
    ),
    Mistake(
        "bias-per-sample",
        _bias_per_sample,
        "The bias was added once for each sample to every sample. How many biases has an output of one sample?",
    ),
    Mistake(
        "weight-transposed",
        _weight_transposed,
        "The product was taken with the transposed weights. Which axis of `weight` belongs to the inputs?",
    ),
    Mistake(
        "activation-left-out",
        _activation_left_out,
        "This is W x + b. What does `activation.apply` do with an array?",
    ),
    Mistake(
        "bias-after-activation",
        _bias_after_activation,
        "The bias was added to the activated product. To what does the activation apply?",
    ),
    Mistake("forward-rebinds-out", _forward_rebinds, REBINDS_HINT),
    Mistake("forward-loops", _forward_loop, LOOP_HINT),
    Mistake("forward-allocates", _forward_allocates, MEMORY_HINT),
)


# -- backward ---------------------------------------------------------------------------------------------------------

Step = Callable[[SimpleNamespace], Mapping[str, Any]]
"""New values of some of ``dz``, ``dw``, ``db`` and ``dx``, from ``weight``, ``x``, ``dy`` and the right values."""


def _backward(variant: Variant, step: Step) -> Callable[..., None]:
    """The backward pass with other values, of samples in columns."""
    solution = backward_solution(variant)

    def dense_backward(
        weight: Array,
        x: Array,
        y: Array,
        dy: Array,
        activation: Any,
        dz: Array,
        weight_gradient: Array,
        bias_gradient: Array,
        dx: Array | None,
        scratch: Array,
    ) -> None:
        given = SimpleNamespace(weight=weight, x=_columns(variant, x), dy=_columns(variant, dy.copy()))
        given.old_dw, given.old_db = weight_gradient.copy(), bias_gradient.copy()
        right_dx = np.empty_like(x)
        solution(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, right_dx, scratch)
        given.dz, given.dx = _columns(variant, dz), _columns(variant, right_dx)
        given.dw, given.db = weight_gradient, bias_gradient
        new = step(given)
        if dx is not None:
            _columns(variant, dx)[...] = new.get("dx", given.dx)
        weight_gradient[...] = new.get("dw", given.dw)
        bias_gradient[...] = new.get("db", given.db)
        given.dz[...] = new.get("dz", given.dz)

    return dense_backward


def _dw_from_dy(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"dw": g.dy @ g.x.T})


def _db_from_dy(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"db": g.dy.sum(axis=1)})


def _dx_from_dy(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"dx": g.weight.T @ g.dy})


def _dz_is_dy(variant: Variant) -> Callable[..., None]:
    return _backward(
        variant,
        lambda g: {"dz": g.dy, "dw": g.dy @ g.x.T, "db": g.dy.sum(axis=1), "dx": g.weight.T @ g.dy},
    )


def _bias_averaged(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"db": g.db / max(g.x.shape[1], 1)})


def _gradients_averaged(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"db": g.db / max(g.x.shape[1], 1), "dw": g.dw / max(g.x.shape[1], 1)})


def _bias_of_all_outputs(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"db": np.full_like(g.db, g.dz.sum())})


def _accumulated(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"dw": g.old_dw + g.dw, "db": g.old_db + g.db})


def _dw_transposed(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"dw": g.x @ g.dz.T})


def _dx_not_transposed(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"dx": g.weight @ g.dz})


def _first_layer_forgotten(variant: Variant) -> Callable[..., None]:
    solution = backward_solution(variant)

    def dense_backward(
        weight: Array,
        x: Array,
        y: Array,
        dy: Array,
        activation: Any,
        dz: Array,
        weight_gradient: Array,
        bias_gradient: Array,
        dx: Array | None,
        scratch: Array,
    ) -> None:
        solution(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch)
        if dx is None:
            raise TypeError("'NoneType' object does not support item assignment")

    return dense_backward


def _backward_rebinds(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {"dw": g.old_dw, "db": g.old_db})


def _backward_loop(variant: Variant) -> Callable[..., None]:
    solution = backward_solution(variant)

    def dense_backward(
        weight: Array,
        x: Array,
        y: Array,
        dy: Array,
        activation: Any,
        dz: Array,
        weight_gradient: Array,
        bias_gradient: Array,
        dx: Array | None,
        scratch: Array,
    ) -> None:
        solution(weight, x, y, dy, activation, dz, weight_gradient, bias_gradient, dx, scratch)
        for i, row in enumerate(_columns(variant, dz)):
            bias_gradient[i] = np.sum(row)

    return dense_backward


def _backward_allocates(variant: Variant) -> Callable[..., None]:
    return _backward(variant, lambda g: {})


BACKWARD = (
    Mistake(
        "dw-from-dy",
        _dw_from_dy,
        "The gradient of the weights was computed from `dy`. Is that the gradient before or after the activation?",
    ),
    Mistake(
        "db-from-dy",
        _db_from_dy,
        "The gradient of the bias was computed from `dy`. Is that the gradient before or after the activation?",
    ),
    Mistake(
        "dx-from-dy",
        _dx_from_dy,
        "The gradient of the inputs was computed from `dy`. Is that the gradient before or after the activation?",
    ),
    Mistake(
        "activation-skipped",
        _dz_is_dy,
        "All gradients were computed as if the layer were linear. What turns `dy` into `dz`?",
    ),
    Mistake(
        "bias-averaged",
        _bias_averaged,
        "The gradient of the bias is a mean over the samples, that of the weights a sum. What does the handout ask "
        "for?",
    ),
    Mistake(
        "gradients-averaged",
        _gradients_averaged,
        "The gradients were divided by the number of samples. Which function divides by the samples already?",
    ),
    Mistake(
        "bias-of-all-outputs",
        _bias_of_all_outputs,
        "Every element of the bias has the same gradient: it was summed over both axes. Over which axis is it summed?",
    ),
    Mistake(
        "gradients-accumulated",
        _accumulated,
        "The gradients were added to what the arrays held before. What does the docstring promise about their content?",
    ),
    Mistake(
        "dw-transposed",
        _dw_transposed,
        "The gradient of the weights is transposed. Which shape has it to have, and which product gives that shape?",
    ),
    Mistake(
        "dx-not-transposed",
        _dx_not_transposed,
        "`dz` was multiplied by the weights as in the forward pass. Which shape has the product to have when a layer "
        "has more inputs than outputs?",
    ),
    Mistake(
        "first-layer-forgotten",
        _first_layer_forgotten,
        "The call failed where `dx` is None, as for the first layer. Which gradient does nobody need there?",
    ),
    Mistake("backward-rebinds-out", _backward_rebinds, REBINDS_HINT),
    Mistake("backward-loops", _backward_loop, LOOP_HINT),
    Mistake("backward-allocates", _backward_allocates, MEMORY_HINT),
)
