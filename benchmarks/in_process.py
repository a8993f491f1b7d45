"""Ranks in one process: the time of a training on four ranks, and the cost of the engine.

``python -m benchmarks.in_process [--pairs N]`` prints a JSON object for each row. Trainings are timed by the wall
clock, and the engine by the CPU time of this process, which depends less on other programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.choice import read_choice
from benchmarks.timing import alternate
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.cost.collectives import counts
from hybridnn.data import load_dataset
from hybridnn.data.preparation import split
from hybridnn.in_process import run_ranks

DIGITS = Case("64-256-256-10", (64, 256, 256, 10), 100, "classification", 15, 1, stages=(2, 1))
"""The default network and minibatches of ``hybridnn train`` for the data set digits."""

ROOT = Path(__file__).parents[1]
EPOCHS = 10
CALLS = 1000
RANKS = 4
STARTED = 8

ALPHA, BETA = 2e-6, 1e-9

ASKED_TIMES, ASKED_SECONDS, ASKED_MICROSECONDS, ASKED_ERROR = 1.5, 0.1, 50.0, 1e-12
"""Targets: time relative to one process, seconds of a start, microseconds of a message, relative error of the clock."""

Program = Callable[[Any, int], Any]


# -- trainings -------------------------------------------------------------------------------------------------------


def train(comm: Any, axes: dict[str, int], epochs: int) -> float:
    """Train digits on a grid with an evaluation after every epoch; return the last loss."""
    training, test = split(load_dataset("digits").train, 0.2, 0)
    trainer = Trainer(MLP(list(DIGITS.sizes)), SGD(), grid=ProcessGrid(comm, **axes), batch_size=DIGITS.batch_size)
    return trainer.fit(training, epochs=epochs, validation=(test, None)).epochs[-1].train_loss


def train_one(epochs: int = EPOCHS) -> float:
    """Train on one rank; return the loss."""
    loss: float = run_ranks(1, train, {}, epochs).results[0]
    return loss


def train_four(epochs: int = EPOCHS) -> float:
    """Train on 2 x 2 ranks; return the loss."""
    loss: float = run_ranks(RANKS, train, {"batch": 2, "model": 2}, epochs).results[0]
    return loss


def run_program(name: str, epochs: int) -> None:
    """Run a training in a separate process, including the start of Python."""
    program = f"from benchmarks.in_process import {name}; {name}({epochs})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def trainings(pairs: int, epochs: int = EPOCHS) -> Iterator[dict[str, Any]]:
    """Results of the training on four ranks and on one, alone and as programs."""
    ways = {
        "training": (partial(train_four, epochs), partial(train_one, epochs)),
        "program": (partial(run_program, "train_four", epochs), partial(run_program, "train_one", epochs)),
    }
    for way, (four, one) in ways.items():
        compared = alternate(four, one, pairs)
        yield {
            "case": DIGITS.name,
            "batch_size": DIGITS.batch_size,
            "way": way,
            "seconds_of_four": median(compared.ours),
            "seconds_of_one": median(compared.theirs),
            "asked_times": ASKED_TIMES,
            **compared.spread(),
        }


# -- the engine ------------------------------------------------------------------------------------------------------


def pairs_of_ranks(comm: Any, calls: int) -> None:
    """Pairs of neighbours exchange an array by blocking messages."""
    array, other = np.ones(8), comm.rank ^ 1
    for _ in range(calls):
        if comm.rank < other:
            comm.Send(array, other)
            comm.Recv(array, other)
        else:
            comm.Recv(array, other)
            comm.Send(array, other)


def ring(comm: Any, calls: int) -> None:
    """Every rank sends to the right while it receives from the left."""
    own, left = np.ones(8), np.empty(8)
    for _ in range(calls):
        comm.Sendrecv(own, (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)


def nonblocking(comm: Any, calls: int) -> None:
    """Like `ring`, with non-blocking messages."""
    own, left = np.ones(8), np.empty(8)
    for _ in range(calls):
        receive = comm.Irecv(left, (comm.rank - 1) % comm.size)
        send = comm.Isend(own, (comm.rank + 1) % comm.size)
        receive.Wait()
        send.Wait()


def allreduces(comm: Any, calls: int) -> None:
    """All-reduce an array; the call of each rank counts as a message."""
    array = np.zeros(8)
    for _ in range(calls):
        comm.Allreduce("IN_PLACE", array)


PATTERNS: dict[str, Program] = {
    "Send and Recv": pairs_of_ranks,
    "Sendrecv in a ring": ring,
    "Isend and Irecv in a ring": nonblocking,
    "Allreduce, each rank": allreduces,
}
"""Programs in which every rank sends one message of 64 bytes per call."""


def seconds_per_message(program: Program, calls: int, rounds: int) -> float:
    """CPU time of a message, including the sending and the receiving call."""

    def once() -> float:
        start = process_time()
        run_ranks(RANKS, program, calls)
        return process_time() - start

    once()
    return median(once() for _ in range(rounds)) / (RANKS * calls)


def seconds_to_start(rounds: int) -> float:
    """Seconds to start and end ranks that do nothing."""

    def once() -> float:
        start = perf_counter()
        run_ranks(STARTED, lambda comm: None)
        return perf_counter() - start

    return median(once() for _ in range(rounds))


def ring_allreduce(comm: Any, numbers: int) -> None:
    """All-reduce an array by messages in a ring."""
    blocks, got = np.split(np.ones(numbers), comm.size), np.empty(numbers // comm.size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(2 * (comm.size - 1)):
        out, into = blocks[(comm.rank - step) % comm.size], blocks[(comm.rank - step - 1) % comm.size]
        comm.Sendrecv(out, right, recvbuf=got, source=left)
        into[...] = into + got if step < comm.size - 1 else got


def clock_error(ranks: int, numbers: int) -> float:
    """Relative error of the clock of a ring all-reduce."""
    clock = run_ranks(ranks, ring_allreduce, numbers, alpha=ALPHA, beta=BETA).clock
    expected = counts("allreduce", "ring", 8 * numbers, ranks).seconds(ALPHA, BETA)
    return max(abs(seconds / expected - 1) for seconds in clock)


def engine(rounds: int, calls: int = CALLS) -> Iterator[dict[str, Any]]:
    """Results of the engine, with their targets."""
    yield row(f"start and end of {STARTED} ranks", "s", seconds_to_start(rounds), ASKED_SECONDS)
    for name, program in PATTERNS.items():
        yield row(f"message: {name}", "µs", 1e6 * seconds_per_message(program, calls, rounds), ASKED_MICROSECONDS)
    for ranks in (2, 4, 7):
        error = clock_error(ranks, 1000 * ranks)
        yield row(f"clock of a ring all-reduce of {ranks} ranks", "relative error", error, ASKED_ERROR)


def row(quantity: str, unit: str, measured: float, asked: float) -> dict[str, Any]:
    """A result of the engine."""
    return {"quantity": quantity, "unit": unit, "measured": measured, "asked": asked}


def main() -> None:
    """Print the rows."""
    choice = read_choice()
    if choice.among([DIGITS]):
        for figures in trainings(choice.pairs):
            print(json.dumps(figures), flush=True)
    for figures in engine(choice.pairs):
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
