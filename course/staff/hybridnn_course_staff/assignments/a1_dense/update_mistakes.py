"""Known wrong solutions of A1: the update."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a1_dense.calls import Array
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a1_dense.mistakes import LOOP_HINT, MEMORY_HINT, REBINDS_HINT
from hybridnn_course_staff.assignments.a1_dense.solution import update_solution


def _with(variant: Variant, **changed: Any) -> Callable[..., None]:
    """The update with other settings: values, or functions of the settings."""
    solution = update_solution(variant)

    def sgd_update(
        weights: Array, gradient: Array, velocity: Array | None, out: Array, scratch: Array, settings: Any, scalars: Any
    ) -> None:
        own = SimpleNamespace(**vars(settings))
        vars(own).update({name: value(settings) if callable(value) else value for name, value in changed.items()})
        solution(weights, gradient, velocity, out, scratch, own, scalars)

    return sgd_update


def _decay_left_out(variant: Variant) -> Callable[..., None]:
    return _with(variant, weight_decay=0.0)


def _decay_reversed(variant: Variant) -> Callable[..., None]:
    return _with(variant, weight_decay=lambda settings: -settings.weight_decay)


def _dampening_left_out(variant: Variant) -> Callable[..., None]:
    return _with(variant, dampening=0.0)


def _running_mean(variant: Variant) -> Callable[..., None]:
    return _with(variant, dampening=lambda settings: settings.momentum)


def _never_nesterov(variant: Variant) -> Callable[..., None]:
    return _with(variant, nesterov=False)


def _around(variant: Variant, change: Callable[..., None]) -> Callable[..., None]:
    """The update, followed by ``change(old, weights, gradient, velocity, out, settings, lr)``.

    `old` has copies of the four arrays from before.
    """
    solution = update_solution(variant)

    def sgd_update(
        weights: Array, gradient: Array, velocity: Array | None, out: Array, scratch: Array, settings: Any, scalars: Any
    ) -> None:
        old = SimpleNamespace(weights=weights.copy(), velocity=None if velocity is None else velocity.copy())
        solution(weights, gradient, velocity, out, scratch, settings, scalars)
        change(old, weights, gradient, velocity, out, settings, scalars[0])

    return sgd_update


def _decoupled_decay(variant: Variant) -> Callable[..., None]:
    plain = _decay_left_out(variant)

    def sgd_update(
        weights: Array, gradient: Array, velocity: Array | None, out: Array, scratch: Array, settings: Any, scalars: Any
    ) -> None:
        decayed = scalars[0] * settings.weight_decay * weights
        plain(weights, gradient, velocity, out, scratch, settings, scalars)
        out -= decayed

    return sgd_update


def _uphill(variant: Variant) -> Callable[..., None]:
    def change(old: Any, weights: Any, gradient: Any, velocity: Any, out: Any, settings: Any, lr: float) -> None:
        out[...] = 2 * old.weights - out

    return _around(variant, change)


def _velocity_lost(variant: Variant) -> Callable[..., None]:
    def change(old: Any, weights: Any, gradient: Any, velocity: Any, out: Any, settings: Any, lr: float) -> None:
        if velocity is not None:
            velocity[...] = old.velocity

    return _around(variant, change)


def _old_velocity(variant: Variant) -> Callable[..., None]:
    def change(old: Any, weights: Any, gradient: Any, velocity: Any, out: Any, settings: Any, lr: float) -> None:
        if velocity is not None:
            out[...] = old.weights - (lr if variant["velocity"] == "gradients" else 1.0) * old.velocity

    return _around(variant, change)


def _gradient_changed(variant: Variant) -> Callable[..., None]:
    def change(old: Any, weights: Any, gradient: Any, velocity: Any, out: Any, settings: Any, lr: float) -> None:
        gradient += settings.weight_decay * old.weights

    return _around(variant, change)


def _weights_changed(variant: Variant) -> Callable[..., None]:
    def change(old: Any, weights: Any, gradient: Any, velocity: Any, out: Any, settings: Any, lr: float) -> None:
        weights[...] = out

    return _around(variant, change)


def _update_rebinds(variant: Variant) -> Callable[..., None]:
    solution = update_solution(variant)

    def sgd_update(
        weights: Array, gradient: Array, velocity: Array | None, out: Array, scratch: Array, settings: Any, scalars: Any
    ) -> None:
        solution(weights, gradient, velocity, np.empty_like(out), scratch, settings, scalars)

    return sgd_update


def _one_block(variant: Variant) -> Callable[..., None]:
    solution = update_solution(variant)

    def sgd_update(
        weights: Array, gradient: Array, velocity: Array | None, out: Array, scratch: Array, settings: Any, scalars: Any
    ) -> None:
        np.multiply(weights, settings.weight_decay, out=scratch[: weights.size])
        solution(weights, gradient, velocity, out, scratch, settings, scalars)

    return sgd_update


def _update_loop(variant: Variant) -> Callable[..., None]:
    solution = update_solution(variant)

    def sgd_update(
        weights: Array, gradient: Array, velocity: Array | None, out: Array, scratch: Array, settings: Any, scalars: Any
    ) -> None:
        for start in range(0, weights.size, 256):
            part = slice(start, start + 256)
            own = None if velocity is None else velocity[part]
            solution(weights[part], gradient[part], own, out[part], scratch, settings, scalars)

    return sgd_update


def _update_allocates(variant: Variant) -> Callable[..., None]:
    return _around(variant, lambda *arguments: None)


UPDATE = (
    Mistake(
        "decay-left-out",
        _decay_left_out,
        "The weight decay has no effect. Which term does it add to the gradient?",
    ),
    Mistake(
        "decay-reversed",
        _decay_reversed,
        "The weight decay makes weights larger. Which sign has its term in the gradient?",
    ),
    Mistake(
        "decay-decoupled",
        _decoupled_decay,
        "The weight decay changes the weights but not the velocity. Where does the formula add it?",
    ),
    Mistake(
        "dampening-left-out",
        _dampening_left_out,
        "The dampening has no effect. What multiplies the gradient in the formula of the velocity?",
    ),
    Mistake(
        "running-mean",
        _running_mean,
        "The velocity is a running mean: the gradient was multiplied by 1 - momentum. What multiplies it in the "
        "formula?",
    ),
    Mistake(
        "never-nesterov",
        _never_nesterov,
        "The step is the same with and without `settings.nesterov`. What is added to the velocity's step with it?",
    ),
    Mistake("uphill", _uphill, "The loss would grow with every step. Which sign has a step along the gradient?"),
    Mistake(
        "velocity-lost",
        _velocity_lost,
        "The weights are right after the first step; the velocity array has not changed. Which array does the next "
        "step read?",
    ),
    Mistake(
        "velocity-of-last-step",
        _old_velocity,
        "The weights moved along the velocity of the step before. Which of the two is updated first?",
    ),
    Mistake(
        "gradient-changed",
        _gradient_changed,
        "The weights are right, but the caller's gradient has changed. Into which array can the sum with the decay go?",
    ),
    Mistake(
        "weights-changed",
        _weights_changed,
        "The result is right, but `weights` has changed though `out` is another array. Which array does the step "
        "write?",
    ),
    Mistake("update-rebinds-out", _update_rebinds, REBINDS_HINT),
    Mistake(
        "one-block",
        _one_block,
        "The call failed where there are more weights than `scratch` has elements. How can a short array be enough for "
        "a long update?",
    ),
    Mistake("update-loops", _update_loop, LOOP_HINT),
    Mistake("update-allocates", _update_allocates, MEMORY_HINT),
)
