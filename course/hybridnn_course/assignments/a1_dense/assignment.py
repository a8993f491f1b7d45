"""A1: tasks, and the trainings with the student's functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hybridnn.comm.group import DONE
from hybridnn.nn.activations import ACTIVATIONS, Activation
from hybridnn.nn.learning_rates import Step
from hybridnn.nn.optimizers import SGD
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Assignment, Function, Points, Task, Variant, WholeRun
from hybridnn_course.assignments.a1_dense import cases
from hybridnn_course.assignments.a1_dense.layer_mistakes import BACKWARD, FORWARD
from hybridnn_course.assignments.a1_dense.loss_mistakes import LOSS
from hybridnn_course.assignments.a1_dense.mistakes import ACTIVATION, DIFFERENCES
from hybridnn_course.assignments.a1_dense.solution import (
    Array,
    activation_solution,
    backward_solution,
    forward_solution,
    loss_solution,
    numerical_gradient,
    special_activation,
    update_solution,
)
from hybridnn_course.assignments.a1_dense.update_mistakes import UPDATE
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import train_digits

LAYER = "hybridnn.parallel.dense:ColumnDense"
DECAYING = SGD(lr=0.2, momentum=0.8, dampening=0.1, weight_decay=0.01)
NESTEROV = SGD(lr=0.1, momentum=0.8, weight_decay=0.01, nesterov=True)
NAMES = ("relu", "tanh", "sigmoid", "special")
USERS = "hybridnn.training.trainer"


@contextlib.contextmanager
def _in_kernels(name: str, function: Function) -> Iterator[None]:
    """Replace a function of the library's arithmetic."""
    with injected(f"hybridnn.nn.kernels:NUMPY.{name}", function, USERS):
        yield


# -- trainings --------------------------------------------------------------------------------------------------------


