"""Calls of every kernel with arrays of small and odd sizes, to be compared between two devices.

A case is a function of a random generator, a dtype and a size. It returns the call, as a function of kernels and
arrays, and the host arrays by name. The array named scratch is not compared.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn import SGD, Adam, AdamW, NAdam, PipeMareSGD, RMSprop, SpikeSGD
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import NUMPY, Kernels
from hybridnn.nn.optimizers import Optimizer, OptimizerState

Array = NDArray[Any]
Arrays = dict[str, Any]
Call = Callable[..., None]
Case = Callable[[np.random.Generator, Any, Any], tuple[Call, Arrays]]
Upload = Callable[[Array], Any]

TOLERANCES = {"float32": 1e-5, "float64": 1e-12}
"""Relative to the largest element of an array."""
FLAT_SIZES = (0, 1, 31, 33, 1000, 5003)
SHAPES = ((1, 1), (3, 0), (1, 1000), (7, 33), (33, 31), (10, 128), (5, 100), (260, 4), (2, 3001))


def compare(case: Case, kernels: Kernels, upload: Upload, dtype: str, size: Any) -> None:
    """Run the call with NumPy and with `kernels`, and compare all arrays."""
    call, arrays = case(np.random.default_rng([7, len(str(size))]), np.dtype(dtype), size)
    expected = {name: array.copy(order="K") for name, array in arrays.items()}
    found = {name: upload(array) for name, array in arrays.items()}
    call(NUMPY, **expected)
    call(kernels, **found)
    for name, array in expected.items():
        if name != "scratch":
            largest = np.max(np.abs(array), initial=0)
            error = {"rtol": 0, "atol": TOLERANCES[dtype] * largest, "err_msg": f"{name} of {size}"}
            np.testing.assert_allclose(kernels.to_host(found[name]), array, **error)


def normal(random: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return random.standard_normal(shape).astype(dtype)


def positive_mean(random: np.random.Generator, dtype: Any, *shape: int) -> Array:
    """Elements without cancellation in their sum, so that its relative error is small."""
    return random.uniform(-0.5, 1.5, shape).astype(dtype)


def activate(name: str, random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    z = 3 * normal(random, dtype, n)
    return lambda k, z, scratch: k.activate(name, z, scratch), {"z": z, "scratch": z.copy()}


def bias_activate(name: str, random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    z, bias = normal(random, dtype, *shape), normal(random, dtype, shape[0], 1)
    call = lambda k, z, bias, scratch: k.bias_activate(name, z, bias, scratch)  # noqa: E731
    return call, {"z": z, "bias": bias, "scratch": z.copy()}


def add_bias(random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    arrays = {"z": normal(random, dtype, *shape), "bias": normal(random, dtype, shape[0], 1)}
    return lambda k, z, bias: k.add_bias(z, bias), arrays


def gradient(name: str, random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    y, dy = normal(random, dtype, n), normal(random, dtype, n)

    def call(k: Kernels, y: Any, dy: Any, out: Any, scratch: Any) -> None:
        k.gradient_of_activation(name, y, dy, out, scratch)
        k.gradient_of_activation(name, y, dy, dy, scratch)

    return call, {"y": y, "dy": dy, "out": np.zeros_like(dy), "scratch": y.copy()}


def gradient_sums(name: str, random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    y, dy = positive_mean(random, dtype, *shape), positive_mean(random, dtype, *shape)

    def call(k: Kernels, y: Any, dy: Any, out: Any, sums: Any, in_place: Any, scratch: Any, ones: Any) -> None:
        k.gradient_and_row_sums(name, y, dy, out, sums, scratch, ones)
        k.gradient_and_row_sums(name, y, dy, dy, in_place, scratch, ones)

    sums, ones = np.zeros(shape[0], dtype), np.ones(shape[1], dtype)
    more = {"out": np.zeros_like(dy), "sums": sums, "in_place": sums.copy(), "scratch": y.copy(), "ones": ones}
    return call, {"y": y, "dy": dy, **more}


def row_sums(random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    arrays = {
        "dz": positive_mean(random, dtype, *shape),
        "ones": np.ones(shape[1], dtype),
        "out": np.full(shape[0], np.nan, dtype),
    }

    def call(k: Kernels, dz: Any, ones: Any, out: Any) -> None:
        k.row_sums(dz, ones, out)

    return call, arrays


def mean_squared_error(random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    outputs, by_sample = normal(random, dtype, *shape), normal(random, dtype, *shape[::-1])

    def call(k: Kernels, outputs: Any, targets: Any, by_sample: Any, first: Any, second: Any, losses: Any) -> None:
        k.mean_squared_error(outputs, targets, 0.02, first, losses[:1])
        k.mean_squared_error(outputs, by_sample.T, 0.02, second, losses[1:])

    room = {"first": np.zeros_like(outputs), "second": np.zeros_like(outputs), "losses": np.ones(2, dtype)}
    return call, {"outputs": outputs, "targets": normal(random, dtype, *shape), "by_sample": by_sample, **room}


def cross_entropy(random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    logits = 4 * normal(random, dtype, *shape)
    labels, columns = random.integers(0, shape[0], shape[1]), np.arange(shape[1])

    def call(k: Kernels, logits: Any, labels: Any, columns: Any, gradient: Any, loss: Any) -> None:
        k.cross_entropy(logits, labels, columns, 0.02, gradient, loss)

    room = {"gradient": np.zeros_like(logits), "loss": np.ones(1, dtype)}
    return call, {"logits": logits, "labels": labels, "columns": columns, **room}


def add(random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    def call(k: Kernels, a: Any, b: Any, out: Any) -> None:
        k.add(a, b, out)
        k.add(a, out, a)

    return call, {"a": normal(random, dtype, n), "b": normal(random, dtype, n), "out": np.zeros(n, dtype)}


def norm_and_clip(random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    def call(k: Kernels, flat: Any, other: Any, norm: Any, same: Any) -> None:
        k.squared_norm_into(flat, norm)
        k.clip_to_norm(flat, norm, 0.1)
        k.clip_to_norm(other, norm, 1e6)
        k.squared_norm_into(flat, same)

    flat = normal(random, dtype, n)
    return call, {"flat": flat, "other": flat.copy(), "norm": np.ones(1), "same": np.ones(1)}


def squared_norms(random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    def call(k: Kernels, flat: Any, norms: Any) -> None:
        ends = (n // 3, n // 3, n // 3 + n // 7, n)  # parts of no element, and none of them aligned
        norms[...] = k.to_device(k.squared_norms(flat, ends))

    return call, {"flat": normal(random, dtype, n), "norms": np.zeros(4)}


def count_correct(random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    logits = random.integers(-2, 3, shape).astype(dtype)  # with ties
    labels = logits.argmax(axis=0) if logits.size else np.zeros(shape[1], np.int64)
    labels[::3] = random.integers(0, shape[0], len(labels[::3]))
    call = lambda k, logits, labels, correct: k.count_correct(logits, labels, correct)  # noqa: E731
    return call, {"logits": np.ascontiguousarray(logits), "labels": labels, "correct": np.ones(1)}


def gather_rows(random: np.random.Generator, dtype: Any, shape: tuple[int, int]) -> tuple[Call, Arrays]:
    samples, n = 40, shape[1]

    def call(k: Kernels, source: Any, labels: Any, index: Any, rows: Any, wanted: Any) -> None:
        k.gather_rows(source, index, rows)
        k.gather_rows(labels, index, wanted)

    sources = {"source": normal(random, dtype, samples, shape[0]), "labels": random.integers(0, 9, samples)}
    room = {"rows": np.zeros((n, shape[0]), dtype), "wanted": np.zeros(n, np.int64)}
    return call, {**sources, "index": random.integers(0, samples, n), **room}


UPDATES = {
    "sgd plain": SGD(momentum=0.0),
    "sgd decay": SGD(momentum=0.0, weight_decay=0.05),
    "sgd momentum": SGD(momentum=0.9),
    "sgd dampened": SGD(momentum=0.8, dampening=0.3, weight_decay=0.01),
    "sgd nesterov": SGD(momentum=0.7, nesterov=True, weight_decay=0.02),
    "adam adam": Adam(),
    "adam coupled": Adam(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adam adamw": AdamW(weight_decay=0.2),
    "rmsprop": RMSprop(alpha=0.8, eps=1e-6),
    "nadam": NAdam(betas=(0.9, 0.95), weight_decay=0.2),
    "spike": SpikeSGD(momentum=0.8),
    "pipemare": PipeMareSGD(annealing_updates=9),
}


def update(optimizer: Optimizer, random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    """Two updates in place and one into another array; the second moment must not be negative."""

    def call(k: Kernels, weights: Any, gradient: Any, out: Any, scratch: Any, **slots: Any) -> None:
        state = OptimizerState(slots, scratch, kernels=k, delay=2)
        for lr in (0.1, 0.05):
            optimizer.update(weights, gradient, state, lr)
        optimizer.update(weights, gradient, state, 0.2, out)

    arrays = {"weights": normal(random, dtype, n), "gradient": normal(random, dtype, n), "out": np.zeros(n, dtype)}
    slots = {name: np.abs(normal(random, dtype, n)) for name in optimizer.slot_names}
    return call, {**arrays, "scratch": np.zeros(2 * max(n, 1), dtype), **slots}


def predictions(random: np.random.Generator, dtype: Any, n: int) -> tuple[Call, Arrays]:
    def call(k: Kernels, weights: Any, first: Any, second: Any, sgd: Any, adam: Any) -> None:
        k.sgd_prediction(weights, first, sgd, 0.3)
        k.adam_prediction(weights, first, second, adam, 1e-8, (0.3, 0.7))

    arrays = {"weights": normal(random, dtype, n), "first": normal(random, dtype, n)}
    outputs = {"sgd": np.zeros(n, dtype), "adam": np.zeros(n, dtype)}
    return call, {**arrays, "second": 0.1 + normal(random, dtype, n) ** 2, **outputs}


FLAT_CASES: dict[str, Case] = {
    **{f"activate {name}": partial(activate, name) for name in ACTIVATIONS},
    **{f"gradient {name}": partial(gradient, name) for name in ACTIVATIONS},
    **{name: partial(update, optimizer) for name, optimizer in UPDATES.items()},
    "add": add,
    "norm and clip": norm_and_clip,
    "squared norms": squared_norms,
    "predictions": predictions,
}
MATRIX_CASES: dict[str, Case] = {
    **{f"bias {name}": partial(bias_activate, name) for name in ACTIVATIONS},
    **{f"gradient and sums {name}": partial(gradient_sums, name) for name in ACTIVATIONS},
    "add bias": add_bias,
    "row sums": row_sums,
    "mean squared error": mean_squared_error,
    "cross-entropy": cross_entropy,
    "count correct": count_correct,
    "gather": gather_rows,
}
