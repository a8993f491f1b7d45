"""Alternating timings of two programs, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

__all__ = ["Comparison", "alternate", "seconds_of"]


@dataclass(frozen=True)
class Comparison:
    """Pairs of runs of two programs, one right after the other.

    Attributes
    ----------
    ours, theirs : list of float
        Seconds of every run.
    """

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times faster ours was, pair by pair."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    def summary(self, samples: int) -> dict[str, float]:
        """Medians over the runs, of `samples` samples each, and the spread of the ratio."""
        return {
            "our_samples_per_second": samples / median(self.ours),
            "their_samples_per_second": samples / median(self.theirs),
            "ratio": median(self.ratios),
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
            "pairs": len(self.ours),
        }


def seconds_of(run: Callable[[], Any]) -> float:
    """Wall time of one run."""
    start = perf_counter()
    run()
    return perf_counter() - start


def alternate(
    ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int, before: Callable[[], Any] = lambda: None
) -> Comparison:
    """Time the two in turn after a run of each that is not counted.

    `before` goes ahead of every timing: a barrier, where there are several ranks.
    """
    comparison = Comparison()
    ours()
    theirs()
    for _ in range(pairs):
        before()
        comparison.ours.append(seconds_of(ours))
        before()
        comparison.theirs.append(seconds_of(theirs))
    return comparison
