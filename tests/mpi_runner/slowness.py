"""How much slower this machine is now than a quiet one, by which the deadlines of all tests are multiplied."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

__all__ = ["SLOWNESS", "deadline", "measure", "slowness"]

SLOWNESS = "HYBRIDNN_TEST_SLOWNESS"
"""Environment variable with the factor: set by the first process of a run, for all that it starts."""

NOMINAL_SECONDS = 0.2
"""What the work below takes on a quiet machine of 2024, the start of the process included."""

WORK = "import numpy; sum(range(100_000))"
ATTEMPTS = 3
MOST = 50.0
"""A run in which everything takes longer than this has other troubles than its deadlines."""


def measure() -> float:
    """Time a small piece of work of a process of its own, slowest of three, in units of `NOMINAL_SECONDS`; 1 to 50."""
    taken = []
    for _ in range(ATTEMPTS):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", WORK], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken.append(time.monotonic() - start)
    return min(max(1.0, max(taken) / NOMINAL_SECONDS), MOST)


@functools.cache
def slowness() -> float:
    """The factor of this run: that of the environment where one is given, otherwise measured, once.

    Raises
    ------
    ValueError
        If the environment gives what is not a number from 1 on.
    """
    given = os.environ.get(SLOWNESS)
    if given is None:
        return measure()
    factor = float(given)
    if not 1.0 <= factor < float("inf"):
        raise ValueError(f"{SLOWNESS}={given}: a number from 1 on")
    return factor


def deadline(seconds: float) -> float:
    """A deadline, given as seconds on a quiet machine, as seconds on this one."""
    return seconds * slowness()
