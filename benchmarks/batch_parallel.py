"""Batch parallelism on two ranks of one thread: comparison with PyTorch DDP over gloo, in one launch."""

from __future__ import annotations

from statistics import median
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.harness import Comparison, Run, alternate, read_choice
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
    comparison = alternate(ours, torch_program(case), pairs, WORLD.Barrier)
    overlap = alternate(overlapped, at_once, pairs, WORLD.Barrier)
    alone = compare_with_one_rank(case, ours, pairs)
    record = trainer.history.epochs[-1]
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "ranks": WORLD.size,
        **comparison.summary(case.batch_size * case.steps),
        "overlap_gain": median(overlap.ratios),
        "speed_up_over_one_rank": median(alone.ratios),
        "communication_share": record.communication_seconds / (record.communication_seconds + record.compute_seconds),
        **compare_with_limits(case, ours, pairs, WORLD, gradients=WORLD.size),
    }


def compare_with_one_rank(case: Case, ours: Run, pairs: int) -> Comparison:
    """Compare with the same training on rank 0 alone, while the other ranks sleep; the times are those of rank 0."""
    one: Run = our_run(case, ProcessGrid(MPI.COMM_SELF))[1] if WORLD.rank == 0 else lambda: None
    return alternate(ours, one, pairs, idle_barrier)


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    choice = read_choice()
    with gloo():
        for case in choice.among(CASES):
            print_row(measure(case, choice.pairs))


if __name__ == "__main__":
    main()
