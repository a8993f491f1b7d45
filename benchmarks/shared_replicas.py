"""Two ranks with a shared replica: comparison with one rank, and with two ranks with one replica each.

``mpirun -n 2 python -m benchmarks.shared_replicas [WORD ...]``
"""

from __future__ import annotations

from statistics import median
from typing import Any

from mpi4py import MPI

from benchmarks.cases import CASES, LARGE_BATCH, Case, our_run
from benchmarks.harness import Comparison, Run, in_turn, read_choice
from benchmarks.ranks import WORLD, idle_barrier, print_row
from hybridnn import ProcessGrid

ONE, OWN, SHARED = "one", "own", "shared"


def measure(case: Case, pairs: int) -> dict[str, Any]:
    """Results of a case from alternating runs; collective."""
    runs: dict[str, Run] = {
        ONE: our_run(case, ProcessGrid(MPI.COMM_SELF))[1] if WORLD.rank == 0 else lambda: None,
        OWN: our_run(case, ProcessGrid(WORLD), shared_replicas=False)[1],
        SHARED: our_run(case, ProcessGrid(WORLD), shared_replicas=True)[1],
    }
    seconds = in_turn(runs, pairs, idle_barrier)
    return {
        **case.about,
        "ranks": WORLD.size,
        "ms_per_step": {name: 1e3 * median(taken) / case.steps for name, taken in seconds.items()},
        **Comparison(seconds[SHARED], seconds[ONE]).spread(),
        "own_over_one": Comparison(seconds[OWN], seconds[ONE]).spread(),
        "shared_over_own": Comparison(seconds[SHARED], seconds[OWN]).spread(),
    }


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    choice = read_choice()
    for case in choice.among([*CASES, LARGE_BATCH]):
        print_row(measure(case, choice.pairs))


if __name__ == "__main__":
    main()
