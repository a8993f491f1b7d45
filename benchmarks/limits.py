"""What the machine can do at most: the rate of matrix products, and memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from benchmarks.cases import Case
from benchmarks.timing import seconds_of
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.parallel.workspace import samples_lie_whole

__all__ = ["copy_bandwidth", "products_of", "update_bytes"]

COPIED = 1 << 26
"""Bytes of the array that is copied: far more than any cache."""

ROUNDS = 7


def products_of(case: Case, kernels: Kernels = NUMPY) -> Callable[[], None]:
    """The matrix products of a timed run and nothing else, on arrays of the same shapes and layouts."""
    rng = np.random.default_rng(0)
    widths, n = case.sizes, case.batch_size
    by_samples = kernels.on_host and samples_lie_whole(n)

    def drawn(*shape: int) -> Array:
        return kernels.to_device(rng.standard_normal(shape, np.float32))

    def empty(width: int) -> Array:
        return kernels.empty((n, width), np.float32).T if by_samples else kernels.empty((width, n), np.float32)

    activations = [
        drawn(n, widths[0]).T,
        *(drawn(n, width).T if by_samples else drawn(width, n) for width in widths[1:]),
    ]
    weights = [drawn(b, a) for a, b in pairwise(widths)]
    weight_gradients = [kernels.empty(weight.shape, np.float32) for weight in weights]
    gradients = [empty(width) for width in widths]

    def run() -> None:
        for _ in range(case.steps):
            for layer, weight in enumerate(weights):
                kernels.matmul(weight, activations[layer], gradients[layer + 1])
            for layer in reversed(range(len(weights))):
                if layer:
                    kernels.matmul_transposed(weights[layer], activations[layer + 1], gradients[layer], None)
                kernels.matmul(activations[layer + 1], activations[layer].T, weight_gradients[layer])

    return run


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy from memory to memory: the best of some rounds."""
    source = np.ones(COPIED, np.uint8)
    target = np.zeros_like(source)
    return 2 * COPIED / min(seconds_of(lambda: np.copyto(target, source)) for _ in range(ROUNDS))


def update_bytes(case: Case) -> int:
    """Bytes that SGD with momentum must move in a step: gradient, velocity and weights in, the last two out."""
    return 5 * 4 * case.parameters
