"""Cases of A1, and the calls of the student's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import UPDATE_BLOCK
from hybridnn_course.answers import MEASURED, Answer, Values
from hybridnn_course.assignment import Bound, Case, Function, Variant
from hybridnn_course.assignments.a1_dense.solution import Array, special_activation
from hybridnn_course.measuring import measure, measured_bounds

OLD = -7.5  # what arrays hold that the function has to fill
STEP = 2.0**-10  # of differences; with points of few binary digits, no rounding in float32

LARGE = (130, 1024)  # rows and columns of arrays of a little more than 1 MiB
LARGE_WEIGHTS = UPDATE_BLOCK + 100  # two blocks

Inputs = dict[str, Any]


def _filled(shape: tuple[int, ...]) -> Array:
    return np.full(shape, OLD)


def _seed(random: Random) -> int:
    return random.randrange(10**6)


Prepared = tuple[Callable[[], object], Callable[[], Values]]
"""A call of the student's function, whose arrays are allocated already, and its outputs afterwards."""


def _called(prepare: Callable[[Inputs], Prepared], inputs: Values, small: Callable[[], Inputs]) -> Values:
    """The outputs of a call, and what it costs if the case measures that."""
    call, outputs = prepare({name: value for name, value in inputs.items() if name != MEASURED})
    with np.errstate(all="ignore"):
        if not inputs.get(MEASURED):
            call()
            return outputs()
        cost = measure(prepare(small())[0], call)
    return {**outputs(), MEASURED: cost}


def cost_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """No loops over elements and no large temporary arrays, in the cases that measure them."""
    return measured_bounds(answer)


# -- differences ------------------------------------------------------------------------------------------------------


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


