"""Two ranks of one thread, every layer split over both: this package beside PyTorch's tensor parallelism over gloo."""

from __future__ import annotations

import json
import os
from typing import Any

from mpi4py import MPI

from benchmarks.batch_parallel import beside_one_rank
from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.timing import alternate
from hybridnn import ProcessGrid

PAIRS = 9
SPLITS = ("columns", "alternating")


def split_torch_model(case: Case) -> Any:
    """The network in PyTorch with its layers split in turn by outputs and by inputs, as its documentation advises."""
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch_model(case)
    mesh = torch.distributed.init_device_mesh("cpu", (MPI.COMM_WORLD.size,))
    layers = [name for name, module in model.named_children() if isinstance(module, torch.nn.Linear)]
    # A last layer without a partner stays whole on every rank.
    pairs = list(zip(layers[::2], layers[1::2], strict=False))
    plan = {first: ColwiseParallel() for first, _ in pairs} | {second: RowwiseParallel() for _, second in pairs}
    return parallelize_module(model, mesh, plan)


def measure(case: Case, split: str) -> dict[str, Any]:
    """Figures of one case and one split; collective over the two ranks."""
    world = MPI.COMM_WORLD
    trainer, ours = our_run(case, ProcessGrid(world, batch=1, model=world.size), model_split=split)
    comparison = alternate(ours, torch_run(case, split_torch_model(case)), PAIRS, world.Barrier)
    alone = beside_one_rank(case, ours, PAIRS)
    record = trainer.history.epochs[-1]
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "split": split,
        "ranks": world.size,
        **comparison.summary(case.batch_size * case.steps),
        "speed_up_over_one_rank": alone.summary(1)["ratio"],
        "communication_share": record.communication_seconds / (record.communication_seconds + record.compute_seconds),
    }


def main() -> None:
    """Run all cases; rank 0 prints one JSON object per line."""
    import torch

    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29519")
    torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.size)
    for case in CASES:
        for split in SPLITS if case.sizes[-1] >= world.size else SPLITS[1:]:
            figures = measure(case, split)
            if world.rank == 0:
                print(json.dumps(figures), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
