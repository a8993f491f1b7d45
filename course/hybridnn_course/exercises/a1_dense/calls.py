"""Calls of the student's functions of A1, and the trainings with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import DONE
from hybridnn.nn.activations import ACTIVATIONS, Activation
from hybridnn.nn.kernels import UPDATE_BLOCK
from hybridnn.nn.learning_rates import Step
from hybridnn.nn.optimizers import SGD
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays
from hybridnn_course.answers import MEASURED, UNWRITTEN, Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.injection import injected
from hybridnn_course.measuring import counted, measure
from hybridnn_course.whole_run import train_digits

Array = NDArray[Any]
SLOPE = 0.1  # of the leaky ReLU where its input is negative


def _leaky_relu(z: Array, scratch: Array) -> None:
    np.multiply(z, SLOPE, out=scratch)
    np.maximum(z, scratch, out=z)


def _softsign(z: Array, scratch: Array) -> None:
    np.abs(z, out=scratch)
    scratch += 1
    z /= scratch


def no_gradient(y: Array, dy: Array, out: Array, scratch: Array) -> None:
    """In the place of a gradient, where only the activation is applied."""
    raise RuntimeError("the gradient of this activation is the task `activation`")


SPECIAL = {
    "selu": ACTIVATIONS["selu"],
    "leaky_relu": Activation(_leaky_relu, no_gradient, "he"),
    "softsign": Activation(_softsign, no_gradient, "glorot"),
}
"""The activations that are named ``"special"``; those that the library does not have, without their gradients."""
Inputs = dict[str, Any]


def _filled(shape: tuple[int, ...]) -> Array:
    return np.full(shape, UNWRITTEN)


Prepared = tuple[Callable[[], object], Callable[[], Values]]
"""A call of the student's function, whose arrays are allocated already, and its outputs afterwards."""


def _called(
    function: Function,
    prepare: Callable[[Function, Inputs], Prepared],
    inputs: Values,
    small: Callable[[], Inputs],
) -> Values:
    """The outputs of a call, and what it costs if the case measures that."""
    is_measured = bool(inputs.get(MEASURED))
    function = counted(function) if is_measured else function
    call, outputs = prepare(function, {name: value for name, value in inputs.items() if name != MEASURED})
    with np.errstate(all="ignore"):
        if not is_measured:
            call()
            return outputs()
        cost = measure(prepare(function, small())[0], call)
    return {**outputs(), MEASURED: cost}