def differences_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Two evaluations for an element."""
    measured = answer.outputs[0].get(MEASURED)
    count = measured.get("evaluations") if isinstance(measured, dict) else None
    least = 2 * case.inputs[0]["point"].size
    return [Bound("evaluations", count if isinstance(count, int) else 2 * least, least, 1.5 * least)]


def _differences_case(shape: tuple[int, ...], dtype: str, seed: int) -> Case:
    random = np.random.default_rng(seed)
    point = random.integers(-8, 9, shape) / 4
    slopes = random.integers(1, 9, point.size) / 2
    name = f"{dtype}, shape {shape}"
    return Case(name, ({"point": point.astype(dtype), "slopes": slopes, "step": STEP},))


def public_differences(variant: Variant) -> Sequence[Case]:
    """A vector, a matrix and a matrix of float32."""
    return [
        _differences_case((4,), "float64", 1),
        _differences_case((2, 3), "float64", 2),
        _differences_case((3, 2), "float32", 3),
    ]


def hidden_differences(random: Random, variant: Variant, number: int) -> Case:
    """Shapes of one to three axes, of both types."""
    shape = tuple(random.randint(2, 5) for _ in range(number % 3 + 1))
    return _differences_case(shape, "float32" if number % 2 else "float64", _seed(random))


# -- loss -------------------------------------------------------------------------------------------------------------


def call_loss(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """Gradient and loss of `cross_entropy`."""

    def prepare(given: Inputs) -> Prepared:
        logits, labels = given["logits"], given["labels"]
        gradient, loss = _filled(logits.shape), _filled((1,))
        arguments = (logits, labels, np.arange(len(labels)), given["scale"], gradient, loss)
        return partial(function, *arguments), lambda: {"gradient": gradient, "loss": loss, "logits": logits}

    return _called(prepare, inputs, lambda: _loss_inputs(4, 5, 9, 0))


def _loss_inputs(classes: int, samples: int, minibatch: int, seed: int) -> Inputs:
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=samples).astype(np.int64)
    return {"logits": random.normal(0, 2, (classes, samples)), "labels": labels, "scale": 1 / minibatch}


def _extreme_loss(classes: int, seed: int) -> Case:
    """Logits of 1000 and -1000, and a label whose probability is rounded to 0."""
    inputs = _loss_inputs(classes, 4, 5, seed)
    logits, labels = inputs["logits"], inputs["labels"]
    logits[:, 0] += 1000
    logits[:, 1] -= 1000
    logits[labels[2], 2] -= 800
    return Case("4 samples, logits from -1000 to 1000", (inputs,))


def _loss_case(classes: int, samples: int, minibatch: int, seed: int) -> Case:
    counts = f"{samples} of the {minibatch} samples of the minibatch"
    return Case(f"{classes} classes, {counts}", (_loss_inputs(classes, samples, minibatch, seed),))


def _large(name: str, inputs: Inputs) -> Case:
    return Case(name, ({**inputs, MEASURED: True},))


def public_loss(variant: Variant) -> Sequence[Case]:
    """A few samples, extreme logits, large arrays."""
    classes, samples = LARGE
    return [
        _loss_case(3, 2, 5, 1),
        _loss_case(4, 4, 7, 2),
        _extreme_loss(3, 3),
        _large(f"{classes} classes, {samples} samples", _loss_inputs(classes, samples, samples + 9, 4)),
    ]


def hidden_loss(random: Random, variant: Variant, number: int) -> Case:
    """No sample, extreme logits, large arrays, and others."""
    if number == 0:
        return _loss_case(random.randint(2, 5), 0, 7, 1)
    if number == 1:
        return _extreme_loss(random.randint(3, 6), _seed(random))
    if number == 2:
        rows, columns = LARGE[0] + random.randint(0, 9), LARGE[1] + random.randint(0, 99)
        return _large("large arrays", _loss_inputs(rows, columns, 3 * columns, _seed(random)))
    samples = random.randint(2, 9)
    return _loss_case(random.randint(3, 9), samples, samples + random.randint(1, 30), _seed(random))


# -- activation -------------------------------------------------------------------------------------------------------


def call_activation(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The gradient of an activation."""

    def prepare(given: Inputs) -> Prepared:
        y, dy = given["y"], given["dy"]
        out = dy if given["in_place"] else _filled(dy.shape)
        return partial(function, given["name"], y, dy, out, _filled(dy.shape)), lambda: {"out": out, "y": y}

    def small() -> Inputs:
        return _activation_inputs(variant, inputs["name"], (4, 5), 0)

    return _called(prepare, inputs, small)


def _activation_inputs(
    variant: Variant, name: str, shape: tuple[int, int], seed: int, *, in_place: bool = False
) -> Inputs:
    random = np.random.default_rng(seed)
    z = random.normal(0, 1.5, shape)
    z[0, 0] = 0.0
    z[-1, -1] = -0.4
    z[-1, 0] = 0.6
    activation = special_activation(variant) if name == "special" else ACTIVATIONS[name]
    activation.apply(z, np.empty_like(z))
    return {"name": name, "y": z, "dy": random.normal(size=shape), "in_place": in_place}


def _activation_case(variant: Variant, name: str, shape: tuple[int, int], seed: int, *, in_place: bool = False) -> Case:
    inputs = _activation_inputs(variant, name, shape, seed, in_place=in_place)
    return Case(f"{name}, {'`out` is `dy`' if in_place else 'three arrays'}", (inputs,))


def public_activation(variant: Variant) -> Sequence[Case]:
    """Each activation once."""
    return [
        _activation_case(variant, "relu", (3, 4), 1),
        _activation_case(variant, "tanh", (2, 3), 2, in_place=True),
        _activation_case(variant, "sigmoid", (3, 2), 3),
        _activation_case(variant, "special", (4, 3), 4),
        _large("special, large arrays", _activation_inputs(variant, "special", LARGE, 5)),
    ]


