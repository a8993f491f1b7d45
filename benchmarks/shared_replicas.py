"""Two ranks that share a replica, beside one rank alone, and beside two ranks with a replica each.

``mpirun -n 2 python -m benchmarks.shared_replicas``; with words behind it, only the cases that have one in their name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import sleep
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, LEARNING_RATE, MOMENTUM, Case, make_data
from benchmarks.timing import seconds_of
from hybridnn import MLP, SGD, ProcessGrid, Trainer

ROUNDS = 9

POLL_SECONDS = 0.001
"""Between two looks of a rank that has nothing to do and is to leave the machine to the others."""

ONE, OWN, SHARED = "one rank", "own replicas", "shared replicas"


def cases() -> list[Case]:
    """The networks of the other benchmarks, and a larger minibatch of the largest."""
    *small, large = CASES
    return [*small, large, replace(large, batch_size=512)]


def run_of(case: Case, grid: ProcessGrid, *, is_shared: bool) -> Callable[[], Any]:
    """A function that makes one timed run."""
    optimizer = SGD(LEARNING_RATE, MOMENTUM)
    trainer = Trainer(MLP(case.sizes), optimizer, grid=grid, batch_size=case.batch_size, shared_replicas=is_shared)
    x, y = make_data(case)
    return lambda: trainer.fit(x, y, epochs=case.epochs)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Figures of a case, of runs that take turns; collective over the ranks."""
    world = MPI.COMM_WORLD
    runs = {
        ONE: run_of(case, ProcessGrid(MPI.COMM_SELF), is_shared=False) if world.rank == 0 else lambda: None,
        OWN: run_of(case, ProcessGrid(world), is_shared=False),
        SHARED: run_of(case, ProcessGrid(world), is_shared=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            meet(world)
            taken = seconds_of(run)
            if number:  # the first round warms up
                seconds[name].append(taken)
    steps = case.minibatches * case.epochs
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "ranks": world.size,
        "rounds": rounds,
        "ms_per_step": {name: 1e3 * median(taken) / steps for name, taken in seconds.items()},
        "own over one": speed_up(seconds[ONE], seconds[OWN]),
        "shared over one": speed_up(seconds[ONE], seconds[SHARED]),
        "shared over own": speed_up(seconds[OWN], seconds[SHARED]),
    }


def meet(world: MPI.Intracomm) -> None:
    """Wait for all ranks, asleep."""
    everyone = world.Ibarrier()
    while not everyone.Test():
        sleep(POLL_SECONDS)


def speed_up(before: list[float], after: list[float]) -> dict[str, float]:
    """How many times faster, round by round: the median and the extremes."""
    ratios = [one / other for one, other in zip(before, after, strict=True)]
    return {"median": median(ratios), "least": min(ratios), "most": max(ratios)}


def main() -> None:
    """Measure all cases; rank 0 prints one JSON object per line."""
    words = sys.argv[1:]
    for case in cases():
        if not words or any(word in f"{case.name}@{case.batch_size}" for word in words):
            figures = measure(case, ROUNDS)
            if MPI.COMM_WORLD.rank == 0:
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
