"""A1: tasks, and the trainings with the student's functions."""

from __future__ import annotations

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Points, Variant
from hybridnn_course.exercises.a1_dense.budgets import cost_budget, differences_budget
from hybridnn_course.exercises.a1_dense.calls import (
    DECAYING,
    call_activation,
    call_backward,
    call_differences,
    call_forward,
    call_loss,
    call_update,
    run_activation,
    run_backward,
    run_forward,
    run_loss,
    run_update,
    train_update,
    train_with,
)
from hybridnn_course.whole_run import train_digits
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a1_dense import cases
from hybridnn_course_staff.assignments.a1_dense.solution import (
    activation_solution,
    backward_solution,
    differences_solution,
    forward_solution,
    loss_solution,
    update_solution,
)

# -- trainings --------------------------------------------------------------------------------------------------------


def _expected_loss(variant: Variant) -> Values:
    return run_loss(loss_solution(variant), variant) if variant["loss"] == "smoothed" else train_digits()


def _expected_activation(variant: Variant) -> Values:
    return run_activation(activation_solution(variant), variant)


def _expected_update(variant: Variant) -> Values:
    return run_update(update_solution(variant), variant) if variant["velocity"] == "steps" else train_update()


LOSS = """\
Loss of samples from their logits, and its gradient.

Parameters
----------
logits : ndarray, shape (classes, n)
labels : ndarray of int, shape (n,)
columns : ndarray of int, shape (n,)
    0 … n-1.
scale : float
    1 / samples of the global minibatch.
gradient : ndarray, shape (classes, n)
    Receives `scale` times the gradient of the sum of the samples' losses.
loss : ndarray, shape (1,)
    Receives the sum of the samples' losses."""

ASSIGNMENT = Assignment(
    id="a1",
    package="hybridnn_course_staff.assignments.a1_dense",
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
            target="hybridnn_course_staff.assignments.a1_dense.solution:numerical_gradient",
            call=call_differences,
            solution=differences_solution,
            public=cases.public_differences,
            hidden=cases.hidden_differences,
            points=Points(public=3, hidden=5, budget=2),
            budget=differences_budget,
        ),
        Task(
            name="loss",
            file="network.py",
            target="hybridnn.nn.kernels:NUMPY.cross_entropy",
            docstring=LOSS,
            call=call_loss,
            solution=loss_solution,
            public=cases.public_loss,
            hidden=cases.hidden_loss,
            points=Points(public=7, hidden=10, budget=4, whole=2),
            axes=("loss",),
            budget=cost_budget,
            whole=WholeRun("digits, 2 epochs", run_loss, _expected_loss),
        ),
        Task(
            name="activation",
            file="network.py",
            target="hybridnn_course_staff.assignments.a1_dense.solution:gradient_of_activation",
            call=call_activation,
            solution=activation_solution,
            public=cases.public_activation,
            hidden=cases.hidden_activation,
            points=Points(public=6, hidden=8, budget=3, whole=2),
            axes=("activation",),
            budget=cost_budget,
            whole=WholeRun("digits, one epoch with each activation", run_activation, _expected_activation),
        ),
        Task(
            name="forward",
            file="network.py",
            target="hybridnn_course_staff.assignments.a1_dense.solution:dense_forward",
            call=call_forward,
            solution=forward_solution,
            public=cases.public_forward,
            hidden=cases.hidden_forward,
            points=Points(public=3, hidden=5, budget=1, whole=2),
            axes=("samples",),
            budget=cost_budget,
            whole=WholeRun("digits, 2 epochs", run_forward, lambda _: train_digits()),
        ),
        Task(
            name="backward",
            file="network.py",
            target="hybridnn_course_staff.assignments.a1_dense.solution:dense_backward",
            call=call_backward,
            solution=backward_solution,
            public=cases.public_backward,
            hidden=cases.hidden_backward,
            points=Points(public=6, hidden=9, budget=2, whole=2),
            axes=("samples",),
            budget=cost_budget,
            whole=WholeRun("digits, 2 epochs with weight decay", run_backward, lambda _: train_with(DECAYING)),
        ),
        Task(
            name="update",
            file="network.py",
            target="hybridnn.nn.kernels:NUMPY.sgd_update",
            call=call_update,
            solution=update_solution,
            public=cases.public_update,
            hidden=cases.hidden_update,
            points=Points(public=5, hidden=8, budget=3, whole=2),
            axes=("velocity",),
            budget=cost_budget,
            whole=WholeRun("digits, dampening and Nesterov, a rate that changes", run_update, _expected_update),
        ),
    ),
)
