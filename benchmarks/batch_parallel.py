"""Two ranks of one thread, batch parallel: this package over MPI beside PyTorch DDP over gloo, in one launch."""

from __future__ import annotations

import json
import os
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.timing import Comparison, alternate, seconds_of
from hybridnn import ProcessGrid
from hybridnn.comm.partition import block_slice

PAIRS = 9


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """Figures of one case; collective over the two ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    world = MPI.COMM_WORLD
    grid = ProcessGrid(world)
    trainer, ours = our_run(case, grid)
    overlapped, at_once = (our_run(case, grid, shared_replicas=False, overlap=which)[1] for which in (True, False))
    part = block_slice(case.batch_size, world.size, world.rank)
    theirs = torch_run(case, DistributedDataParallel(torch_model(case)), part)
    comparison = alternate(ours, theirs, pairs, world.Barrier)
    overlap = alternate(overlapped, at_once, pairs, world.Barrier)
    alone = beside_one_rank(case, ours, pairs)
    record = trainer.history.epochs[-1]
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "ranks": world.size,
        **comparison.summary(case.batch_size * case.steps),
        "overlap_gain": overlap.summary(1)["ratio"],
        "speed_up_over_one_rank": alone.summary(1)["ratio"],
        "communication_share": record.communication_seconds / (record.communication_seconds + record.compute_seconds),
        "threads": torch.get_num_threads(),
    }


def beside_one_rank(case: Case, ours: Any, pairs: int) -> Comparison:
    """The same training by rank 0 alone, while the other ranks sleep at a barrier between its runs."""
    world = MPI.COMM_WORLD
    _, one = our_run(case, ProcessGrid(MPI.COMM_SELF))
    comparison = Comparison()
    for _ in range(pairs + 1):
        world.Barrier()
        comparison.ours.append(seconds_of(ours))
        world.Barrier()
        comparison.theirs.append(seconds_of(one) if world.rank == 0 else 1.0)
    # The first pair warmed up.
    return Comparison(comparison.ours[1:], comparison.theirs[1:])


def main() -> None:
    """Run all cases; rank 0 prints one JSON object per line."""
    import torch

    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.size)
    for case in CASES:
        figures = measure(case, PAIRS)
        if world.rank == 0:
            print(json.dumps(figures), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
