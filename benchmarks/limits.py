"""What the machine can do at most: the rate of matrix products, and memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.cases import Case
from benchmarks.timing import Run, alternate, seconds_of
from hybridnn.kernels import numpy_kernels
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.numpy_backend import NUMPY, NumpyKernels
from hybridnn.parallel.workspace import samples_are_contiguous

__all__ = ["beside_limits", "copy_bandwidth", "products_in", "products_of", "update_bytes"]

COPIED = 1 << 26
"""Bytes of the array that is copied: far more than any cache."""

ROUNDS = 7


def beside_limits(case: Case, ours: Run, pairs: int, world: Any, *, gradients: int = 1) -> dict[str, float]:
    """How near steps come to what the machine can do with all ranks at work at once; collective.

    Parameters
    ----------
    case : Case
    ours : callable
        Makes one timed run.
    pairs : int
        Runs, each followed by one of its products alone.
    world : MPI.Intracomm
        The ranks that are measured together.
    gradients : int
        As for `update_bytes`.

    Returns
    -------
    dict
        ``products_share``: time of the products alone over that of the steps, the mean of the ranks, so that a rank
        with less to do than another counts as far from the limit. ``update_share``: time that the bytes of the update
        need at the copy bandwidth, over that of the steps. ``gflops``: rate of the products in steps, in 1e9/s, and
        ``copy_bytes_per_second``, both of all ranks together.
    """
    products = products_in(ours)
    turns = alternate(ours, products.run, pairs, world.Barrier)
    seconds = median(turns.ours) / case.steps
    bandwidth = world.allreduce(copy_bandwidth(world.Barrier))
    return {
        "products_share": world.allreduce(median(turns.ratios)) / world.size,
        "update_share": update_bytes(case, 0 if products.are_added else gradients) / bandwidth / seconds,
        "gflops": case.products_flops / seconds / 1e9,
        "copy_bytes_per_second": bandwidth,
    }


class Products(NamedTuple):
    """The matrix products of a run.

    Attributes
    ----------
    run : callable
        Takes them once more, and does nothing else.
    are_added : bool
        Whether those for the weights are added to the velocity, so that there are no gradients.
    """

    run: Run
    are_added: bool


def products_in(run: Run) -> Products:
    """The matrix products of a run and nothing else, on arrays of the same shapes and layouts.

    They are noted while `run` goes, so that they are this rank's own, however a network is cut. They read what the run
    has left, but write elsewhere: numbers that went round would dwindle until they are slow to multiply.
    """
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    rooms: dict[object, Array] = {}

    def elsewhere(written: Any) -> Any:
        if not isinstance(written, np.ndarray):
            return written  # a factor, or nothing
        key = written.ctypes.data, written.shape, written.strides
        if key not in rooms:
            rooms[key] = np.zeros_like(written)
        return rooms[key]

    def noting(multiply: Callable[..., None]) -> Any:
        def note(a: Array, b: Array, *others: Any) -> None:
            multiply(a, b, *others)
            calls.append((multiply, (a, b, *map(elsewhere, others))))

        return note

    names = "matmul", "matmul_transposed"
    notes = {name: staticmethod(noting(getattr(numpy_kernels, name))) for name in names}
    add = numpy_kernels.add_product
    with patch.multiple(NumpyKernels, **notes), patch.object(numpy_kernels, "add_product", noting(add)):
        run()

    def products() -> None:
        for multiply, arguments in calls:
            multiply(*arguments)

    return Products(products, are_added=any(multiply is add for multiply, _ in calls))


def products_of(case: Case, kernels: Kernels = NUMPY) -> Callable[[], None]:
    """The matrix products of a timed run and nothing else, on arrays of the same shapes and layouts."""
    rng = np.random.default_rng(0)
    widths, n = case.sizes, case.batch_size
    by_samples = kernels.on_host and samples_are_contiguous(n)

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


def copy_bandwidth(before: Run = lambda: None) -> float:
    """Bytes read and written per second by a copy from memory to memory: the best of some rounds.

    `before` goes ahead of every round: a barrier, where several ranks copy at once.
    """
    source = np.ones(COPIED, np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(ROUNDS):
        before()
        seconds.append(seconds_of(lambda: np.copyto(target, source)))
    return 2 * COPIED / min(seconds)


def update_bytes(case: Case, gradients: int = 1) -> int:
    """Bytes that SGD with momentum must move in a step, over all ranks.

    The weights and the velocity are read and written, and so many gradients are read: of as many ranks, for ranks that
    sum them as they update. With none the products have written the velocity, which then is only read.
    """
    return (4 + gradients if gradients else 3) * 4 * case.parameters
