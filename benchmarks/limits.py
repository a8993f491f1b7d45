"""Limits of the machine: the rate of matrix products, and the memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.cases import Case
from benchmarks.harness import Run, alternate, seconds_of
from hybridnn.nn.kernels import NUMPY, Array, Kernels
from hybridnn.parallel.workspace import NARROW

COPIED = 1 << 26
"""Bytes of the copied array, far more than any cache."""

ROUNDS = 7


def compare_with_limits(case: Case, ours: Run, pairs: int, world: Any, *, gradients: int = 1) -> dict[str, float]:
    """Compare steps with the limits of the machine while all ranks compute; collective.

    Parameters
    ----------
    ours : callable
        Makes one timed run.
    pairs : int
        Runs, each followed by a run of its products alone.
    world : MPI.Intracomm
        Communicator of the measured ranks.
    gradients : int
        See `update_bytes`.

    Returns
    -------
    dict
        ``products_share``: time of the products alone over that of the steps, the mean over the ranks, which is low if
        a rank waits for another. ``update_share``: time of the bytes of the update at the copy bandwidth, over that of
        the steps. ``gflops``: rate of the products in steps, in 1e9/s. ``copy_bytes_per_second``: bandwidth. The last
        two are those of all ranks together.
    """
    products = products_in(ours)
    turns = alternate(ours, products, pairs, world.Barrier)
    seconds = median(turns.ours) / case.steps
    bandwidth = world.allreduce(copy_bandwidth(world.Barrier))
    return {
        "products_share": world.allreduce(median(turns.ratios)) / world.size,
        "update_share": update_bytes(case, gradients) / bandwidth / seconds,
        "gflops": case.products_flops / seconds / 1e9,
        "copy_bytes_per_second": bandwidth,
    }


def products_in(run: Run) -> Run:
    """The matrix products of a run alone, on arrays of the same shapes and layouts.

    They are recorded during `run`, so that they are those of this rank for any split. They read the arrays of the run
    and write to separate ones, because repeated products would make elements denormal, which are slow.
    """
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    outputs: dict[object, Array] = {}

    def replacement(written: Any) -> Any:
        if not isinstance(written, np.ndarray):
            return written  # a factor or None
        key = written.ctypes.data, written.shape, written.strides
        if key not in outputs:
            outputs[key] = np.zeros_like(written)
        return outputs[key]

    def recording(multiply: Callable[..., None]) -> Any:
        def record(a: Array, b: Array, *others: Any) -> None:
            multiply(a, b, *others)
            calls.append((multiply, (a, b, *map(replacement, others))))

        return record

    names = "matmul", "matmul_transposed"
    recorders = {name: staticmethod(recording(getattr(NUMPY, name))) for name in names}
    with patch.multiple(Kernels, **recorders):
        run()

    def products() -> None:
        for multiply, arguments in calls:
            multiply(*arguments)

    return products


def products_of(case: Case, kernels: Kernels = NUMPY) -> Callable[[], None]:
    """The matrix products of a timed run alone, on arrays of the same shapes and layouts."""
    rng = np.random.default_rng(0)
    widths, n = case.sizes, case.batch_size

    def drawn(*shape: int) -> Array:
        return kernels.to_device(rng.standard_normal(shape, np.float32))

    def empty(width: int) -> Array:
        return kernels.empty((width, n), np.float32)

    activations = [drawn(n, widths[0]).T, *(drawn(width, n) for width in widths[1:])]
    weights = [drawn(b, a) for a, b in pairwise(widths)]
    weight_gradients = [kernels.empty(weight.shape, np.float32) for weight in weights]
    gradients = [empty(width) for width in widths]
    transposed = [empty(width).reshape(n, width) if kernels.on_host and n <= NARROW else None for width in widths]

    def run() -> None:
        for _ in range(case.steps):
            for layer, weight in enumerate(weights):
                kernels.matmul(weight, activations[layer], gradients[layer + 1])
            for layer in reversed(range(len(weights))):
                if layer:
                    kernels.matmul_transposed(
                        weights[layer], activations[layer + 1], gradients[layer], transposed[layer]
                    )
                kernels.matmul(activations[layer + 1], activations[layer].T, weight_gradients[layer])

    return run


def torch_products_of(case: Case, device: str) -> Callable[[], None]:
    """The same products in PyTorch, which calls cuBLAS too."""
    import torch

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, device=device)

    widths, n = case.sizes, case.batch_size
    activations, gradients = ([drawn(n, width) for width in widths] for _ in range(2))
    weights, weight_gradients = ([drawn(b, a) for a, b in pairwise(widths)] for _ in range(2))

    def run() -> None:
        for _ in range(case.steps):
            for layer, weight in enumerate(weights):
                torch.matmul(activations[layer], weight.T, out=gradients[layer + 1])
            for layer in reversed(range(len(weights))):
                if layer:
                    torch.matmul(activations[layer + 1], weights[layer], out=gradients[layer])
                torch.matmul(activations[layer + 1].T, activations[layer], out=weight_gradients[layer])

    return run


def copy_bandwidth(before: Run = lambda: None) -> float:
    """Bytes read and written per second by a copy in memory, the best of several rounds.

    `before` is called before every round, for example a barrier.
    """
    source = np.ones(COPIED, np.uint8)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(ROUNDS):
        before()
        seconds.append(seconds_of(lambda: np.copyto(target, source)))
    return 2 * COPIED / min(seconds)


def update_bytes(case: Case, gradients: int = 1) -> int:
    """Bytes that SGD with momentum reads and writes in a step, over all ranks.

    The weights and the velocity are read and written, and `gradients` gradients are read: one per rank if ranks sum
    them in the update.
    """
    return (4 + gradients) * 4 * case.parameters
