"""What moves an all-reduce while the backward pass computes: nothing, polling between layers, or a thread beside.

``mpirun -n 2 python -m benchmarks.progress_thread``. The package polls; the threads are this benchmark's own. Every
rank has its replica, as ranks on different nodes have.
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
from benchmarks.ranks import WORLD, tell
from benchmarks.timing import Comparison, Run, in_turn
from hybridnn import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.parallel.gradient_reduction import GradientReducer

AFTER, POLLING = "after backward", "polling"

PAUSES = {"thread": 0.0, "thread, pausing": 0.0002}
"""Seconds between two looks of a thread at the messages: one always looks, another leaves the core to the products."""

NO_LAYER, THE_END = -1, -2
"""Orders to a thread beside layers: to look at what is in flight, and to end it."""


class ThreadedReducer(GradientReducer):
    """Sums gradients as its base does, but in a thread, which makes all MPI calls of the sum.

    Parameters
    ----------
    group : Group
        Ranks of `WORLD`, all of them. The thread has a communicator and a recorder of its own, as those of the trainer
        are for one thread.
    pause : float
        Seconds that the thread sleeps between two looks while messages are in flight.
    *arguments, **settings
        The others of `GradientReducer`.
    """

    def __init__(self, group: Group, *arguments: Any, pause: float, **settings: Any) -> None:
        super().__init__(Group(WORLD.Dup(), group.axis, Recorder()), *arguments, **settings)
        self._orders: SimpleQueue[int] = SimpleQueue()
        self._ended = Event()
        Thread(target=self._serve, args=(pause,), daemon=True).start()

    def ready(self, layer: int) -> None:
        """Let the thread send what is due."""
        self._orders.put(layer)

    def finish(self) -> None:
        """Return when the thread has summed the whole buffer."""
        self._orders.put(THE_END)
        self._ended.wait()
        self._ended.clear()

    def _serve(self, pause: float) -> None:
        try:
            for order in self._orders_or_looks(pause):
                if order == THE_END:
                    super().finish()
                    self._ended.set()
                else:
                    super().ready(order)
        except BaseException:  # the main threads would wait for ever
            print_exc()
            WORLD.Abort(1)

    def _orders_or_looks(self, pause: float) -> Iterator[int]:
        """Orders as they come; between them looks while something is in flight, else sleep."""
        while True:
            try:
                yield self._orders.get(block=not self._in_flight)
            except Empty:
                yield NO_LAYER
                sleep(pause)


def runs_of(case: Case) -> dict[str, Run]:
    """A function for every way that makes one timed run."""

    def run_of(overlap: bool) -> Run:
        return our_run(case, ProcessGrid(WORLD), shared_replicas=False, overlap=overlap)[1]

    runs = {AFTER: run_of(False), POLLING: run_of(True)}
    for way, pause in PAUSES.items():
        with patch("hybridnn.parallel.replicas.replica.GradientReducer", partial(ThreadedReducer, pause=pause)):
            runs[way] = run_of(True)
    return runs


def measure(case: Case, pairs: int) -> list[dict[str, Any]]:
    """Figures of every way, whose runs take turns; collective over the ranks."""
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
    """Measure what was asked for; rank 0 prints one JSON object per line."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        sys.exit("this MPI library was not started so that several threads may call it")
    choice = read_choice()
    for case in choice.among([CASES[2], LARGE_BATCH]):
        for row in measure(case, choice.pairs):
            tell(row)


if __name__ == "__main__":
    main()
