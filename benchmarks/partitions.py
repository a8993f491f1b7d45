"""Pipelines of two stages with the default settings, compared with the best of all partitions."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.cases import CASES, Case
from benchmarks.fastest_layouts import random_network
from benchmarks.harness import alternate, in_turn, read_choice
from benchmarks.pipeline import piped_run
from benchmarks.ranks import WORLD, print_row
from hybridnn.pipeline.schedules.methods import METHODS

MEASURED = ("gpipe", "1f1b", "pipedream")
RANDOM_NETWORKS = 20
SEED = 0
ROUNDS = 3
"""Runs with every partition, by which the best one is chosen; it is then timed anew, beside the default."""


def random_cases() -> list[Case]:
    """Networks drawn by `SEED`."""
    networks = [random_network(SEED, number) for number in range(RANDOM_NETWORKS)]
    return [
        Case("-".join(map(str, network.sizes)), network.sizes, network.batch_size, "regression", network.steps, 1)
        for network in networks
    ]


def measure(case: Case, method: str, pairs: int) -> dict[str, Any]:
    """Results of one network and one method; collective."""
    trainer, default = piped_run(case, {"method": method})
    layout, layers = trainer.layout, len(case.sizes) - 1
    options = {"method": method, "microbatches": layout.microbatches if METHODS[method].cuts_minibatches else None}
    runs = {
        str(first): piped_run(case, {**options, "partition": (first, layers - first)})[1] for first in range(1, layers)
    }
    seconds = in_turn(runs, ROUNDS, WORLD.Barrier)
    best = WORLD.bcast(min(seconds, key=lambda first: median(seconds[first])))
    return {
        **case.about,
        "way": method,
        "microbatches": layout.microbatches,
        "layers": list(layout.layers),
        "best_layers": [int(best), layers - int(best)],
        **alternate(default, runs[best], pairs, WORLD.Barrier).spread(),
    }


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    choice = read_choice(5)
    for case in choice.among([*CASES, *random_cases()]):
        for method in MEASURED:
            print_row(measure(case, method, choice.pairs))


if __name__ == "__main__":
    main()
