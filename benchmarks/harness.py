"""What all benchmarks have in common: their options, their processes of one thread each, and timing in turn.

``python -m benchmarks.NAME [--pairs N] [WORD ...]`` selects networks and the number of runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.cases import Case
from hybridnn.comm.launcher import RankLauncher

# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Options of a command."""

    words: tuple[str, ...]  # networks whose ``name@batch`` contains one of them are measured; all if it is empty
    pairs: int  # runs of each program

    def among(self, cases: Iterable[Case]) -> list[Case]:
        """The selected cases, in their order."""
        return [
            case
            for case in cases
            if not self.words or any(word in f"{case.name}@{case.batch_size}" for word in self.words)
        ]


def read_choice(pairs: int = 9) -> Choice:
    """Parse the command line; `pairs` is the default number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of name@batch of a network")
    parser.add_argument("--pairs", type=int, default=pairs, help="runs of each program (default: %(default)s)")
    arguments = parser.parse_args()
    return Choice(tuple(arguments.words), arguments.pairs)


# -- processes ---------------------------------------------------------------------------------------------------------

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
STARTS = 3  # attempts to start: a launcher sometimes fails directly after another one has ended


def run_lines(ranks: int, module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a module of this package on `ranks` ranks; return its results, which it prints as one JSON object per line.

    A job that fails without output is started again.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = os.environ | ONE_THREAD
    if ranks > 1:
        launcher = RankLauncher.find(environment)
        environment |= launcher.settings(ranks, environment)
        command = launcher.command(ranks, command, environment)
    for start in range(1, STARTS + 1):
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.stdout.strip() or start == STARTS:
            done.check_returncode()
        if done.returncode == 0:
            break
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


# -- timing ------------------------------------------------------------------------------------------------------------

Run = Callable[[], Any]
"""One timed run of a program."""


@dataclass(frozen=True)
class Comparison:
    """Seconds of pairs of runs of two programs, one directly after the other."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Speed of our program over that of the other, for each pair."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    def spread(self) -> dict[str, float]:
        """The median ratio, and the extremes."""
        return {
            "ratio": median(self.ratios),
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
            "pairs": len(self.ours),
        }

    def summary(self, samples: int) -> dict[str, float]:
        """Medians over the runs, of `samples` samples each, and the spread of the ratio."""
        return {
            "our_samples_per_second": samples / median(self.ours),
            "their_samples_per_second": samples / median(self.theirs),
            **self.spread(),
        }


def seconds_of(run: Run) -> float:
    """Wall time of one run."""
    start = perf_counter()
    run()
    return perf_counter() - start


def in_turn(runs: Mapping[str, Run], rounds: int, before: Run = lambda: None) -> dict[str, list[float]]:
    """Seconds of every run, one after the other in each round, without a first warm-up round.

    `before` is called before every timing, for example a barrier.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            before()
            taken = seconds_of(run)
            if number:
                seconds[name].append(taken)
    return seconds


def alternate(ours: Run, theirs: Run, pairs: int, before: Run = lambda: None) -> Comparison:
    """Time two programs alternately after one warm-up run of each; `before` is that of `in_turn`."""
    return Comparison(**in_turn({"ours": ours, "theirs": theirs}, pairs, before))
