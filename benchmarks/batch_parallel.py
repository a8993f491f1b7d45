"""Batch parallelism on two ranks of one thread: comparison with PyTorch DDP over gloo, in one launch."""

from __future__ import annotations

from statistics import median
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.harness import Run, alternate, read_choice
from benchmarks.limits import compare_with_limits
from benchmarks.ranks import WORLD, gloo, idle_barrier, print_row
from hybridnn import ProcessGrid, Trainer
from hybridnn.comm.blocks import block_slice


def our_program(case: Case, way: str = "") -> tuple[Trainer, Run]:
    """A trainer on all ranks, and a function that makes one timed run; `way` is not used."""
    return our_run(case, ProcessGrid(WORLD))


def torch_program(case: Case, way: str = "") -> Run:
    """A function that makes one timed run in PyTorch."""
    from torch.nn.parallel import DistributedDataParallel

    rows = block_slice(case.batch_size, WORLD.size, WORLD.rank)
    return torch_run(case, DistributedDataParallel(torch_model(case)), rows)


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """Results of one case; collective."""
    trainer, ours = our_program(case)
    overlapped, at_once = (
        our_run(case, ProcessGrid(WORLD), shared_replicas=False, overlap=which)[1] for which in (True, False)
    )
    figures = parallel_figures(case, trainer, ours, torch_program(case), pairs, gradients=WORLD.size)
    return figures | {"overlap_gain": median(alternate(overlapped, at_once, pairs, WORLD.Barrier).ratios)}


def parallel_figures(
    case: Case, trainer: Trainer, ours: Run, theirs: Run, pairs: int, *, gradients: int = 1
) -> dict[str, Any]:
    """Results beside PyTorch, one rank and the limits of the machine, whose `gradients` are those of `update_bytes`.

    The same training on rank 0 alone, while the other ranks sleep, is timed on rank 0.
    """
    one: Run = our_run(case, ProcessGrid(MPI.COMM_SELF))[1] if WORLD.rank == 0 else lambda: None
    comparison = alternate(ours, theirs, pairs, WORLD.Barrier)
    alone = alternate(ours, one, pairs, idle_barrier)
    record = trainer.history.epochs[-1]
    return {
        **case.about,
        "ranks": WORLD.size,
        **comparison.summary(case.batch_size * case.steps),
        "speed_up_over_one_rank": median(alone.ratios),
        "communication_share": record.communication_seconds / (record.communication_seconds + record.compute_seconds),
        **compare_with_limits(case, ours, pairs, WORLD, gradients=gradients),
    }


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    choice = read_choice()
    with gloo():
        for case in choice.among(CASES):
            print_row(measure(case, choice.pairs))


if __name__ == "__main__":
    main()
