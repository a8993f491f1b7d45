"""Alternating timing of programs, and statistics of the times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

__all__ = ["Comparison", "Run", "alternate", "in_turn", "seconds_of"]

Run = Callable[[], Any]
"""One timed run of a program."""


@dataclass(frozen=True)
class Comparison:
    """Pairs of runs of two programs, one directly after the other.

    Attributes
    ----------
    ours, theirs : list of float
        Seconds of every run.
    """

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
