"""One process, one thread: this package beside PyTorch and scikit-learn and the machine's limits."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, Case, our_run, sklearn_run, torch_model, torch_run
from benchmarks.choice import read_choice
from benchmarks.limits import beside_limits
from benchmarks.timing import Run, alternate
from hybridnn import ProcessGrid, Trainer

PAIRS_SKLEARN = 3


def our_program(case: Case, way: str = "") -> tuple[Trainer, Run]:
    """A trainer, and a function that makes one timed run; there is but one way."""
    return our_run(case, ProcessGrid())


def torch_program(case: Case, way: str = "") -> Run:
    """A function that makes one timed run in PyTorch."""
    return torch_run(case, torch_model(case))


def memory_ratio(case: Case, trainer: Trainer) -> float:
    """What a trainer holds over what the method needs."""
    # Parameters, gradients and velocity; the input and one output per layer.
    needed = 4 * (3 * case.parameters + case.batch_size * sum(case.sizes))
    return trainer.memory_bytes / needed


def beside(case: Case, ours: Run, pairs: int) -> dict[str, float]:
    """How many times faster this package is than compiled PyTorch and, where that has the activation, scikit-learn."""
    import torch

    compiled = torch.compile(torch_model(case))
    ratios = {"ratio_compiled": alternate(ours, torch_run(case, compiled), pairs)}
    if case.activation == "relu":
        ratios["ratio_sklearn"] = alternate(ours, sklearn_run(case), min(pairs, PAIRS_SKLEARN))
    return {name: median(comparison.ratios) for name, comparison in ratios.items()}


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """All figures of one case."""
    trainer, ours = our_program(case)
    comparison = alternate(ours, torch_program(case), pairs)
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        **comparison.summary(case.batch_size * case.steps),
        **beside(case, ours, pairs),
        **beside_limits(case, ours, pairs, MPI.COMM_SELF),
        "memory_ratio": memory_ratio(case, trainer),
    }


def main() -> None:
    """Run what was asked for; prints one JSON object per line."""
    import torch

    torch.set_num_threads(1)
    choice = read_choice()
    for case in choice.among(CASES):
        print(json.dumps(measure(case, choice.pairs)), flush=True)


if __name__ == "__main__":
    main()
