"""Input gradients of few samples: a transposed product over the plain one.

``python -m benchmarks.input_gradients``. A row is a number of samples, a column the outputs and inputs of a layer;
below 1, the transposed product is faster. Six layers take turns, so that weights come from the memory of a network.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from threadpoolctl import threadpool_limits

from hybridnn.nn.kernels import NUMPY

SAMPLES = (8, 16, 32, 48)
SHAPES = ((10, 2048), (128, 128), (128, 784), (512, 512), (512, 1024), (640, 640), (1024, 512), (1024, 1024))
LAYERS, ROUNDS, SECONDS = 6, 7, 0.004


def seconds_of(weights: list[np.ndarray], samples: int, *, transposed: bool) -> float:
    """Seconds of the input gradients of all layers, the least of some rounds."""
    outputs, inputs = weights[0].shape
    dz, out = np.ones((outputs, samples), np.float32), np.empty((inputs, samples), np.float32)
    workspace = np.empty((samples, inputs), np.float32) if transposed else None
    found, calls = [], 1
    for _ in range(ROUNDS + 1):
        start = perf_counter()
        for _ in range(calls):
            for weight in weights:
                NUMPY.matmul_transposed(weight, dz, out, workspace)
        found.append((perf_counter() - start) / calls)
        calls = max(1, int(SECONDS / found[0]))
    return min(found)


def main() -> None:
    """Print the table."""
    threadpool_limits(1)
    print("| samples |", *(f"{outputs} x {inputs} |" for outputs, inputs in SHAPES))
    print("|---|" + "--:|" * len(SHAPES))
    random = np.random.default_rng(0)
    for samples in SAMPLES:
        cells = []
        for shape in SHAPES:
            weights = [random.normal(size=shape).astype(np.float32) for _ in range(LAYERS)]
            plain, other = (seconds_of(weights, samples, transposed=choice) for choice in (False, True))
            cells.append(f"{other / plain:.2f}")
        print(f"| {samples} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
