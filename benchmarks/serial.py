"""One process, one thread: this package beside PyTorch and scikit-learn and the machine's limits, and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.cases import CASES, Case, our_run, sklearn_run, torch_model, torch_run
from benchmarks.limits import copy_bandwidth, products_of, update_bytes
from benchmarks.memory import grown_bytes
from benchmarks.timing import alternate, seconds_of
from hybridnn import ProcessGrid

PAIRS = 9
PAIRS_SKLEARN = 3


def memory_of(case: Case) -> dict[str, float]:
    """What a trainer holds beside what the method needs, and by how much the process of either program grows."""
    trainer, _ = our_run(case, ProcessGrid())
    # Parameters, gradients and velocity; the input and one output per layer.
    needed = 4 * (3 * case.parameters + case.batch_size * sum(case.sizes))
    ours, theirs = (grown_bytes(program, case) for program in ("ours", "torch"))
    return {
        "memory_ratio": trainer.memory_bytes / needed,
        "our_grown_bytes": ours,
        "their_grown_bytes": theirs,
    }


def beside(case: Case, ours: Callable[[], Any]) -> dict[str, float]:
    """How many times faster this package is than compiled PyTorch and, where that has the activation, scikit-learn."""
    import torch

    compiled = torch.compile(torch_model(case))
    ratios = {"ratio_compiled": alternate(ours, torch_run(case, compiled), PAIRS)}
    if case.activation == "relu":
        ratios["ratio_sklearn"] = alternate(ours, sklearn_run(case), PAIRS_SKLEARN)
    return {name: median(comparison.ratios) for name, comparison in ratios.items()}


def measure(case: Case) -> dict[str, Any]:
    """All figures of one case."""
    _, ours = our_run(case, ProcessGrid())
    comparison = alternate(ours, torch_run(case, torch_model(case)), PAIRS)
    products = products_of(case)
    products()
    shares = [seconds_of(products) / seconds_of(ours) for _ in range(PAIRS)]
    seconds = median(comparison.ours) / case.steps
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        **comparison.summary(case.batch_size * case.steps),
        **beside(case, ours),
        "products_share": median(shares),
        "update_share": update_bytes(case) / copy_bandwidth() / seconds,
        "gflops": case.products_flops / seconds / 1e9,
        **memory_of(case),
    }


def main() -> None:
    """Run all cases; prints one JSON object per line."""
    import torch

    torch.set_num_threads(1)
    for case in CASES:
        print(json.dumps(measure(case)), flush=True)


if __name__ == "__main__":
    main()
