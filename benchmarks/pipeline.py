"""Pipelines of two stages: comparison with ``torch.distributed.pipelining`` over gloo, and of all methods."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cases import CASES, LEARNING_RATE, MICROBATCHES, MOMENTUM, Case, make_data, our_run, torch_model
from benchmarks.harness import Run, alternate, in_turn, read_choice
from benchmarks.limits import compare_with_limits, copy_bandwidth
from benchmarks.ranks import WORLD, gloo, print_row
from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.comm.recorder import Recorder
from hybridnn.cost.prediction.predict import run
from hybridnn.cost.prediction.times import MessageTimes, compile_layout, seconds_per_added_minibatch
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import LayerSeconds, layer_timer, time_layers
from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Instruction
from hybridnn.runs.trace_breakdown import break_down, mean_of
from hybridnn.runs.trace_file import read_trace, write_trace
from hybridnn_papers.pipeline_formulas import KANG_METHODS, minibatch_time

SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
"""Schedules of PyTorch, by the names of hybridnn."""

BALANCED = Case("8x1024", (1024,) * 9, 128, "regression", 16, 1)
"""Eight equal layers: four on each stage."""

MICROBATCHES_OF_METHODS = 8

ROUNDS = 20  # of passes that are timed alone

METHODS = ("sequential", "fr", "ddg", "pipedream", "gpipe", "1f1b", "zb-h1", "searched", "vanilla", "spectrain")


def piped_run(case: Case, options: dict[str, Any], recorder: Recorder | None = None) -> tuple[Trainer, Run]:
    """A trainer on a pipeline of all ranks, and a function that makes one timed run."""
    grid = ProcessGrid(WORLD, pipeline=WORLD.size, batch=1, recorder=recorder)
    return our_run(case, grid, **options)


def our_program(case: Case, way: str, weight_grad: str = "auto") -> tuple[Trainer, Run]:
    """A trainer with a schedule of `SCHEDULES`, and a function that makes one timed run."""
    options = {"method": way, "microbatches": MICROBATCHES, "partition": case.stages, "weight_grad": weight_grad}
    return piped_run(case, options)


def torch_program(case: Case, way: str) -> Run:
    """A function that makes one timed run of PyTorch's pipeline, as in its documentation."""
    import torch
    from torch.distributed import pipelining

    model = torch_model(case)
    cut = 2 * case.stages[0]  # each layer has an activation
    layers = model[:cut] if WORLD.rank == 0 else model[cut:]
    stage = pipelining.PipelineStage(layers, WORLD.rank, WORLD.size, torch.device("cpu"))
    loss_of = torch.nn.MSELoss() if case.task == "regression" else torch.nn.CrossEntropyLoss()
    schedule = getattr(pipelining, SCHEDULES[way])(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(layers.parameters(), LEARNING_RATE, MOMENTUM)
    x, y = (torch.from_numpy(array) for array in make_data(case))
    shuffle = torch.Generator().manual_seed(0)

    def run() -> None:
        for _ in range(case.epochs):
            order = torch.randperm(len(x), generator=shuffle)
            for start in range(0, len(x), case.batch_size):
                indices = order[start : start + case.batch_size]
                optimizer.zero_grad()
                if WORLD.rank == 0:
                    schedule.step(x[indices])
                else:
                    schedule.step(target=y[indices], losses=[])
                optimizer.step()

    return run


@dataclass(frozen=True)
class PassTimes:
    """Seconds of the passes of every stage; messages and everything between passes take no time."""

    forward: list[float]  # of a microbatch
    input_gradient: list[float]
    weight_gradient: list[float]
    merged: list[float]  # weight gradients of all microbatches as one product
    update: list[float]
    hidden = 1.0

    def duration(self, stage: int, instruction: Instruction) -> float:
        """Time of a pass."""
        kind = instruction.name.replace(" ", "_")
        if kind == "backward":
            return self.input_gradient[stage] + self.weight_gradient[stage]
        if kind == "weight_gradient" and instruction.microbatch == ALL_MICROBATCHES:
            kind = "merged"
        seconds: list[float] = getattr(self, kind, [0.0] * len(self.forward))
        return seconds[stage]

    def message(self, message: object) -> MessageTimes:
        """No time for messages."""
        return MessageTimes()

    def barrier_seconds(self) -> float:
        """Time of a barrier."""
        return 0.0


def schedule_seconds(case: Case, layout: Layout) -> float:
    """Seconds of a step if its schedule has nothing but passes, timed alone while all stages compute; collective."""
    first = sum(layout.layers[: WORLD.rank])
    before = min(first, 1)  # with a layer in front, the first one of a later stage has a gradient of its inputs
    model = MLP(case.sizes[first - before : first + layout.layers[WORLD.rank] + 1], case.activation)

    def timed(samples: int) -> LayerSeconds:
        time_passes = layer_timer(model, samples, "float32")
        WORLD.Barrier()
        _, *rounds = [[sum(part) for part in zip(*time_passes()[before:], strict=True)] for _ in range(1 + ROUNDS)]
        return LayerSeconds(*map(median, zip(*rounds, strict=True)))

    passes, whole = timed(case.batch_size // layout.microbatches), timed(case.batch_size)
    parameters = sum((a + 1) * b for a, b in pairwise(model.sizes[before:]))
    update = 5 * 4 * parameters / copy_bandwidth(WORLD.Barrier)
    columns = zip(*WORLD.allgather((*passes, whole.weight_gradient, update)), strict=True)
    times = PassTimes(*map(list, columns))
    short, long = (run(compile_layout(layout, minibatches), times) for minibatches in (1, 2))
    return seconds_per_added_minibatch(short, long)


def measure(case: Case, method: str, pairs: int) -> dict[str, Any]:
    """Results of one network and one schedule; collective."""
    trainer, ours = our_program(case, method)
    _, one_by_one = our_program(case, method, weight_grad="per-microbatch")
    comparison = alternate(ours, torch_program(case, method), pairs, WORLD.Barrier)
    merged = alternate(ours, one_by_one, pairs, WORLD.Barrier)
    return {
        **case.about,
        "way": method,
        "layers": list(case.stages),
        "microbatches": MICROBATCHES,
        **comparison.summary(case.batch_size * case.steps),
        "merging_gain": median(merged.ratios),
        "over_passes": median(comparison.ours) / case.steps / schedule_seconds(case, trainer.layout),
        **compare_with_limits(case, ours, pairs, WORLD),
    }


def methods_in_turn(pairs: int) -> list[dict[str, Any]]:
    """Results of all methods on equal stages, timed alternately; collective."""
    profile = time_layers(MLP(BALANCED.sizes), BALANCED.batch_size, "float32")
    forward = sum(layer.forward for layer in profile)
    backward = sum(layer.input_gradient + layer.weight_gradient for layer in profile)
    # Kang 2019, Table 1.
    formulas = {method: minibatch_time(method, WORLD.size, forward, backward) for method in KANG_METHODS}
    programs = {}
    for method in METHODS:
        microbatches = MICROBATCHES_OF_METHODS if method in ("gpipe", "1f1b", "zb-h1", "searched") else None
        options = {"method": method, "microbatches": microbatches, "barriers": method in ("ddg", "fr")}
        programs[method] = piped_run(BALANCED, options, Recorder(1 << 16))
    seconds = in_turn({method: run for method, (_, run) in programs.items()}, pairs, WORLD.Barrier)
    return [
        {
            **BALANCED.about,
            "way": method,
            "step_seconds": median(seconds[method]) / BALANCED.steps,
            "over_sequential": median(a / b for a, b in zip(seconds["sequential"], seconds[method], strict=True)),
            "formula_over_sequential": formulas["sequential"] / formulas[method] if method in formulas else None,
            **_shares(trainer),
        }
        for method, (trainer, _) in programs.items()
    ]


def _shares(trainer: Trainer) -> dict[str, float]:
    """Shares of the time of the last epoch, means over the stages; collective."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path if trainer.grid.rank == 0 else None, trainer.grid, trainer.layout)
        if trainer.grid.rank:
            return {}
        trace = read_trace(path)
    parts = mean_of(break_down(trace.epoch(trace.epochs[-1])))
    return {name: seconds / parts.span for name, seconds in parts.parts.items()}


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    choice = read_choice()
    with gloo():
        for case in choice.among(CASES):
            for method in SCHEDULES:
                print_row(measure(case, method, choice.pairs))
    if choice.among([BALANCED]):
        for row in methods_in_turn(choice.pairs):
            print_row(row)


if __name__ == "__main__":
    main()
