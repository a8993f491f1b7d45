"""Reference solutions of A1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hybridnn.nn.activations import ACTIVATIONS, Activation
from hybridnn.nn.kernels import UPDATE_BLOCK
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a1_dense.calls import SLOPE, SPECIAL, Array

SMOOTHING = 0.1  # probability that smoothed labels share out over all classes


def numerical_gradient(function: Callable[[Array], float], point: Array, step: float) -> Array:
    """Gradient of a function by central differences.

    Parameters
    ----------
    function : callable
        Takes an array of the shape and dtype of `point` and returns a float.
    point : ndarray
        Where the gradient is taken; of any shape, and unchanged afterwards.
    step : float
        Distance between `point` and each of the two places where the function is evaluated for an element.

    Returns
    -------
    ndarray
        Of the shape and dtype of `point`.
    """
    gradient, moved = np.empty_like(point), point.copy()
    for index in np.ndindex(point.shape):
        moved[index] = point[index] + step
        above = function(moved)
        moved[index] = point[index] - step
        gradient[index] = (above - function(moved)) / (2 * step)
        moved[index] = point[index]
    return gradient


def differences_solution(_: Variant) -> Callable[..., Array]:
    """Central differences, in every variant."""
    return numerical_gradient


def loss_solution(variant: Variant) -> Callable[..., None]:
    """Cross-entropy by log-sum-exp, of labels or of smoothed labels; the loss is a sum, or is scaled too."""
    smoothing = SMOOTHING if variant["loss"] == "smoothed" else 0.0

    def cross_entropy(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        np.subtract(logits, logits.max(axis=0), out=gradient)
        targets = (1 - smoothing) * gradient[labels, columns] + smoothing * gradient.mean(axis=0)
        np.exp(gradient, out=gradient)
        sums = gradient.sum(axis=0)
        gradient /= sums
        gradient[labels, columns] -= 1 - smoothing
        gradient -= smoothing / len(logits)
        gradient *= scale
        loss[0] = np.sum(np.log(sums) - targets)
        if variant["loss"] == "mean":
            loss *= scale

    return cross_entropy


def activation_solution(variant: Variant) -> Callable[..., None]:
    """Gradients of the activations of the library, and of one that the variant chooses."""
    activations = {**ACTIVATIONS, "special": special_activation(variant)}

    def gradient_of_activation(name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        """Gradient with respect to the input of an activation, from its output.

        Parameters
        ----------
        name : {"identity", "relu", "tanh", "sigmoid", "special"}
        y : ndarray
            Output of the activation.
        dy : ndarray
            Gradient with respect to `y`, of the same shape.
        out : ndarray
            Receives the gradient with respect to the input, of the same shape; may be the array `dy`.
        scratch : ndarray
            Of the same shape and dtype; may be overwritten.
        """
        activations[name].gradient(y, dy, out, scratch)

    return gradient_of_activation


def special_activation(variant: Variant) -> Activation:
    """The activation that is named ``"special"``."""
    name = variant["activation"]
    return replace(SPECIAL[name], gradient=GRADIENTS[name]) if name in GRADIENTS else SPECIAL[name]


def _leaky_relu_gradient(y: Array, dy: Array, out: Array, scratch: Array) -> None:
    np.greater(y, 0, out=scratch)
    np.maximum(scratch, SLOPE, out=scratch)
    np.multiply(dy, scratch, out=out)


def _softsign_gradient(y: Array, dy: Array, out: Array, scratch: Array) -> None:
    np.abs(y, out=scratch)
    np.subtract(1, scratch, out=scratch)
    scratch *= scratch
    np.multiply(dy, scratch, out=out)


GRADIENTS = {"leaky_relu": _leaky_relu_gradient, "softsign": _softsign_gradient}


def forward_solution(variant: Variant) -> Callable[..., None]:
    """The forward pass, for samples in columns or in rows."""
    columns = variant["samples"] == "columns"

    def dense_forward(weight: Array, bias: Array, x: Array, activation: Any, y: Array, scratch: Array) -> None:
        """Output of a dense layer for n samples: the activation of ``W x + b``.

        Parameters
        ----------
        weight : ndarray, shape (outputs, inputs)
        bias : ndarray, shape (outputs,)
        x : ndarray
            Inputs of the samples.
        activation : object
            ``activation.apply(z, scratch)`` replaces the elements of an array by their activation.
        y : ndarray
            Receives the outputs of the samples.
        scratch : ndarray
            Of the shape of `y`; may be overwritten.
        """
        if columns:
            np.matmul(weight, x, out=y)
            y += bias[:, None]
        else:
            np.matmul(x, weight.T, out=y)
            y += bias
        activation.apply(y, scratch)

    return dense_forward


def backward_solution(variant: Variant) -> Callable[..., None]:
    """The backward pass, for samples in columns or in rows."""
    columns = variant["samples"] == "columns"

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
        """Gradients of a dense layer for n samples.

        Parameters
        ----------
        weight : ndarray, shape (outputs, inputs)
        x : ndarray
            Inputs of the samples.
        y : ndarray
            Outputs of the samples, after the activation.
        dy : ndarray
            Gradient with respect to `y`, of the same shape.
        activation : object
            ``activation.gradient(y, dy, out, scratch)`` writes the gradient with respect to the activation's input to
            `out`, which may be `dy`.
        dz : ndarray
            Receives the gradient with respect to ``W x + b``, of the shape of `y`; may be the array `dy`.
        weight_gradient : ndarray, shape (outputs, inputs)
            Receives the gradient with respect to `weight`, summed over the samples.
        bias_gradient : ndarray, shape (outputs,)
            Receives the gradient with respect to the bias, summed over the samples.
        dx : ndarray or None
            Receives the gradient with respect to `x`, of the same shape; None if it is not needed.
        scratch : ndarray
            Of the shape of `y`; may be overwritten.
        """
        activation.gradient(y, dy, dz, scratch)
        if columns:
            np.matmul(dz, x.T, out=weight_gradient)
        else:
            np.matmul(dz.T, x, out=weight_gradient)
        np.sum(dz, axis=1 if columns else 0, out=bias_gradient)
        if dx is None:
            return
        if columns:
            np.matmul(weight.T, dz, out=dx)
        else:
            np.matmul(dz, weight, out=dx)

    return dense_backward


def update_solution(variant: Variant) -> Callable[..., None]:
    """A step of SGD, whose velocity adds up gradients, or gradients times learning rates."""
    in_velocity = variant["velocity"] == "steps"

    def sgd_update(
        weights: Array,
        gradient: Array,
        velocity: Array | None,
        out: Array,
        scratch: Array,
        settings: Any,
        scalars: Any,
    ) -> None:
        lr = scalars[0]
        inside, outside = (lr, 1.0) if in_velocity else (1.0, lr)
        for start in range(0, weights.size, UPDATE_BLOCK):
            block = slice(start, start + UPDATE_BLOCK)
            w, new = weights[block], out[block]
            t = scratch[: w.size]
            np.multiply(w, settings.weight_decay, out=t)
            t += gradient[block]
            new[...] = w
            if velocity is None:
                t *= lr
            else:
                v = velocity[block]
                t *= inside * (1 - settings.dampening)
                v *= settings.momentum
                v += t
                if settings.nesterov:
                    t *= outside
                    new -= t
                np.multiply(v, outside * (settings.momentum if settings.nesterov else 1), out=t)
            new -= t

    return sgd_update


# In the variant of the library; the students' stubs have their signatures and docstrings.
gradient_of_activation = activation_solution({"activation": "selu"})
dense_forward = forward_solution({"samples": "columns"})
dense_backward = backward_solution({"samples": "columns"})