def _run_loss(function: Function, variant: Variant) -> Values:
    def adapted(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        function(logits, labels, columns, scale, gradient, loss)
        if variant["loss"] == "mean":
            loss /= scale

    with _in_kernels("cross_entropy", adapted):
        return train_digits()


def _expected_loss(variant: Variant) -> Values:
    return _run_loss(loss_solution(variant), variant) if variant["loss"] == "smoothed" else train_digits()


@contextlib.contextmanager
def _in_activations(function: Function, variant: Variant) -> Iterator[None]:
    """Replace the gradients of the library's activations, of which the chosen one is named ``"special"``."""

    def with_gradient(name: str, activation: Activation) -> Activation:
        def gradient(y: Array, dy: Array, out: Array, scratch: Array) -> None:
            function(name, y, dy, out, scratch)

        return replace(activation, gradient=gradient)

    before = dict(ACTIVATIONS)
    table = {**before, "special": special_activation(variant)}
    ACTIVATIONS.update({name: with_gradient(name, table[name]) for name in NAMES})
    try:
        yield
    finally:
        ACTIVATIONS.clear()
        ACTIVATIONS.update(before)


def _run_activation(function: Function, variant: Variant) -> Values:
    found: dict[str, Any] = {}
    with _in_activations(function, variant):
        for name in NAMES:
            trained = train_digits(sizes=(64, 16, 16, 10), epochs=1, network={"activation": name})
            found |= {f"{name}: {key}": value for key, value in trained.items()}
    return found


def _expected_activation(variant: Variant) -> Values:
    return _run_activation(activation_solution(variant), variant)


def _arranged(variant: Variant, array: Array) -> Array:
    """A view of an array of the library, whose samples are columns, as the variant arranges them."""
    return array if variant["samples"] == "columns" else array.T


def _run_forward(function: Function, variant: Variant) -> Values:
    def forward(layer: Any, p: LayerParameters, s: LayerArrays) -> None:
        x, y = _arranged(variant, s.x), _arranged(variant, s.activation)
        function(p.weight, p.bias, x, ACTIVATIONS[layer._activation], y, np.empty_like(y))

    with injected(f"{LAYER}.forward", forward, USERS):
        return train_digits()


def _run_backward(function: Function, variant: Variant) -> Values:
    gradients: dict[int, tuple[Array, Array]] = {}

    def backward_input(layer: Any, p: LayerParameters, s: LayerArrays, bias_gradient: Array | None = None) -> Any:
        x, y, dy, dz = (_arranged(variant, array) for array in (s.x, s.activation, s.own_dy, s.dz))
        dx = None if s.dx is None else _arranged(variant, s.dx)
        found = np.empty_like(p.weight), np.empty_like(p.bias)
        activation = ACTIVATIONS[layer._activation]
        function(p.weight, x, y, dy, activation, dz, *found, dx, np.empty_like(y))
        gradients[id(s)] = found
        return DONE

    def backward_weight(layer: Any, s: WeightGradientArrays, gradient: LayerParameters, *, biases: bool = True) -> None:
        gradient.weight[...], gradient.bias[...] = gradients.pop(id(s))

    with (
        injected(f"{LAYER}.backward_input", backward_input, USERS),
        injected(f"{LAYER}.backward_weight", backward_weight, USERS),
    ):
        return _train_with(DECAYING)


def _train_with(optimizer: SGD) -> Values:
    """A training whose rate changes after the first epoch, and whose update is not fused with products."""
    return train_digits(optimizer=optimizer, schedule=Step((1,), 0.3))


def _train_update() -> Values:
    found: dict[str, Any] = {}
    for name, optimizer in (("dampening", DECAYING), ("nesterov", NESTEROV)):
        found |= {f"{name}: {key}": value for key, value in _train_with(optimizer).items()}
    return found


def _run_update(function: Function, variant: Variant) -> Values:
    with _in_kernels("sgd_update", function):
        return _train_update()


def _expected_update(variant: Variant) -> Values:
    return _run_update(update_solution(variant), variant) if variant["velocity"] == "steps" else _train_update()


ASSIGNMENT = Assignment(
    id="a1",
    package="hybridnn_course.assignments.a1_dense",
    title="A1: A dense layer by hand",
    goal="Forward and backward pass, loss and update of a network, each as one NumPy function, and a way to check them",
    hours=5,
    axes={
        "loss": {
            "sum": "`gradient` is multiplied by `scale`; `loss` is not: it is the sum over the samples.",
            "mean": "Both `gradient` and `loss` are multiplied by `scale`: the loss is a part of a mean.",
            "smoothed": "The labels are smoothed by e = 0.1: the target of the label's class is 1 - e + e / classes, "
            "that of every other class e / classes. `gradient` is multiplied by `scale`; `loss` is not: it is the sum "
            "over the samples.",
        },
        "activation": {
            "selu": 'The activation `"special"` is SELU: y = s z where z > 0, and y = s a (exp(z) - 1) elsewhere, with '
            "s = 1.0507009873554805 and a = 1.6732632423543772.",
            "leaky_relu": 'The activation `"special"` is the leaky ReLU: y = z where z > 0, and y = 0.1 z elsewhere.',
            "softsign": 'The activation `"special"` is softsign: y = z / (1 + |z|).',
        },
        "samples": {
            "columns": "Each column is a sample: `x` has the shape (inputs, n), `y` the shape (outputs, n).",
            "rows": "Each row is a sample: `x` has the shape (n, inputs), `y` the shape (n, outputs).",
        },
        "velocity": {
            "gradients": "The velocity adds up gradients, and the step multiplies it by the learning rate: the formula "
            "of the docstring.",
            "steps": "The velocity adds up steps instead: in the formula of the docstring, (1 - dampening) * g is "
            "multiplied by lr where it enters the velocity, and the velocity is not multiplied by lr again: "
            "v = momentum * v + lr * (1 - dampening) * g; w -= (lr * g + momentum * v if nesterov else v).",
        },
    },
    tasks=(
        Task(
            name="differences",
            file="differences.py",
            target="hybridnn_course.assignments.a1_dense.solution:numerical_gradient",
            call=cases.call_differences,
            solution=lambda _: numerical_gradient,
            public=cases.public_differences,
            hidden=cases.hidden_differences,
            points=Points(public=3, hidden=5, budget=2),
            budget=cases.differences_budget,
            mistakes=DIFFERENCES,
        ),
        Task(
            name="loss",
            file="network.py",
            target="hybridnn.nn.kernels:NUMPY.cross_entropy",
            call=cases.call_loss,
            solution=loss_solution,
            public=cases.public_loss,
            hidden=cases.hidden_loss,
            points=Points(public=7, hidden=10, budget=4, whole=2),
            axes=("loss",),
            budget=cases.cost_budget,
            whole=WholeRun("digits, 2 epochs", _run_loss, _expected_loss),
            mistakes=LOSS,
        ),
        Task(
            name="activation",
            file="network.py",
            target="hybridnn_course.assignments.a1_dense.solution:gradient_of_activation",
            call=cases.call_activation,
            solution=activation_solution,
            public=cases.public_activation,
            hidden=cases.hidden_activation,
            points=Points(public=6, hidden=8, budget=3, whole=2),
            axes=("activation",),
            budget=cases.cost_budget,
            whole=WholeRun("digits, one epoch with each activation", _run_activation, _expected_activation),
            mistakes=ACTIVATION,
        ),
        Task(
            name="forward",
            file="network.py",
            target="hybridnn_course.assignments.a1_dense.solution:dense_forward",
            call=cases.call_forward,
            solution=forward_solution,
            public=cases.public_forward,
            hidden=cases.hidden_forward,
            points=Points(public=3, hidden=5, budget=1, whole=2),
            axes=("samples",),
            budget=cases.cost_budget,
            whole=WholeRun("digits, 2 epochs", _run_forward, lambda _: train_digits()),
            mistakes=FORWARD,
        ),
        Task(
            name="backward",
            file="network.py",
            target="hybridnn_course.assignments.a1_dense.solution:dense_backward",
            call=cases.call_backward,
            solution=backward_solution,
            public=cases.public_backward,
            hidden=cases.hidden_backward,
            points=Points(public=6, hidden=9, budget=2, whole=2),
            axes=("samples",),
            budget=cases.cost_budget,
            whole=WholeRun("digits, 2 epochs with weight decay", _run_backward, lambda _: _train_with(DECAYING)),
            mistakes=BACKWARD,
        ),
        Task(
            name="update",
            file="network.py",
            target="hybridnn.nn.kernels:NUMPY.sgd_update",
            call=cases.call_update,
            solution=update_solution,
            public=cases.public_update,
            hidden=cases.hidden_update,
            points=Points(public=5, hidden=8, budget=3, whole=2),
            axes=("velocity",),
            budget=cases.cost_budget,
            whole=WholeRun("digits, dampening and Nesterov, a rate that changes", _run_update, _expected_update),
            mistakes=UPDATE,
        ),
    ),
)
