"""Slowness of this machine relative to an idle one, by which the deadlines of all tests are multiplied."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

__all__ = ["SLOWNESS", "deadline", "measure", "slowness"]

SLOWNESS = "HYBRIDNN_TEST_SLOWNESS"
"""Environment variable of the factor, which the first process of a run sets for its child processes."""

NOMINAL_SECONDS = 0.2
"""Seconds of the work below on an idle machine of 2024, including the start of the process."""

WORK = "import numpy; sum(range(100_000))"
ATTEMPTS = 3
MOST = 50.0
"""Limit of the factor."""


def measure() -> float:
    """Time of a small process, the slowest of three, in units of `NOMINAL_SECONDS`, between 1 and 50."""
    taken = []
    for _ in range(ATTEMPTS):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", WORK], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken.append(time.monotonic() - start)
    return min(max(1.0, max(taken) / NOMINAL_SECONDS), MOST)


@functools.cache
def slowness() -> float:
    """The factor of this run, from the environment variable or measured once.

    Raises
    ------
    ValueError
        If the environment variable is not a number of at least 1.
    """
    text = os.environ.get(SLOWNESS)
    if text is None:
        return measure()
    factor = float(text)
    if not 1.0 <= factor < float("inf"):
        raise ValueError(f"{SLOWNESS}={text}: must be a number of at least 1")
    return factor


def deadline(seconds: float) -> float:
    """Convert a time limit in seconds on an idle machine into seconds on this machine."""
    return seconds * slowness()
