"""Cost of a function without a clock: Python loops over elements, and memory of temporary arrays.

Both are counted, so the same code gets the same points on every machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from hybridnn_course.answers import MEASURED, Answer
from hybridnn_course.assignment import Bound

MORE_ITERATIONS = 99  # of a loop, in a call with larger arrays: over a few blocks, but not over an axis
TEMPORARY_BYTES = 1 << 18  # memory that a call may allocate
LOOPS, TEMPORARIES = "Python loops over elements", "temporary arrays of more than 256 KiB"


def measure(small: Callable[[], object], large: Callable[[], object]) -> dict[str, int]:
    """Whether a call loops over elements in Python, and whether it allocates large arrays; 0 or 1 each.

    Parameters
    ----------
    small, large : callable
        The same call with small arrays, and with arrays larger than `TEMPORARY_BYTES`, whose axes are longer by more
        than 100.
    """
    few, _ = _run(small)  # also imports what the function imports
    many, peak = _run(large)
    return {LOOPS: int(many > few + MORE_ITERATIONS), TEMPORARIES: int(peak > TEMPORARY_BYTES)}


def measured_bounds(answer: Answer) -> Sequence[Bound]:
    """Bounds of an answer with measured amounts, of which none may be above 0; none of another answer."""
    measured = answer.outputs[0].get(MEASURED)
    if not isinstance(measured, dict):
        return []
    return [Bound(name, 1 - (measured.get(name) == 0), 0, 1) for name in (LOOPS, TEMPORARIES)]


def _run(call: Callable[[], object]) -> tuple[int, int]:
    """How often a call executes one line at most, and the most bytes that it has allocated at a time."""
    with _counting_lines() as lines, _tracing_memory():
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        peak = tracemalloc.get_traced_memory()[1] - before
    return max(lines.values(), default=0), peak


@contextmanager
def _counting_lines() -> Iterator[Counter[tuple[CodeType, int]]]:
    """Executions by line: a line in a loop, or of a function that one calls, is executed in every iteration."""
    count: Counter[tuple[CodeType, int]] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            count[frame.f_code, frame.f_lineno] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


@contextmanager
def _tracing_memory() -> Iterator[None]:
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
