"""Cases of A1."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from hybridnn.nn.kernels import UPDATE_BLOCK
from hybridnn_course.answers import MEASURED, Values
from hybridnn_course.assignment import Case, Variant
from hybridnn_course.exercises.a1_dense.calls import Inputs, activation_inputs, dense_inputs, loss_inputs, update_inputs

STEP = 2.0**-10  # of differences; with points of few binary digits, no rounding in float32

LARGE = (130, 1024)  # rows and columns of arrays of a little more than 1 MiB
LARGE_WEIGHTS = UPDATE_BLOCK + 100  # two blocks


def _seed(random: Random) -> int:
    return random.randrange(10**6)


# -- differences ------------------------------------------------------------------------------------------------------


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


def _extreme_loss(classes: int, seed: int) -> Case:
    """Logits of 1000 and -1000, and a label whose probability is rounded to 0."""
    inputs = loss_inputs(classes, 4, 5, seed)
    logits, labels = inputs["logits"], inputs["labels"]
    logits[:, 0] += 1000
    logits[:, 1] -= 1000
    logits[labels[2], 2] -= 800
    return Case("4 samples, logits from -1000 to 1000", (inputs,))


def _loss_case(classes: int, samples: int, minibatch: int, seed: int) -> Case:
    counts = f"{samples} of the {minibatch} samples of the minibatch"
    return Case(f"{classes} classes, {counts}", (loss_inputs(classes, samples, minibatch, seed),))


def _large(name: str, inputs: Inputs) -> Case:
    return Case(name, ({**inputs, MEASURED: True},))


def public_loss(variant: Variant) -> Sequence[Case]:
    """A few samples, extreme logits, large arrays."""
    classes, samples = LARGE
    return [
        _loss_case(3, 2, 5, 1),
        _loss_case(4, 4, 7, 2),
        _extreme_loss(3, 3),
        _large(f"{classes} classes, {samples} samples", loss_inputs(classes, samples, samples + 9, 4)),
    ]


def hidden_loss(random: Random, variant: Variant, number: int) -> Case:
    """No sample, extreme logits, large arrays, and others."""
    if number == 0:
        return _loss_case(random.randint(2, 5), 0, 7, 1)
    if number == 1:
        return _extreme_loss(random.randint(3, 6), _seed(random))
    if number == 2:
        rows, columns = LARGE[0] + random.randint(0, 9), LARGE[1] + random.randint(0, 99)
        return _large("large arrays", loss_inputs(rows, columns, 3 * columns, _seed(random)))
    samples = random.randint(2, 9)
    return _loss_case(random.randint(3, 9), samples, samples + random.randint(1, 30), _seed(random))


# -- activation -------------------------------------------------------------------------------------------------------


def _activation_case(variant: Variant, name: str, shape: tuple[int, int], seed: int, *, in_place: bool = False) -> Case:
    inputs = activation_inputs(variant, name, shape, seed, in_place=in_place)
    return Case(f"{name}, {'`out` is `dy`' if in_place else 'three arrays'}", (inputs,))


def public_activation(variant: Variant) -> Sequence[Case]:
    """Each activation once."""
    return [
        _activation_case(variant, "relu", (3, 4), 1),
        _activation_case(variant, "tanh", (2, 3), 2, in_place=True),
        _activation_case(variant, "sigmoid", (3, 2), 3),
        _activation_case(variant, "special", (4, 3), 4),
        _large("special, large arrays", activation_inputs(variant, "special", LARGE, 5)),
    ]


def hidden_activation(random: Random, variant: Variant, number: int) -> Case:
    """Each activation, in place or not, and large arrays."""
    shape, seed = (random.randint(2, 6), random.randint(2, 6)), _seed(random)
    if number == 4:
        wide = (LARGE[0] + shape[0], LARGE[1] + shape[1])
        return _large("relu, large arrays", activation_inputs(variant, "relu", wide, seed))
    name = ("tanh", "relu", "sigmoid", "special", "", "identity")[number]
    return _activation_case(variant, name, shape, seed, in_place=number % 2 == 1)


# -- forward ----------------------------------------------------------------------------------------------------------


def _dense_name(shape: tuple[int, int, int], activation: str) -> str:
    outputs, inputs, samples = shape
    return f"{inputs} inputs, {outputs} outputs, {samples} sample{'s' if samples != 1 else ''}, {activation}"


def _forward_case(variant: Variant, shape: tuple[int, int, int], activation: str, seed: int) -> Case:
    return Case(_dense_name(shape, activation), (dense_inputs(variant, shape, activation, seed),))


def _large_layer(variant: Variant, more: int, seed: int) -> Case:
    shape = (LARGE[0] + more, LARGE[0] + 2, LARGE[1])
    return _large(_dense_name(shape, "relu"), dense_inputs(variant, shape, "relu", seed))


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


def _backward_case(
    variant: Variant, shape: tuple[int, int, int], activation: str, seed: int, *, in_place: bool, first: bool
) -> Case:
    inputs = dense_inputs(variant, shape, activation, seed)
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


def _settings(momentum: float, dampening: float = 0.0, weight_decay: float = 0.0, *, nesterov: bool = False) -> Values:
    return {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay}


def _update_case(weights: int, steps: int, settings: Values, seed: int, *, in_place: bool = False) -> Case:
    words = [f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items() if value and name != "nesterov"]
    words += ["nesterov"] * settings["nesterov"] + ["in place"] * in_place
    name = f"{weights} weights, {steps} step{'s' if steps != 1 else ''}; {', '.join(words) or 'no momentum'}"
    return Case(name, (update_inputs(weights, steps, settings, seed, in_place=in_place),))


def _large_update(weights: int, settings: Values, seed: int) -> Case:
    return _large(f"{weights:,} weights", update_inputs(weights, 2, settings, seed))


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
