"""Model parallelism on two ranks of one thread: comparison with tensor parallelism of PyTorch over gloo."""

from __future__ import annotations

from typing import Any

from benchmarks.batch_parallel import parallel_figures
from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.harness import Run, read_choice
from benchmarks.ranks import WORLD, gloo, print_row
from hybridnn import ProcessGrid, Trainer

SPLITS = ("columns", "alternating")


def our_program(case: Case, way: str) -> tuple[Trainer, Run]:
    """A trainer with layers split over all ranks by the split `way`, and a function that makes one timed run."""
    return our_run(case, ProcessGrid(WORLD, batch=1, model=WORLD.size), model_split=way)


def torch_program(case: Case, way: str = "") -> Run:
    """A function that makes one timed run in PyTorch, whose layers are always split as its documentation recommends.

    They are split alternately by outputs and inputs.
    """
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch_model(case)
    mesh = torch.distributed.init_device_mesh("cpu", (WORLD.size,))
    layers = [name for name, module in model.named_children() if isinstance(module, torch.nn.Linear)]
    # A last layer without a partner is not split.
    pairs = list(zip(layers[::2], layers[1::2], strict=False))
    plan = {first: ColwiseParallel() for first, _ in pairs} | {second: RowwiseParallel() for _, second in pairs}
    return torch_run(case, parallelize_module(model, mesh, plan))


def measure(case: Case, split: str, pairs: int) -> dict[str, Any]:
    """Results of one case and one split; collective."""
    trainer, ours = our_program(case, split)
    return parallel_figures(case, trainer, ours, torch_program(case), pairs) | {"way": split}


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    choice = read_choice()
    with gloo():
        for case in choice.among(CASES):
            for split in SPLITS if case.sizes[-1] >= WORLD.size else SPLITS[1:]:
                print_row(measure(case, split, choice.pairs))


if __name__ == "__main__":
    main()
