"""What pays between nodes, and whether it is predicted: layouts over several nodes, measured beside predicted.

``mpirun -n 8 python -m benchmarks.between_nodes --machine FILE --rate NAME``, in a job of several nodes, on a machine
file of these nodes. Three networks are trained in named layouts, each of which differs from another in one thing; in
layouts that are drawn from all that are feasible; and in the first choice of the planner. Where the nodes share a
machine, as in the tests, it needs as many cores as there are ranks: ranks that wait for a core are not predicted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from statistics import mean, median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.cost_check import RESULTS, Case, Result, Run, console, measure_in_turn, order_rate, prepare, result_of
from hybridnn import MLP, ProcessGrid
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.threads import limit_blas_threads
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.planning.layouts import feasible_layouts
from hybridnn.cost.planning.plan import best_exact
from hybridnn.cost.prediction.workload import Workload
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS
from hybridnn.pipeline.layout import Layout

if TYPE_CHECKING:
    from mpi4py import MPI

NETWORKS = (((256, 512, 512, 512, 512, 10), 64), ((128, *[256] * 7, 10), 128), ((64, *[128] * 7, 10), 512))
"""Sizes of the layers, and samples of a minibatch: most bytes in weights, in both, and in activations."""

ROUNDS = 5
LEAST_STEPS = 3
DRAWN = 14  # layouts of each network
BUCKETS = (1 << 17, 1 << 21)  # bytes, besides the default of 2^19


def named_cases(ranks: int, nodes: int) -> Iterator[Case]:
    """Layouts that answer a question each, on so many ranks of each of so many nodes."""
    own = {"shared_replicas": False}
    per_node = ranks // nodes
    yield Case("batch", {"batch": ranks}, own | {"overlap": False})
    yield Case("batch, overlap", {"batch": ranks}, own | {"overlap": True})
    if per_node > 1:
        yield Case("batch, shared", {"batch": ranks}, {})
    for split in ("columns", "alternating"):
        yield from _with_overlap(f"model, {split}", {"batch": 1, "model": ranks}, {"model_split": split})
    yield from _pipelines("pipeline", {"pipeline": ranks, "batch": 1})
    if per_node > 1:
        yield from _with_overlap("grid, model in nodes", {"batch": nodes, "model": per_node}, {})
        yield from _pipelines(f"pipeline of {nodes} x batch", {"pipeline": nodes, "batch": per_node})
    elif ranks > 2:
        yield from _with_overlap("grid", {"batch": ranks // 2, "model": 2}, {})
        yield from _pipelines("pipeline of 2 x batch", {"pipeline": 2, "batch": ranks // 2})


def _with_overlap(name: str, axes: dict[str, int], settings: dict[str, Any]) -> Iterator[Case]:
    for overlap in (False, True):
        yield Case(name + ", overlap" * overlap, axes, settings | {"overlap": overlap})


def _pipelines(name: str, axes: dict[str, int]) -> Iterator[Case]:
    for method in ("gpipe", "1f1b", "pipedream"):
        yield Case(f"{name}, {method}", axes, {"method": method})


def case_of(layout: Layout, name: str) -> Case:
    """A feasible layout as a case."""
    keys = layout.parallel_settings()
    axes = {axis: keys.pop(axis) for axis in ("pipeline", "batch", "model")}
    settings = {key: keys.pop(key) for key in ("model_split", "overlap") if key in keys}
    settings["shared_replicas"] = "auto" if layout.shared_replicas else False
    return Case(name, axes, settings | keys)


def drawn_layouts(
    workload: Workload, machine: Machine, ranks: int, generator: np.random.Generator, known: Collection[Layout]
) -> list[Layout]:
    """Layouts drawn from all feasible ones that are not known, evenly over the process grids."""
    by_grid: dict[Any, list[Layout]] = {}
    for layout in feasible_layouts(workload, machine, ranks):
        if layout not in known:
            by_grid.setdefault(layout.stages, []).append(layout)
    drawn = []
    for index in range(DRAWN):
        layouts = list(by_grid.values())[index % len(by_grid)]
        drawn.append(layouts.pop(generator.integers(len(layouts))))
        by_grid = {grid: left for grid, left in by_grid.items() if left}
    return drawn


@dataclass(frozen=True)
class Runs:
    """Runs of one network: by layout, none of them twice; with other sizes of buckets; the first choice of the plan."""

    named: Mapping[Layout, Run]
    drawn: Mapping[Layout, Run]
    buckets: Sequence[Run]
    planned: Layout

    @property
    def predicted(self) -> dict[Layout, Run]:
        """All runs that have a prediction."""
        return {**self.named, **self.drawn}

    @property
    def all(self) -> list[Run]:
        """All runs."""
        return [*self.predicted.values(), *self.buckets]


def prepare_all(machine: Machine, comm: MPI.Intracomm, seed: int) -> list[Runs]:
    """All layouts of all networks."""
    return [_prepare(machine, comm, seed, MLP(list(sizes), "relu"), batch_size) for sizes, batch_size in NETWORKS]


def _prepare(machine: Machine, comm: MPI.Intracomm, seed: int, model: MLP, batch_size: int) -> Runs:
    workload, grid = Workload(model, batch_size, batch_size, classification=False), ProcessGrid(comm)
    make = partial(prepare, machine, model, batch_size, least_steps=LEAST_STEPS, comm=comm)
    generator = np.random.default_rng([seed, sum(model.sizes)])  # the same on every rank
    named: dict[Layout, Run] = {}
    for case in named_cases(grid.size, grid.nodes):
        if case.axes.get("pipeline", 1) <= len(model.layers):
            run = make(case)
            named.setdefault(run.trainer.layout, run)
    planned = best_exact(workload, machine, grid.size).layout
    drawn = {
        layout: make(case_of(layout, layout.describe()))
        for layout in {
            **dict.fromkeys(drawn_layouts(workload, machine, grid.size, generator, named)),
            **({} if planned in named else {planned: None}),
        }
    }
    buckets = []
    for nbytes in BUCKETS:
        sizes = replace(HOST_BUCKETS, bucket_bytes=nbytes, piece_bytes=nbytes)
        with patch("hybridnn.parallel.gradient_reduction.HOST_BUCKETS", sizes):
            settings = {"overlap": True, "shared_replicas": False}
            case = Case(f"batch, overlap, buckets of {nbytes >> 10} KiB", {"batch": grid.size}, settings)
            buckets.append(make(case))
    return Runs(named, drawn, buckets, planned)


def print_table(named: Sequence[Result], buckets: Sequence[Result]) -> None:
    """Print milliseconds per step, predicted and measured, a column for each network; `*` marks the fastest."""
    networks = list(dict.fromkeys((result.network, result.batch_size) for result in named))
    print("| layout | " + " | ".join(f"{network}, {batch_size}" for network, batch_size in networks) + " |")
    print("|---" * (len(networks) + 1) + "|")
    fastest = {
        network: min(result.measured_seconds_per_step for result in named if result.network == network)
        for network, _ in networks
    }
    for name in dict.fromkeys(result.layout for result in (*named, *buckets)):
        cells = []
        for network, _ in networks:
            found = [result for result in (*named, *buckets) if (result.layout, result.network) == (name, network)]
            cells += [_cell(result, fastest[network], predicted=result in named) for result in found] or [""]
        print(f"| {name} | " + " | ".join(cells) + " |")


def _cell(result: Result, fastest: float, *, predicted: bool) -> str:
    measured = f"{1e3 * result.measured_seconds_per_step:.1f}" + "*" * (result.measured_seconds_per_step == fastest)
    return f"{1e3 * result.predicted_seconds_per_step:.1f} / {measured}" if predicted else measured


def summary_of(networks: Sequence[Runs]) -> dict[str, Any]:
    """Errors, order of pairs, spread of the rounds, and what the plan loses to the best layout that it may choose."""
    runs = [run for network in networks for run in network.predicted.values()]
    predicted = [result_of(run) for run in runs]
    apart, right = order_rate(predicted)
    pairs, in_order = order_rate(predicted, apart_by=1.0)
    losses = {}
    for network in networks:
        choice = network.predicted[network.planned]
        # Users alone choose stale weights.
        allowed = [run for layout, run in network.predicted.items() if layout.exact]
        best = min(allowed, key=lambda run: median(run.measured))
        losses["-".join(map(str, choice.network))] = {
            "choice": choice.name,
            "best": best.name,
            "loss": median(choice.measured) / median(best.measured) - 1,
        }
    return {
        "layouts": len(predicted),
        "mean_error": mean(abs(result.error) for result in predicted),
        "mean_signed_error": mean(result.error for result in predicted),
        "spread": mean(spread_of(run.measured) for run in runs),
        "pairs": pairs,
        "pairs_in_order": in_order,
        "pairs_apart": apart,
        "pairs_apart_in_order": right,
        "plan": losses,
    }


def spread_of(measured: Sequence[float]) -> float:
    """Difference between the quartiles of the rounds, relative to their median."""
    low, middle, high = np.quantile(measured, (0.25, 0.5, 0.75)).tolist()
    return float((high - low) / middle)


def print_summary(summary: dict[str, Any]) -> None:
    """Print the figures of `summary_of`."""
    pairs = f"{summary['pairs_in_order']} of {summary['pairs']} pairs of a network in the right order"
    apart = f"{summary['pairs_apart_in_order']} of the {summary['pairs_apart']} that differ by more than 15 %"
    errors = f"mean error {summary['mean_error']:.1%}, with sign {summary['mean_signed_error']:+.1%}"
    console().print(f"\n{errors}, over {summary['layouts']} layouts; {pairs}, {apart}")
    console().print(f"the rounds of a layout differ by {summary['spread']:.1%} between their quartiles, on average")
    for network, plan in summary["plan"].items():
        console().print(f"plan for {network}: {plan['choice']}, {plan['loss']:.1%} slower than {plan['best']}")


def main() -> None:
    """Predict and measure all layouts; rank 0 prints the table and writes all results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help="a machine file of these nodes")
    parser.add_argument("--rate", required=True, help="name of the rate of the links")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn layouts")
    arguments = parser.parse_args()
    grid = ProcessGrid()
    limit_blas_threads(grid.node_group)
    # The file counts the cores of a node, not the ranks that this job has there.
    machine = read_machine(arguments.machine).model_copy(update={"ranks_per_node": grid.size // grid.nodes})
    networks = prepare_all(machine, import_mpi().COMM_WORLD, arguments.seed)
    measure_in_turn([run for network in networks for run in network.all], ROUNDS)
    if grid.rank == 0:
        of_kind = {
            "named": [result_of(run) for network in networks for run in network.named.values()],
            "buckets": [result_of(run) for network in networks for run in network.buckets],
            "drawn": [result_of(run) for network in networks for run in network.drawn.values()],
        }
        print_table(of_kind["named"], of_kind["buckets"])
        summary = summary_of(networks)
        print_summary(summary)
        if machine.quality is not None:
            console().print(f"calibration: {machine.quality.summary}")
        layouts = {kind: [{**asdict(it), "error": it.error} for it in found] for kind, found in of_kind.items()}
        out = RESULTS / f"{date.today()}-between-nodes-{arguments.rate}.json"
        figures = {"summary": summary, **layouts, "machine": machine.model_dump(mode="json")}
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
