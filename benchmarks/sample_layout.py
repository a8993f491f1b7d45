"""Comparison of the two layouts of activations: contiguous samples, or contiguous features.

``python -m benchmarks.sample_layout``, with one process of one thread, prints for every network the median of the
ratios of alternating runs, and the choice of `samples_are_contiguous`, in both precisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.cases import CASES, Case, our_run
from benchmarks.timing import seconds_of
from hybridnn import ProcessGrid
from hybridnn.parallel.workspace import samples_are_contiguous

ROUNDS = 21
SHORT = 10
"""Limit of minibatches per run, because many short runs are more precise than a few long ones."""


def run_with(case: Case, dtype: str, *, whole: bool) -> Callable[[], Any]:
    """A function that makes one timed run; the layout is chosen in a first run."""
    with patch("hybridnn.parallel.workspace.samples_are_contiguous", lambda n, dtype: whole):
        _, run = our_run(case, ProcessGrid(), dtype=dtype)
        run()
    return run


def measure(case: Case, dtype: str) -> float:
    """Speed of steps with contiguous samples over that with contiguous features."""
    short = replace(case, minibatches=min(case.minibatches, SHORT), epochs=1)
    whole, split = (run_with(short, dtype, whole=which) for which in (True, False))
    ratios = []
    for number in range(ROUNDS):
        runs = (whole, split) if number % 2 else (split, whole)
        seconds = {run: seconds_of(run) for run in runs}
        ratios.append(seconds[split] / seconds[whole])
    return median(ratios)


def main() -> None:
    """Measure all cases, with the usual and with half the batch size."""
    for dtype, case in product(("float32", "float64"), CASES):
        for size in (case.batch_size, case.batch_size // 2):
            ratio = measure(replace(case, batch_size=size), dtype)
            chosen = "whole" if samples_are_contiguous(size, dtype) else "split"
            print(f"{dtype} {case.name:32} batch {size:4}: whole {ratio:.3f} times as fast as split; chosen: {chosen}")


if __name__ == "__main__":
    main()
