"""Cost of the recorder and the watchdog per step: ``mpirun -n 2 python -m benchmarks.recording``.

The noise of whole steps exceeds a difference of one per cent. So the events of a step are counted, and the time of one
event, an instruction or a collective, is measured separately while the watchdog runs.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

from benchmarks.cases import CASES, our_run
from benchmarks.timing import seconds_of
from hybridnn import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder

CALLS = 20_000
ROUNDS = 9
COMM = MPI.COMM_WORLD


def seconds_per_event(recorder: Recorder) -> float:
    """Seconds to record the end of an instruction, with two readings of the clock."""

    def run() -> None:
        for _ in range(CALLS):
            recorder.end_compute("forward", perf_counter())

    return median(seconds_of(run) for _ in range(ROUNDS)) / CALLS


def seconds_per_call(recorder: Recorder) -> float:
    """Seconds to record begin and end of a collective."""
    group, dtype = Group(None, "batch", recorder, members=range(2)), np.dtype(np.float32)

    def run() -> None:
        for _ in range(CALLS):
            group._finish(group._begin("allreduce", 400, dtype, reduction="sum"))

    return median(seconds_of(run) for _ in range(ROUNDS)) / CALLS


def main() -> None:
    """Print the share of a step for the smallest network, on all ranks as a batch group."""
    case = CASES[0]
    grid = ProcessGrid(COMM)
    _, run = our_run(case, grid)
    run()
    seconds = median(seconds_of(run) for _ in range(ROUNDS)) / case.steps  # the trainer has started the watchdog
    before = grid.recorder.finished
    run()
    events = (grid.recorder.finished - before) / case.steps
    each, calls = seconds_per_event(grid.recorder), seconds_per_call(grid.recorder)
    if grid.rank == 0:
        print(f"{case.name}, {grid.size} ranks: {1e6 * seconds:.0f} us per step, {events:.1f} events per step")
        print(f"{1e9 * each:.0f} ns per instruction, {1e9 * calls:.0f} ns per collective")
        print(f"at most {events * max(each, calls) / seconds:.2%} of a step")


if __name__ == "__main__":
    main()