def hidden_activation(random: Random, variant: Variant, number: int) -> Case:
    """Each activation, in place or not, and large arrays."""
    shape, seed = (random.randint(2, 6), random.randint(2, 6)), _seed(random)
    if number == 4:
        wide = (LARGE[0] + shape[0], LARGE[1] + shape[1])
        return _large("relu, large arrays", _activation_inputs(variant, "relu", wide, seed))
    name = ("tanh", "relu", "sigmoid", "special", "", "identity")[number]
    return _activation_case(variant, name, shape, seed, in_place=number % 2 == 1)


# -- forward ----------------------------------------------------------------------------------------------------------


def call_forward(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The outputs of a layer, with its weights and inputs, which must not change."""

    def prepare(given: Inputs) -> Prepared:
        weight, bias, x, y = given["weight"], given["bias"], given["x"], _filled(given["dy"].shape)
        arguments = (weight, bias, x, ACTIVATIONS[given["activation"]], y, _filled(y.shape))
        return partial(function, *arguments), lambda: {"y": y, "weight": weight, "bias": bias, "x": x}

    return _called(prepare, inputs, lambda: _dense_inputs(variant, (4, 3, 5), "tanh", 0))


def _dense_inputs(variant: Variant, shape: tuple[int, int, int], activation: str, seed: int) -> Inputs:
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


def _dense_name(shape: tuple[int, int, int], activation: str) -> str:
    outputs, inputs, samples = shape
    return f"{inputs} inputs, {outputs} outputs, {samples} sample{'s' if samples != 1 else ''}, {activation}"


def _forward_case(variant: Variant, shape: tuple[int, int, int], activation: str, seed: int) -> Case:
    return Case(_dense_name(shape, activation), (_dense_inputs(variant, shape, activation, seed),))


def _large_layer(variant: Variant, more: int, seed: int) -> Case:
    shape = (LARGE[0] + more, LARGE[0] + 2, LARGE[1])
    return _large(_dense_name(shape, "relu"), _dense_inputs(variant, shape, "relu", seed))


def public_forward(variant: Variant) -> Sequence[Case]:
    """As many samples as outputs, as many inputs as outputs, large arrays."""
    return [
        _forward_case(variant, (3, 4, 3), "tanh", 1),
        _forward_case(variant, (3, 3, 2), "relu", 2),
        _large_layer(variant, 0, 3),
    ]


def hidden_forward(random: Random, variant: Variant, number: int) -> Case:
    """One sample, no sample, equal sizes, large arrays."""
    one, other = random.randint(2, 5), random.randint(6, 9)
    if number == 0:
        return _large_layer(variant, one, _seed(random))
    shapes = ((one, other, 1), (other, one, 0), (one, other, one), (one, one, other), (other, one, other))
    name = random.choice(("relu", "tanh", "sigmoid"))
    return _forward_case(variant, shapes[number - 1], name, _seed(random))


# -- backward ---------------------------------------------------------------------------------------------------------


def call_backward(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The gradients of a layer, with its weights, inputs and outputs, which must not change."""

    def prepare(given: Inputs) -> Prepared:
        weight, x, y, dy = (given[name] for name in ("weight", "x", "y", "dy"))
        dz = dy if given.get("in_place") else _filled(dy.shape)
        dx = None if given.get("first") else _filled(x.shape)
        dw, db = _filled(weight.shape), _filled(weight.shape[:1])
        activation, scratch = ACTIVATIONS[given["activation"]], _filled(y.shape)
        found = {"dz": dz, "weight_gradient": dw, "bias_gradient": db, "weight": weight, "x": x, "y": y}
        if dx is not None:
            found["dx"] = dx
        return partial(function, weight, x, y, dy, activation, dz, dw, db, dx, scratch), lambda: found

    return _called(prepare, inputs, lambda: _dense_inputs(variant, (4, 3, 5), "tanh", 0))


def _backward_case(
    variant: Variant, shape: tuple[int, int, int], activation: str, seed: int, *, in_place: bool, first: bool
) -> Case:
    inputs = _dense_inputs(variant, shape, activation, seed)
    name = _dense_name(shape, activation) + ("; `dz` is `dy`" if in_place else "") + ("; no `dx`" if first else "")
    return Case(name, ({**inputs, "in_place": in_place, "first": first},))


def public_backward(variant: Variant) -> Sequence[Case]:
    """A narrower layer, a square one in place, the first layer, large arrays."""
    return [
        _backward_case(variant, (3, 4, 2), "tanh", 1, in_place=False, first=False),
        _backward_case(variant, (3, 3, 5), "relu", 2, in_place=True, first=False),
        _backward_case(variant, (2, 5, 3), "sigmoid", 3, in_place=False, first=True),
        _large_layer(variant, 0, 4),
    ]


def hidden_backward(random: Random, variant: Variant, number: int) -> Case:
    """One sample, no sample, equal sizes, in place, the first layer, large arrays."""
    one, other = random.randint(2, 5), random.randint(6, 9)
    if number == 0:
        return _large_layer(variant, one, _seed(random))
    shapes = ((one, other, 1), (other, one, 0), (one, other, one + 1), (one, one, other), (other, one, other))
    name = ("tanh", "relu", "sigmoid", "tanh", "relu")[number - 1]
    return _backward_case(variant, shapes[number - 1], name, _seed(random), in_place=number % 2 == 1, first=number == 5)


# -- update -----------------------------------------------------------------------------------------------------------


def call_update(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The weights after each of several updates, and the velocity."""

    def prepare(given: Inputs) -> Prepared:
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

    return _called(prepare, inputs, lambda: _update_inputs(5, 2, inputs["settings"], 0))


def _update_inputs(weights: int, steps: int, settings: Values, seed: int, *, in_place: bool = False) -> Inputs:
    random = np.random.default_rng(seed)
    return {
        "weights": random.normal(size=weights),
        "gradients": [random.normal(size=weights) for _ in range(steps)],
        "rates": [0.5 * 0.4**step for step in range(steps)],
        "settings": dict(settings),
        "in_place": in_place,
    }


def _settings(momentum: float, dampening: float = 0.0, weight_decay: float = 0.0, *, nesterov: bool = False) -> Values:
    return {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay}


def _update_case(weights: int, steps: int, settings: Values, seed: int, *, in_place: bool = False) -> Case:
    words = [f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items() if value and name != "nesterov"]
    words += ["nesterov"] * settings["nesterov"] + ["in place"] * in_place
    name = f"{weights} weights, {steps} step{'s' if steps != 1 else ''}; {', '.join(words) or 'no momentum'}"
    return Case(name, (_update_inputs(weights, steps, settings, seed, in_place=in_place),))


def _large_update(weights: int, settings: Values, seed: int) -> Case:
    return _large(f"{weights:,} weights", _update_inputs(weights, 2, settings, seed))


def public_update(variant: Variant) -> Sequence[Case]:
    """No momentum; momentum with dampening and decay; Nesterov; more weights than a block."""
    return [
        _update_case(4, 1, _settings(0.0), 1),
        _update_case(5, 3, _settings(0.9, 0.25, 0.1), 2),
        _update_case(3, 3, _settings(0.8, weight_decay=0.05, nesterov=True), 3, in_place=True),
        _large_update(LARGE_WEIGHTS, _settings(0.9, weight_decay=0.1), 4),
    ]


def hidden_update(random: Random, variant: Variant, number: int) -> Case:
    """All settings, in place or not, and more weights than a block."""
    size, seed, momentum = random.randint(2, 30), _seed(random), random.choice((0.5, 0.75, 0.9))
    decay = random.choice((0.02, 0.05, 0.1))
    if number == 0:
        return _large_update(LARGE_WEIGHTS + size, _settings(momentum, 0.3, decay), seed)
    settings = (
        _settings(0.0, weight_decay=decay),
        _settings(momentum, 0.3),
        _settings(momentum, 0.2, decay),
        _settings(momentum, weight_decay=decay, nesterov=True),
        _settings(momentum, nesterov=True),
    )[number - 1]
    return _update_case(size, 3, settings, seed, in_place=number % 2 == 0)
