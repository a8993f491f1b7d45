"""One process, one thread: this package beside PyTorch eager, the share of matrix products, and memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.timing import alternate, seconds_of
from hybridnn import ProcessGrid

PAIRS = 9


def products_of(case: Case) -> Callable[[], None]:
    """The matrix products of a timed run and nothing else, on arrays of the same shapes and layouts."""
    rng = np.random.default_rng(0)
    widths, n = case.sizes, case.batch_size
    activations = [rng.standard_normal((n, widths[0]), np.float32).T]
    activations += [rng.standard_normal((width, n), np.float32) for width in widths[1:]]
    weights = [rng.standard_normal((b, a), np.float32) for a, b in pairwise(widths)]
    weight_gradients = [np.empty_like(weight) for weight in weights]
    gradients = [np.empty_like(activation) for activation in activations]

    def run() -> None:
        for _ in range(case.steps):
            for layer, weight in enumerate(weights):
                np.matmul(weight, activations[layer], out=gradients[layer + 1])
            for layer in reversed(range(len(weights))):
                if layer:
                    np.matmul(weights[layer].T, activations[layer + 1], out=gradients[layer])
                np.matmul(activations[layer + 1], activations[layer].T, out=weight_gradients[layer])

    return run


def memory_of(case: Case) -> dict[str, float]:
    """Most memory that a trainer held while training, beside what the arrays of the method need."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    trainer, run = our_run(case, ProcessGrid())
    run()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    # Parameters, gradients and velocity; the input and one output per layer.
    needed = 4 * (3 * case.parameters + case.batch_size * sum(case.sizes))
    return {"traced_peak_bytes": peak, "needed_bytes": needed, "memory_ratio": trainer.memory_bytes / needed}


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """All figures of one case."""
    import torch

    torch.set_num_threads(1)
    _, ours = our_run(case, ProcessGrid())
    comparison = alternate(ours, torch_run(case, torch_model(case)), pairs)
    products = products_of(case)
    products()
    shares = [seconds_of(products) / seconds_of(ours) for _ in range(pairs)]
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        **comparison.summary(case.batch_size * case.steps),
        "products_share": median(shares),
        "gflops": case.products_flops * case.steps / median(comparison.ours) / 1e9,
        **memory_of(case),
    }


if __name__ == "__main__":
    for chosen in CASES:
        print(json.dumps(measure(chosen, PAIRS)), flush=True)
