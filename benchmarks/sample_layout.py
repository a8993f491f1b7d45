"""Steps with samples whole in memory beside steps with the same feature of all samples side by side.

``python -m benchmarks.sample_layout``, one process of one thread: for every network the median of the ratios of
alternating runs, and what `samples_are_contiguous` chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.cases import CASES, Case, our_run
from benchmarks.timing import seconds_of
from hybridnn import ProcessGrid
from hybridnn.parallel.workspace import samples_are_contiguous

ROUNDS = 21
SHORT = 10
"""Minibatches of a run at most, in one epoch: many short runs tell more than a few long ones."""


def run_with(case: Case, *, whole: bool) -> Callable[[], Any]:
    """A function that makes one timed run; the layout is settled in the run that this does first."""
    with patch("hybridnn.parallel.workspace.samples_are_contiguous", lambda n: whole):
        _, run = our_run(case, ProcessGrid())
        run()
    return run


def measure(case: Case) -> float:
    """How many times as fast steps are with whole samples."""
    short = replace(case, minibatches=min(case.minibatches, SHORT), epochs=1)
    whole, split = (run_with(short, whole=which) for which in (True, False))
    ratios = []
    for number in range(ROUNDS):
        runs = (whole, split) if number % 2 else (split, whole)
        seconds = {run: seconds_of(run) for run in runs}
        ratios.append(seconds[split] / seconds[whole])
    return median(ratios)


def main() -> None:
    """Measure all cases, with whole minibatches and with half of them."""
    for case in CASES:
        for size in (case.batch_size, case.batch_size // 2):
            ratio = measure(replace(case, batch_size=size))
            chosen = "whole" if samples_are_contiguous(size) else "split"
            print(f"{case.name:32} batch {size:4}: whole {ratio:.3f} times as fast as split; chosen: {chosen}")


if __name__ == "__main__":
    main()
