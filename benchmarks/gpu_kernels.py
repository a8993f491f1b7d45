"""Our kernels on a GPU as a share of its copy bandwidth, and the rate of matrix products beside ``torch.matmul``.

Run as ``python3 -m benchmarks.gpu_kernels``; prints two tables and writes JSON. Times are those of CUDA events around
one launch, medians over launches that take turns; bytes are what an operation must read and write at least once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.gpu_report import KERNELS
from benchmarks.gpu_report import PRODUCTS as PRODUCT_COLUMNS
from benchmarks.tables import Sheet
from hybridnn import SGD, AdamW
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_kernels import cupy_kernels
from hybridnn.gpu.cupy_loading import load_cupy
from hybridnn.nn.kernels import Kernels

RESULTS = Path(__file__).parent / "results"
NUMBERS = 1 << 26
COLUMNS = 1 << 13
RUNS = 21
PRODUCTS = ((4096, 4096, 1024), (4096, 1024, 4096), (8192, 8192, 8192))
"""Rows, summed, columns: a layer's output and its weight gradient, and a product large enough for the device's best."""
ACTIVATIONS = ("relu", "tanh", "sigmoid", "selu")


@dataclass(frozen=True)
class Work:
    """One operation."""

    name: str
    amount: float  # bytes that it reads and writes, or floating-point operations
    run: Callable[[], None]


Maker = Callable[[str, float, Callable[[], None]], Work]
"""Makes a `Work` from a name, the number of arrays read or written, and a function."""


def one_pass(kernels: Kernels, dtype: str, numbers: int) -> list[Work]:
    """A copy, and all kernels that read or write arrays of `numbers` elements once."""
    host = np.random.default_rng(0).uniform(0.1, 0.9, numbers).astype(dtype)
    a, b, c, d, out = (kernels.to_device(host) for _ in range(5))
    size = a.nbytes

    def work(name: str, arrays: float, run: Callable[[], None]) -> Work:
        return Work(name, arrays * size, run)

    return [
        work("copy", 2, lambda: kernels.copy(a, out)),
        work("add", 3, lambda: kernels.add(a, b, out)),
        *(item for name in ACTIVATIONS for item in _of_activation(kernels, work, name, a, b, out)),
        *_of_matrices(kernels, work, [array.reshape(-1, COLUMNS) for array in (a, b, out)]),
        *_of_losses(kernels, work, a, b, out),
        *_of_updates(kernels, work, a, b, c, d, out),
    ]


def _of_activation(kernels: Kernels, work: Maker, name: str, a: Any, b: Any, out: Any) -> list[Work]:
    return [
        work(name, 2, lambda: kernels.activate(name, out, None)),
        work(f"gradient of {name}", 3, lambda: kernels.gradient_of_activation(name, a, b, out, None)),
    ]


def _of_matrices(kernels: Kernels, work: Maker, matrices: Sequence[Any]) -> list[Work]:
    a, b, out = matrices
    rows, columns = a.shape
    bias, sums = kernels.zeros((rows, 1), a.dtype), kernels.zeros((rows,), a.dtype)
    order = kernels.to_device(np.random.default_rng(1).permutation(rows))

    def both(name: str) -> list[Work]:
        return [
            work(f"bias + {name}", 2, lambda: kernels.bias_activate(name, out, bias, None)),
            work(
                f"gradient of {name} + row sums",
                3,
                lambda: kernels.gradient_and_row_sums(name, a, b, out, sums, None, None),
            ),
        ]

    return [
        work("bias", 2, lambda: kernels.add_bias(out, bias)),
        *(item for name in ACTIVATIONS for item in both(name)),
        work("row sums", 1, lambda: kernels.row_sums(a, None, sums)),
        work(f"gather of rows of {columns}", 2, lambda: kernels.gather_rows(a, order, out)),
    ]


def _of_losses(kernels: Kernels, work: Maker, a: Any, b: Any, out: Any) -> list[Work]:
    loss = kernels.zeros((1,), a.dtype)

    def cross_entropy(classes: int) -> Work:
        samples = a.size // classes
        labels = kernels.to_device(np.arange(samples) % classes)
        logits, gradient = (array[: classes * samples].reshape(classes, samples) for array in (a, out))
        run = lambda: kernels.cross_entropy(logits, labels, None, 1.0, gradient, loss)  # noqa: E731
        return work(f"cross-entropy, {classes} classes", 2 + 8 / (classes * a.itemsize), run)

    row, targets, gradient = (array.reshape(1, -1) for array in (a, b, out))
    return [
        cross_entropy(10),
        cross_entropy(1000),
        work("mean squared error", 3, lambda: kernels.mean_squared_error(row, targets, 1.0, gradient, loss)),
    ]


def _of_updates(kernels: Kernels, work: Maker, a: Any, b: Any, c: Any, d: Any, out: Any) -> list[Work]:
    norm = kernels.zeros((1,), np.float64)
    large = kernels.to_device(np.array([4.0]))
    scalars = (0.0, 1.0, 1.0)
    return [
        work("SGD", 3, lambda: kernels.sgd_update(a, b, None, out, None, SGD(momentum=0.0), (0.0,))),
        work("SGD with momentum", 5, lambda: kernels.sgd_update(a, b, c, out, None, SGD(), (0.0,))),
        work("AdamW", 7, lambda: kernels.adam_update(a, b, c, d, out, None, AdamW(), scalars)),
        work("prediction, SGD", 3, lambda: kernels.sgd_prediction(a, c, out, 0.0)),
        work("prediction, Adam", 4, lambda: kernels.adam_prediction(a, c, d, out, 1e-8, scalars[:2])),
        work("squared norm", 1, lambda: kernels.squared_norm_into(a, norm)),
        work("clipping", 2, lambda: kernels.clip_to_norm(out, large, 1.999999)),
    ]


def products(kernels: Kernels, dtype: str, name: str) -> list[Work]:
    """Matrix products, measured in operations."""

    def product(m: int, k: int, n: int) -> Work:
        random = np.random.default_rng(0)
        a, b = (
            kernels.to_device(random.standard_normal(shape, np.float32).astype(dtype)) for shape in ((m, k), (k, n))
        )
        out = kernels.empty((m, n), dtype)
        return Work(f"{name}, {m} x {k} x {n}", 2.0 * m * k * n, lambda: kernels.matmul(a, b, out))

    return [product(*sizes) for sizes in PRODUCTS]


def torch_products(dtype: str, name: str, device: str = "cuda") -> list[Work]:
    """The same in PyTorch, of matrices of a dtype."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = name == "TF32"

    def product(m: int, k: int, n: int) -> Work:
        a, b = (torch.randn(*shape, device=device).to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
        out = torch.empty((m, n), dtype=a.dtype, device=device)
        return Work(f"PyTorch, {name}, {m} x {k} x {n}", 2.0 * m * k * n, lambda: torch.matmul(a, b, out=out))

    return [product(*sizes) for sizes in PRODUCTS]


def seconds_of(cupy: Any, works: Sequence[Work], runs: int) -> list[float]:
    """Median seconds of every operation, after one warm-up run."""
    times: list[list[float]] = [[] for _ in works]
    for run in range(runs + 1):
        for work, its_times in zip(works, times, strict=True):
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            work.run()  # the next launch is enqueued before the device is idle
            start.record()
            work.run()
            stop.record()
            stop.synchronize()
            if run:
                its_times.append(cupy.cuda.get_elapsed_time(start, stop) / 1000)
    return [median(its_times) for its_times in times]


def device_facts(cupy: Any) -> dict[str, Any]:
    """Device and software versions."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "device": properties["name"].decode(),
        "multiprocessors": properties["multiProcessorCount"],
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
    }


def measure(cupy: Any, numbers: int, runs: int) -> dict[str, Any]:
    """All results."""
    bandwidth, rates = [], []
    for dtype in ("float32", "float64"):
        works = one_pass(cupy_kernels(), dtype, numbers)
        speeds = [work.amount / s for work, s in zip(works, seconds_of(cupy, works, runs), strict=True)]
        bandwidth += [
            {"dtype": dtype, "kernel": work.name, "gb_per_s": speed / 1e9, "share_of_copy": speed / speeds[0]}
            for work, speed in zip(works, speeds, strict=True)
        ]
        del works
        cupy.get_default_memory_pool().free_all_blocks()
    for name, (kernels, dtype) in {
        "fp32": (cupy_kernels(), "float32"),
        "TF32": (cupy_kernels(tf32=True), "float32"),
        "fp64": (cupy_kernels(), "float64"),
    }.items():
        works = products(kernels, dtype, name)
        both = [*works, *torch_products(dtype, name)]  # which take turns
        speeds = [work.amount / s / 1e12 for work, s in zip(both, seconds_of(cupy, both, runs), strict=True)]
        rates += [
            {"product": work.name, "tflop_per_s": ours, "torch_tflop_per_s": theirs}
            for work, ours, theirs in zip(works, speeds, speeds[len(works) :], strict=False)
        ]
    facts = {"date": date.today().isoformat(), "numbers": numbers, "runs": runs, **device_facts(cupy)}
    return {**facts, "one_pass": bandwidth, "products": rates}


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    console = Console(width=100)
    Sheet(f"{found['device']}, {found['numbers']:,} numbers", KERNELS, "kernel").show(found["one_pass"], console)
    Sheet("Matrix products", PRODUCT_COLUMNS, "product").show(found["products"], console)


def cupy_or_exit() -> Any:
    """CuPy; ends the program with the reason where it cannot be used."""
    try:
        return load_cupy()
    except EnvironmentProblem as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.exit_code)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=NUMBERS, help=f"a multiple of {COLUMNS} (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, default=RESULTS / f"{date.today().isoformat()}-gpu-kernels.json")
    arguments = parser.parse_args()
    found = measure(cupy_or_exit(), arguments.numbers, arguments.runs)
    show(found)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
