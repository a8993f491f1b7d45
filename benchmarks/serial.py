"""One process with one thread: comparison with PyTorch, scikit-learn and the limits of the machine."""

from __future__ import annotations

from statistics import median
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, Case, our_run, sklearn_run, torch_model, torch_run
from benchmarks.harness import Run, alternate, read_choice
from benchmarks.limits import compare_with_limits
from benchmarks.ranks import print_row
from hybridnn import ProcessGrid, Trainer

PAIRS_SKLEARN = 3


def our_program(case: Case, way: str = "") -> tuple[Trainer, Run]:
    """A trainer, and a function that makes one timed run; `way` is not used."""
    return our_run(case, ProcessGrid())


def torch_program(case: Case, way: str = "") -> Run:
    """A function that makes one timed run in PyTorch."""
    return torch_run(case, torch_model(case))


def memory_ratio(case: Case, trainer: Trainer) -> float:
    """Memory of a trainer over the memory that the method needs."""
    # Parameters, gradients and velocity; the input and one output per layer.
    needed = 4 * (3 * case.parameters + case.batch_size * sum(case.sizes))
    return trainer.memory_bytes / needed


def compare_with_others(case: Case, ours: Run, pairs: int) -> dict[str, float]:
    """Speed over that of compiled PyTorch and, if it has the activation, of scikit-learn."""
    import torch

    compiled = torch.compile(torch_model(case))
    ratios = {"ratio_compiled": alternate(ours, torch_run(case, compiled), pairs)}
    if case.activation == "relu":
        ratios["ratio_sklearn"] = alternate(ours, sklearn_run(case), min(pairs, PAIRS_SKLEARN))
    return {name: median(comparison.ratios) for name, comparison in ratios.items()}


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """All results of one case."""
    trainer, ours = our_program(case)
    comparison = alternate(ours, torch_program(case), pairs)
    return {
        **case.about,
        **comparison.summary(case.batch_size * case.steps),
        **compare_with_others(case, ours, pairs),
        **compare_with_limits(case, ours, pairs, MPI.COMM_SELF),
        "memory_ratio": memory_ratio(case, trainer),
    }


def main() -> None:
    """Measure the selected cases, and print one JSON object per line."""
    import torch

    torch.set_num_threads(1)
    choice = read_choice()
    for case in choice.among(CASES):
        print_row(measure(case, choice.pairs))


if __name__ == "__main__":
    main()
