"""Slowness of this machine relative to an idle one, by which the deadlines of tests are multiplied."""

import functools
import os
import time
from collections.abc import Callable

SLOWNESS = "HYBRIDNN_TEST_SLOWNESS"
"""Environment variable that sets the factor; without it, the factor is measured when a deadline is set."""

WORK = 500_000
NOMINAL_SECONDS = 0.03
"""Seconds of the sum of the first `WORK` integers in a process that has a core of an idle machine for itself."""

FRESH_SECONDS = 5.0
"""Age from which a measurement is repeated: thousands of tests set a deadline."""

MOST = 50.0
"""Limit of the factor."""


@functools.lru_cache(maxsize=1)
def _measured_in(period: int) -> float:
    """The slowness, between 1 and 50, in a period of `FRESH_SECONDS`.

    Other processes slow this one down, or will: the time of a piece of work shows the first, the load of the cores
    over the last minute the second.
    """
    start = time.monotonic()
    sum(range(WORK))
    taken = time.monotonic() - start
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1.0, taken / NOMINAL_SECONDS, os.getloadavg()[0] / cores), MOST)


def deadline(seconds: float) -> float:
    """Convert a time limit in seconds on an idle machine into seconds on this machine, as busy as it is now."""
    return seconds * float(os.environ.get(SLOWNESS) or _measured_in(int(time.monotonic() / FRESH_SECONDS)))


def wait_until(
    condition: Callable[[], object], seconds: float, what: str = "", why_not: Callable[[], str] = lambda: ""
) -> None:
    """Wait for `condition`; at the deadline, fail with `what` and the text of `why_not`."""
    limit = deadline(seconds)
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"after {limit:g} s still waiting until {what}\n{why_not()}"
        time.sleep(0.02)