def call_differences(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The gradient of a polynomial of third degree, and the number of evaluations."""
    point, slopes, evaluations = inputs["point"], inputs["slopes"], [0]

    def polynomial(at: Array) -> float:
        evaluations[0] += 1
        flat = np.asarray(at, np.float64).reshape(-1)
        neighbours = float(flat[:-1] @ flat[1:]) if flat.size > 1 else 0.0
        return float(slopes @ flat**3) + neighbours

    gradient = np.asarray(function(polynomial, point, inputs["step"]))
    return {"gradient": gradient, "point": point, MEASURED: {"evaluations": evaluations[0]}}


def call_loss(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """Gradient and loss of `cross_entropy`."""

    def prepare(function: Function, given: Inputs) -> Prepared:
        logits, labels = given["logits"], given["labels"]
        gradient, loss = _filled(logits.shape), _filled((1,))
        arguments = (logits, labels, np.arange(len(labels)), given["scale"], gradient, loss)
        return partial(function, *arguments), lambda: {"gradient": gradient, "loss": loss, "logits": logits}

    return _called(function, prepare, inputs, lambda: loss_inputs(4, 5, 9, 0))


def loss_inputs(classes: int, samples: int, minibatch: int, seed: int) -> Inputs:
    """Logits and labels of a minibatch, or of a part of one."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=samples).astype(np.int64)
    return {"logits": random.normal(0, 2, (classes, samples)), "labels": labels, "scale": 1 / minibatch}


def call_activation(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The gradient of an activation."""

    def prepare(function: Function, given: Inputs) -> Prepared:
        y, dy = given["y"], given["dy"]
        out = dy if given["in_place"] else _filled(dy.shape)
        return partial(function, given["name"], y, dy, out, _filled(dy.shape)), lambda: {"out": out, "y": y}

    def small() -> Inputs:
        return activation_inputs(variant, inputs["name"], (4, 5), 0)

    return _called(function, prepare, inputs, small)


def activation_inputs(
    variant: Variant, name: str, shape: tuple[int, int], seed: int, *, in_place: bool = False
) -> Inputs:
    """Outputs of an activation, and the gradient with respect to them."""
    random = np.random.default_rng(seed)
    z = random.normal(0, 1.5, shape)
    z[0, 0] = 0.0
    z[-1, -1] = -0.4
    z[-1, 0] = 0.6
    activation = SPECIAL[variant["activation"]] if name == "special" else ACTIVATIONS[name]
    activation.apply(z, np.empty_like(z))
    return {"name": name, "y": z, "dy": random.normal(size=shape), "in_place": in_place}


def call_forward(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The outputs of a layer, with its weights and inputs, which must not change."""

    def prepare(function: Function, given: Inputs) -> Prepared:
        weight, bias, x, y = given["weight"], given["bias"], given["x"], _filled(given["dy"].shape)
        arguments = (weight, bias, x, ACTIVATIONS[given["activation"]], y, _filled(y.shape))
        return partial(function, *arguments), lambda: {"y": y, "weight": weight, "bias": bias, "x": x}

    return _called(function, prepare, inputs, lambda: dense_inputs(variant, (4, 3, 5), "tanh", 0))


def dense_inputs(variant: Variant, shape: tuple[int, int, int], activation: str, seed: int) -> Inputs:
    """Arrays of a layer for outputs, inputs and samples of `shape`, arranged as the variant says."""
    outputs, inputs, samples = shape
    random = np.random.default_rng(seed)
    weight, bias = random.normal(0, inputs**-0.5, (outputs, inputs)), random.normal(size=outputs)
    x, dy = random.normal(size=(inputs, samples)), random.normal(size=(outputs, samples))
    y = weight @ x + bias[:, None]
    ACTIVATIONS[activation].apply(y, np.empty_like(y))
    arrays = {"x": x, "y": y, "dy": dy}
    if variant["samples"] == "rows":
        arrays = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
    return {"weight": weight, "bias": bias, "activation": activation, **arrays}


def call_backward(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The gradients of a layer, with its weights, inputs and outputs, which must not change."""

    def prepare(function: Function, given: Inputs) -> Prepared:
        weight, x, y, dy = (given[name] for name in ("weight", "x", "y", "dy"))
        dz = dy if given.get("in_place") else _filled(dy.shape)
        dx = None if given.get("first") else _filled(x.shape)
        dw, db = _filled(weight.shape), _filled(weight.shape[:1])
        activation, scratch = ACTIVATIONS[given["activation"]], _filled(y.shape)
        found = {"dz": dz, "weight_gradient": dw, "bias_gradient": db, "weight": weight, "x": x, "y": y}
        if dx is not None:
            found["dx"] = dx
        return partial(function, weight, x, y, dy, activation, dz, dw, db, dx, scratch), lambda: found

    return _called(function, prepare, inputs, lambda: dense_inputs(variant, (4, 3, 5), "tanh", 0))


def call_update(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The weights after each of several updates, and the velocity."""

    def prepare(function: Function, given: Inputs) -> Prepared:
        settings, weights = SimpleNamespace(**given["settings"]), given["weights"]
        velocity = np.zeros_like(weights) if settings.momentum else None
        scratch = _filled((min(UPDATE_BLOCK, weights.size),))
        steps = list(zip(given["rates"], given["gradients"], strict=True))
        versions = [weights] + [weights if given["in_place"] else _filled(weights.shape) for _ in steps]
        after: list[Array] = []

        def update() -> None:
            for (lr, gradient), old, new in zip(steps, versions, versions[1:], strict=False):
                function(old, gradient, velocity, new, scratch, settings, (lr,))
                if given["in_place"]:
                    after.append(new.copy())

        found: dict[str, Any] = {"weights": after if given["in_place"] else versions}
        found["gradients"] = given["gradients"]
        return update, lambda: found if velocity is None else {**found, "velocity": velocity}

    return _called(function, prepare, inputs, lambda: update_inputs(5, 2, inputs["settings"], 0))


def update_inputs(weights: int, steps: int, settings: Values, seed: int, *, in_place: bool = False) -> Inputs:
    """Weights, and the gradients of several steps."""
    random = np.random.default_rng(seed)
    return {
        "weights": random.normal(size=weights),
        "gradients": [random.normal(size=weights) for _ in range(steps)],
        "rates": [0.5 * 0.4**step for step in range(steps)],
        "settings": dict(settings),
        "in_place": in_place,
    }


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


def run_loss(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array) -> None:
        function(logits, labels, columns, scale, gradient, loss)
        if variant["loss"] == "mean":
            loss /= scale

    with _in_kernels("cross_entropy", adapted):
        return train_digits()


@contextlib.contextmanager
def _in_activations(function: Function, variant: Variant) -> Iterator[None]:
    """Replace the gradients of the library's activations, of which the chosen one is named ``"special"``."""

    def with_gradient(name: str, activation: Activation) -> Activation:
        def gradient(y: Array, dy: Array, out: Array, scratch: Array) -> None:
            function(name, y, dy, out, scratch)

        return replace(activation, gradient=gradient)

    before = dict(ACTIVATIONS)
    table = {**before, "special": SPECIAL[variant["activation"]]}
    ACTIVATIONS.update({name: with_gradient(name, table[name]) for name in NAMES})
    try:
        yield
    finally:
        ACTIVATIONS.clear()
        ACTIVATIONS.update(before)


def run_activation(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    found: dict[str, Any] = {}
    with _in_activations(function, variant):
        for name in NAMES:
            trained = train_digits(sizes=(64, 16, 16, 10), epochs=1, network={"activation": name})
            found |= {f"{name}: {key}": value for key, value in trained.items()}
    return found


def _arranged(variant: Variant, array: Array) -> Array:
    """A view of an array of the library, whose samples are columns, as the variant arranges them."""
    return array if variant["samples"] == "columns" else array.T


def run_forward(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def forward(layer: Any, p: LayerParameters, s: LayerArrays) -> None:
        x, y = _arranged(variant, s.x), _arranged(variant, s.activation)
        function(p.weight, p.bias, x, ACTIVATIONS[layer._activation], y, np.empty_like(y))

    with injected(f"{LAYER}.forward", forward, USERS):
        return train_digits()


def run_backward(function: Function, variant: Variant) -> Values:
    """The training with the function."""
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
        return train_with(DECAYING)


def train_with(optimizer: SGD) -> Values:
    """A training whose rate changes after the first epoch."""
    return train_digits(optimizer=optimizer, schedule=Step((1,), 0.3))


def train_update() -> Values:
    """Trainings with dampening, and with Nesterov's momentum."""
    found: dict[str, Any] = {}
    for name, optimizer in (("dampening", DECAYING), ("nesterov", NESTEROV)):
        found |= {f"{name}: {key}": value for key, value in train_with(optimizer).items()}
    return found


def run_update(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    with _in_kernels("sgd_update", function):
        return train_update()
