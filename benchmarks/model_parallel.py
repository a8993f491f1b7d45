"""Two ranks of one thread, every layer split over both: this package beside PyTorch's tensor parallelism over gloo."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.batch_parallel import beside_one_rank
from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run
from benchmarks.choice import read_choice
from benchmarks.limits import beside_limits
from benchmarks.ranks import WORLD, gloo, tell
from benchmarks.timing import Run, alternate
from hybridnn import ProcessGrid, Trainer

SPLITS = ("columns", "alternating")


def our_program(case: Case, way: str) -> tuple[Trainer, Run]:
    """A trainer with layers split over all ranks in a `way` of `SPLITS`, and a function that makes one timed run."""
    return our_run(case, ProcessGrid(WORLD, batch=1, model=WORLD.size), model_split=way)


def torch_program(case: Case, way: str = "") -> Run:
    """A function that makes one timed run in PyTorch, whose layers are split in the same way beside all of ours."""
    return torch_run(case, split_torch_model(case))


def split_torch_model(case: Case) -> Any:
    """The network in PyTorch with its layers split in turn by outputs and by inputs, as its documentation advises."""
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch_model(case)
    mesh = torch.distributed.init_device_mesh("cpu", (WORLD.size,))
    layers = [name for name, module in model.named_children() if isinstance(module, torch.nn.Linear)]
    # A last layer without a partner stays whole on every rank.
    pairs = list(zip(layers[::2], layers[1::2], strict=False))
    plan = {first: ColwiseParallel() for first, _ in pairs} | {second: RowwiseParallel() for _, second in pairs}
    return parallelize_module(model, mesh, plan)


def measure(case: Case, split: str, pairs: int) -> dict[str, Any]:
    """Figures of one case and one split; collective over the ranks."""
    trainer, ours = our_program(case, split)
    comparison = alternate(ours, torch_program(case), pairs, WORLD.Barrier)
    alone = beside_one_rank(case, ours, pairs)
    record = trainer.history.epochs[-1]
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "way": split,
        "ranks": WORLD.size,
        **comparison.summary(case.batch_size * case.steps),
        "speed_up_over_one_rank": median(alone.ratios),
        "communication_share": record.communication_seconds / (record.communication_seconds + record.compute_seconds),
        **beside_limits(case, ours, pairs, WORLD),
    }


def main() -> None:
    """Run what was asked for; rank 0 prints one JSON object per line."""
    choice = read_choice()
    with gloo():
        for case in choice.among(CASES):
            for split in SPLITS if case.sizes[-1] >= WORLD.size else SPLITS[1:]:
                tell(measure(case, split, choice.pairs))


if __name__ == "__main__":
    main()
