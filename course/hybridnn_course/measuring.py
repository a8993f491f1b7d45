"""Cost of a function without a clock: Python loops over elements, and memory of temporary arrays.

Both are counted, so the same code gets the same points on every machine. A loop inside a function written in C, such as
``list(map(add, a, b))``, is counted where it iterates over an argument, or over an array that NumPy made of arguments.
It is not seen where it reads the memory in another way: ``np.asarray(a)``, ``memoryview(a)``, ``a.flat``,
``map(a.item, range(n))``, ``np.frompyfunc(add, 2, 1)(a, b)``. On what the first two return, nothing can be counted; so
to count the others would close no gap.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.answers import MEASURED, Answer
from hybridnn_course.assignment import Bound, Function

MORE_ITERATIONS = 99  # of a loop, in a call with larger arrays: over a few blocks, but not over an axis
TEMPORARY_BYTES = 1 << 18  # memory that a call may allocate
NO_AMOUNT = 1 << 60  # stands for an amount that a submission has replaced by something else
LOOPS, TEMPORARIES = "Python loops over elements", "temporary arrays of more than 256 KiB"


class CountedArray(np.ndarray[Any, Any]):
    """An array that counts the iterations over it, and is otherwise as any array."""

    iterations = 0  # over all arrays
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return map(_noted, super().__iter__())

    def tolist(self) -> Any:
        """The elements as Python's numbers."""
        CountedArray.iterations += self.size
        return super().tolist()

    def __array_wrap__(self, array: NDArray[Any], context: Any = None, return_scalar: bool = False) -> Any:
        """A result of NumPy: a number where it is one for plain arrays."""
        return array[()] if return_scalar and not array.ndim else super().__array_wrap__(array, context, return_scalar)


def _noted(item: Any) -> Any:
    CountedArray.iterations += 1
    return item


def counted(function: Function) -> Function:
    """The function, whose arguments count iterations; two that are the same array remain so."""

    def called(*arguments: Any) -> Any:
        views = {id(one): one.view(CountedArray) for one in arguments if isinstance(one, np.ndarray)}
        return function(*(views.get(id(one), one) for one in arguments))

    return called


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
    if not isinstance(answer.outputs[0].get(MEASURED), dict):
        return []
    return [Bound(name, min(measured_amount(answer, name), 1), 0, 1) for name in (LOOPS, TEMPORARIES)]


def measured_amount(answer: Answer, name: str) -> int:
    """A measured amount, which comes from the process of a submission."""
    measured = answer.outputs[0].get(MEASURED)
    amount = measured.get(name) if isinstance(measured, dict) else None
    return amount if isinstance(amount, int) and 0 <= amount < NO_AMOUNT else NO_AMOUNT


def _run(call: Callable[[], object]) -> tuple[int, int]:
    """The most executions of a line or iterations over arrays, and the most bytes allocated at a time."""
    with _counting_lines() as lines, _tracing_memory():
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        iterations = CountedArray.iterations
        call()
        peak = tracemalloc.get_traced_memory()[1] - before
    return max([CountedArray.iterations - iterations, *lines.values()]), peak


@contextmanager
def _counting_lines() -> Iterator[Counter[tuple[CodeType, int]]]:
    """Executions by line: a line in a loop, or of a function that one calls, is executed in every iteration."""
    count: Counter[tuple[CodeType, int]] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == _run.__code__.co_filename:
            return None  # `CountedArray`
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
