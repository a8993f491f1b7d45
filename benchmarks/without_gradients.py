"""Weight gradients as products at the update, beside the same training with gradients in memory.

``python -m benchmarks.without_gradients``, or behind ``mpirun -n 2``.
"""

from __future__ import annotations

from statistics import median
from unittest.mock import patch

from benchmarks.cases import CASES, LARGE_BATCH, Case, our_run
from benchmarks.ranks import WORLD, meet
from benchmarks.timing import alternate
from hybridnn import ProcessGrid
from hybridnn.training import engine

PAIRS = 9


def measure(case: Case) -> str:
    """A line of figures; collective over the ranks."""
    without = our_run(case, ProcessGrid(WORLD))[1]
    with patch.object(engine, "takes_products", lambda *arguments, **settings: False):
        kept = our_run(case, ProcessGrid(WORLD))[1]
    turns = alternate(without, kept, PAIRS, meet)
    ours, theirs = (1e3 * median(taken) / case.steps for taken in (turns.ours, turns.theirs))
    name = f"{case.name}, batch {case.batch_size}, ranks {WORLD.size}"
    return (
        f"{name:40}{theirs:9.2f} ms with gradients {ours:9.2f} ms without: {median(turns.ratios):.2f} times as fast"
        f" ({min(turns.ratios):.2f}-{max(turns.ratios):.2f})"
    )


def main() -> None:
    """Measure the networks that are large enough."""
    for case in (*CASES[2:], LARGE_BATCH):
        line = measure(case)
        if WORLD.rank == 0:
            print(line, flush=True)


if __name__ == "__main__":
    main()
