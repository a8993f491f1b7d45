"""Profile of training steps: ``python -m benchmarks.profile_steps NAME``, where NAME is part of the name of a network.

It uses one thread. The profiler overestimates the cost of calls, and thus of small networks.
"""

from __future__ import annotations

import cProfile
import pstats
import sys

from benchmarks.cases import CASES, our_run
from hybridnn import ProcessGrid

RUNS = 3
LINES = 16


def main() -> None:
    """Print the functions with the longest own time."""
    case = next(case for case in CASES if sys.argv[1] in case.name)
    _, run = our_run(case, ProcessGrid())
    run()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(RUNS):
        run()
    profiler.disable()
    print(f"{case.name}, batch {case.batch_size}: {RUNS * case.steps} steps")
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main()
