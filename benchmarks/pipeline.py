"""Two stages of one thread: this package beside ``torch.distributed.pipelining`` over gloo, and its methods in turn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from mpi4py import MPI

from benchmarks.cases import LEARNING_RATE, MOMENTUM, Case, make_data, torch_model
from benchmarks.timing import alternate, seconds_of
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.recorder import Recorder
from hybridnn.pipeline.partition.layer_profile import time_layers
from hybridnn.pipeline.tracing.breakdown import break_down, mean_of
from hybridnn.training.pipelining import Pipelining
from hybridnn.training.trace_file import read_trace, write_trace

PAIRS = 9
MICROBATCHES = 8

BESIDE_TORCH = (
    (Case("16-4x1024-2", (16, 1024, 1024, 1024, 1024, 2), 128, "regression", 20, 1), (3, 2)),
    (Case("3072-8x1024-10", (3072, *[1024] * 8, 10), 256, "classification", 6, 1), (4, 5)),
)
"""Networks with the layers of each stage, which are the same for both programs."""

BALANCED = Case("8x1024", (1024,) * 9, 128, "regression", 16, 1)
"""Eight equal layers: four on each stage."""

METHODS = ("sequential", "fr", "ddg", "pipedream", "gpipe", "1f1b", "zb-h1", "vanilla", "spectrain")


def our_run(case: Case, pipelining: Pipelining, recorder: Recorder | None = None) -> tuple[Trainer, Callable[[], Any]]:
    """A trainer on a pipeline of all ranks, and a function that makes one timed run."""
    grid = ProcessGrid(MPI.COMM_WORLD, pipeline=MPI.COMM_WORLD.size, batch=1, recorder=recorder)
    optimizer = SGD(LEARNING_RATE, MOMENTUM)
    trainer = Trainer(MLP(case.sizes), optimizer, grid=grid, batch_size=case.batch_size, pipelining=pipelining)
    x, y = make_data(case)
    return trainer, lambda: trainer.fit(x, y, epochs=case.epochs)


def torch_run(case: Case, layers: tuple[int, ...], schedule_name: str) -> Callable[[], None]:
    """A function that makes one timed run of PyTorch's pipeline, written as its documentation shows."""
    import torch
    from torch.distributed import pipelining

    rank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    model = torch_model(case)
    cut = 2 * layers[0]  # a linear layer and its activation each
    mine = model[:cut] if rank == 0 else model[cut:]
    stage = pipelining.PipelineStage(mine, rank, ranks, torch.device("cpu"))
    loss_of = torch.nn.MSELoss() if case.task == "regression" else torch.nn.CrossEntropyLoss()
    schedule = getattr(pipelining, schedule_name)(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(mine.parameters(), LEARNING_RATE, MOMENTUM)
    x, y = (torch.from_numpy(array) for array in make_data(case))
    shuffle = torch.Generator().manual_seed(0)

    def run() -> None:
        for _ in range(case.epochs):
            order = torch.randperm(len(x), generator=shuffle)
            for start in range(0, len(x), case.batch_size):
                indices = order[start : start + case.batch_size]
                optimizer.zero_grad()
                if rank == 0:
                    schedule.step(x[indices])
                else:
                    schedule.step(target=y[indices], losses=[])
                optimizer.step()

    return run


def beside_torch(case: Case, layers: tuple[int, ...], method: str, schedule_name: str) -> dict[str, Any]:
    """Figures of one network and one schedule; collective."""
    _, ours = our_run(case, Pipelining(method, microbatches=MICROBATCHES, partition=layers))
    _, one_by_one = our_run(
        case, Pipelining(method, microbatches=MICROBATCHES, partition=layers, weight_grad="per-microbatch")
    )
    comparison = alternate(ours, torch_run(case, layers, schedule_name), PAIRS, MPI.COMM_WORLD.Barrier)
    merged = alternate(ours, one_by_one, PAIRS, MPI.COMM_WORLD.Barrier)
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "method": method,
        "layers": list(layers),
        **comparison.summary(case.batch_size * case.steps),
        "merging_gain": merged.summary(1)["ratio"],
    }


def formula_seconds(forward: float, backward: float, stages: int) -> dict[str, float]:
    """Seconds of a step: Kang 2019, Table 1, with the recomputation of features replay counted."""
    return {
        "sequential": forward + backward,
        "fr": forward + (forward + backward) / stages,
        "ddg": forward + backward / stages,
        "pipedream": (forward + backward) / stages,
    }


def methods_in_turn() -> list[dict[str, Any]]:
    """Every method on equal stages, one after the other in each round; collective."""
    world = MPI.COMM_WORLD
    profile = time_layers(MLP(BALANCED.sizes), BALANCED.batch_size, "float32")
    forward = sum(layer.forward_seconds for layer in profile)
    backward = sum(layer.backward_seconds for layer in profile)
    formulas = formula_seconds(forward, backward, world.size)
    runs = [our_run(BALANCED, _pipelining(method), Recorder(1 << 16)) for method in METHODS]
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for round_number in range(PAIRS + 1):
        for method, (_, run) in zip(METHODS, runs, strict=True):
            world.Barrier()
            spent = seconds_of(run)
            if round_number:  # the first warmed up
                seconds[method].append(spent)
    shares = {method: _shares(trainer) for method, (trainer, _) in zip(METHODS, runs, strict=True)}
    steps = BALANCED.steps
    return [
        {
            "case": BALANCED.name,
            "batch_size": BALANCED.batch_size,
            "method": method,
            "step_seconds": median(seconds[method]) / steps,
            "over_sequential": median(a / b for a, b in zip(seconds["sequential"], seconds[method], strict=True)),
            "formula_over_sequential": formulas["sequential"] / formulas[method] if method in formulas else None,
            **shares[method],
        }
        for method in METHODS
    ]


def _pipelining(method: str) -> Pipelining:
    cuts = method in ("gpipe", "1f1b", "zb-h1")
    return Pipelining(method, microbatches=MICROBATCHES if cuts else None)


def _shares(trainer: Trainer) -> dict[str, float]:
    """Where the time of the last epoch went, the mean over the stages; collective."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path if trainer.grid.rank == 0 else None, trainer.grid)
        if trainer.grid.rank:
            return {}
        trace = read_trace(path)
    parts = mean_of(break_down(trace.epoch(trace.epochs[-1])))
    return {name: seconds / parts.span for name, seconds in parts.parts.items()}


def main() -> None:
    """Run all comparisons; rank 0 prints one JSON object per line."""
    import torch

    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29518")
    torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.size)
    rows = [
        beside_torch(case, layers, method, schedule)
        for case, layers in BESIDE_TORCH
        for method, schedule in (("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B"))
    ]
    torch.distributed.destroy_process_group()
    for row in [*rows, *methods_in_turn()]:
        if world.rank == 0:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
