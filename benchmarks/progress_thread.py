"""Progress of an all-reduce during the backward pass: none, polling between layers, or a progress thread.

``mpirun -n 2 python -m benchmarks.progress_thread``. hybridnn uses polling; the threads belong to this benchmark. Every
rank has its own replica, like ranks on different nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from queue import Empty, SimpleQueue
from statistics import median
from threading import Event, Thread
from time import sleep
from traceback import print_exc
from typing import Any
from unittest.mock import patch

from mpi4py import MPI

from benchmarks.cases import CASES, LARGE_BATCH, Case, our_run
from benchmarks.choice import read_choice
from benchmarks.ranks import WORLD, print_row
from benchmarks.timing import Comparison, Run, in_turn
from hybridnn import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.parallel.gradient_reduction import GradientReducer

AFTER, POLLING = "after backward", "polling"

PAUSES = {"thread": 0.0, "thread, pausing": 0.0002}
"""Seconds between two polls of a thread: one thread polls continuously, another leaves the core to the products."""

NO_LAYER, FINISH = -1, -2
"""Commands to the thread other than layers: poll the messages in flight, and finish the all-reduce."""


class ThreadedReducer(GradientReducer):
    """Gradient reducer whose MPI calls are made by a thread.

    Parameters
    ----------
    group : Group
        Group of all ranks. The thread has its own communicator and recorder, because those of the trainer are not
        thread-safe.
    pause : float
        Seconds between two polls while messages are in flight.
    *arguments, **settings
        Further arguments of `GradientReducer`.
    """

    def __init__(self, group: Group, *arguments: Any, pause: float, **settings: Any) -> None:
        super().__init__(Group(WORLD.Dup(), group.axis, Recorder()), *arguments, **settings)
        self._commands: SimpleQueue[int] = SimpleQueue()
        self._ended = Event()
        Thread(target=self._serve, args=(pause,), daemon=True).start()

    def ready(self, layer: int) -> None:
        """Make the thread send the bucket of a layer."""
        self._commands.put(layer)

    def finish(self) -> None:
        """Wait until the thread has all-reduced the whole buffer."""
        self._commands.put(FINISH)
        self._ended.wait()
        self._ended.clear()

    def _serve(self, pause: float) -> None:
        try:
            for command in self._commands_or_polls(pause):
                if command == FINISH:
                    super().finish()
                    self._ended.set()
                else:
                    super().ready(command)
        except BaseException:  # otherwise the main threads would wait
            print_exc()
            WORLD.Abort(1)

    def _commands_or_polls(self, pause: float) -> Iterator[int]:
        """Yield commands, and polls while messages are in flight; otherwise wait for a command."""
        while True:
            try:
                yield self._commands.get(block=not self._in_flight)
            except Empty:
                yield NO_LAYER
                sleep(pause)


def runs_of(case: Case) -> dict[str, Run]:
    """Functions that make one timed run, by name."""

    def run_of(overlap: bool) -> Run:
        return our_run(case, ProcessGrid(WORLD), shared_replicas=False, overlap=overlap)[1]

    runs = {AFTER: run_of(False), POLLING: run_of(True)}
    for way, pause in PAUSES.items():
        with patch("hybridnn.parallel.gradient_reduction.GradientReducer", partial(ThreadedReducer, pause=pause)):
            runs[way] = run_of(True)
    return runs


def measure(case: Case, pairs: int) -> list[dict[str, Any]]:
    """Results of all methods from alternating runs; collective."""
    seconds = in_turn(runs_of(case), pairs, WORLD.Barrier)
    return [
        {
            "case": case.name,
            "batch_size": case.batch_size,
            "way": way,
            "ranks": WORLD.size,
            "ms_per_step": 1e3 * median(taken) / case.steps,
            **Comparison(taken, seconds[AFTER]).spread(),
        }
        for way, taken in seconds.items()
    ]


def main() -> None:
    """Measure the selected cases; rank 0 prints one JSON object per line."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        sys.exit("MPI was not initialized with MPI_THREAD_MULTIPLE")
    choice = read_choice()
    for case in choice.among([CASES[2], LARGE_BATCH]):
        for row in measure(case, choice.pairs):
            print_row(row)


if __name__ == "__main__":
    main()
