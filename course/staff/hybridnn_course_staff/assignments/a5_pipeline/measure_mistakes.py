"""Known mistakes in the measure of A5, each a complete wrong solution with a hint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from hybridnn.pipeline.schedules.instructions import Backward, Forward, Instruction
from hybridnn_course.assignment import Variant
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a5_pipeline.solution import measure_solution, peak_in_flight

Measured = tuple[list[list[float]], float, list[int]]
Measure = Callable[..., Measured]


def _ends_of(orders: Any, starts: Any, forward: float, backward: float) -> list[list[float]]:
    seconds = {Forward: forward, Backward: backward}
    return [
        [start + seconds.get(type(item), 0.0) for start, item in zip(row, order, strict=True)]
        for row, order in zip(starts, orders, strict=True)
    ]


def _never_waits(variant: Variant) -> Measure:
    def measure_orders(orders: Any, forward: float, backward: float, message: float) -> Measured:
        starts = []
        for order in orders:
            seconds = [_ends_of([[item]], [[0.0]], forward, backward)[0][0] for item in order]
            starts.append(list(accumulate(seconds, initial=0.0))[:-1])
        ends = _ends_of(orders, starts, forward, backward)
        end = max((max(row, default=0.0) for row in ends), default=0.0)
        busy = sum(row[-1] for row in ends if row)
        return starts, 1 - busy / (len(orders) * end) if end else 0.0, [peak_in_flight(order) for order in orders]

    return measure_orders


def _message_forgotten(variant: Variant) -> Measure:
    return lambda orders, forward, backward, message: measure_solution(variant)(orders, forward, backward, 0.0)


def _backward_as_forward(variant: Variant) -> Measure:
    return lambda orders, forward, backward, message: measure_solution(variant)(orders, forward, forward, message)


def _ends_returned(variant: Variant) -> Measure:
    def measure_orders(orders: Any, forward: float, backward: float, message: float) -> Measured:
        starts, bubble, in_flight = measure_solution(variant)(orders, forward, backward, message)
        return _ends_of(orders, starts, forward, backward), bubble, in_flight

    return measure_orders


def _bubble_over_busy(variant: Variant) -> Measure:
    def measure_orders(orders: Any, forward: float, backward: float, message: float) -> Measured:
        starts, bubble, in_flight = measure_solution(variant)(orders, forward, backward, message)
        return starts, bubble / (1 - bubble), in_flight

    return measure_orders


def _gaps_only(variant: Variant) -> Measure:
    def measure_orders(orders: Any, forward: float, backward: float, message: float) -> Measured:
        starts, _, in_flight = measure_solution(variant)(orders, forward, backward, message)
        spans = gaps = 0.0
        for row, ends in zip(starts, _ends_of(orders, starts, forward, backward), strict=True):
            span = ends[-1] - row[0]
            spans += span
            gaps += span - sum(end - start for start, end in zip(row, ends, strict=True))
        return starts, gaps / spans if spans else 0.0, in_flight

    return measure_orders


def _stops_silently(variant: Variant) -> Measure:
    def measure_orders(orders: Any, forward: float, backward: float, message: float) -> Measured:
        try:
            return measure_solution(variant)(orders, forward, backward, message)
        except ValueError:
            return [[] for _ in orders], 0.0, [0 for _ in orders]

    return measure_orders


def _in_flight_of(count: Callable[[Sequence[Instruction]], int]) -> Callable[[Variant], Measure]:
    def of_variant(variant: Variant) -> Measure:
        def measure_orders(orders: Any, forward: float, backward: float, message: float) -> Measured:
            starts, bubble, _ = measure_solution(variant)(orders, forward, backward, message)
            return starts, bubble, [count(order) for order in orders]

        return measure_orders

    return of_variant


def _after_backward(order: Sequence[Instruction]) -> int:
    counts, count = [0], 0
    for item in order:
        count += isinstance(item, Forward) - isinstance(item, Backward)
        counts += [count] if isinstance(item, Backward) else []
    return max(counts)


def _before_first_backward(order: Sequence[Instruction]) -> int:
    first = next((position for position, item in enumerate(order) if isinstance(item, Backward)), len(order))
    return sum(isinstance(item, Forward) for item in order[:first])


MEASURE = (
    Mistake(
        "never-waits",
        _never_waits,
        "Every stage computes its list without a pause from time 0 on. When does the first activation reach stage 1?",
    ),
    Mistake(
        "message-forgotten",
        _message_forgotten,
        "The messages take no time. What is the earliest start of the first forward pass of stage 1?",
    ),
    Mistake(
        "backward-as-forward",
        _backward_as_forward,
        "A backward pass takes as long as a forward pass. Which argument is its time?",
    ),
    Mistake(
        "ends-not-starts", _ends_returned, "These are the ends of the instructions. What does the docstring return?"
    ),
    Mistake(
        "bubble-over-busy",
        _bubble_over_busy,
        "The starts are right. The idle time was divided by the busy time, a ratio which other texts use and which may "
        "exceed 1. Of which time is the bubble the share here?",
    ),
    Mistake(
        "gaps-only",
        _gaps_only,
        "The starts are right. The bubble contains the time between the passes of a stage, but not the time before its "
        "first and after its last pass. From when to when does the docstring count?",
    ),
    Mistake(
        "stops-silently",
        _stops_silently,
        "Orders that cannot run give a result. What does the docstring ask for where a stage waits for ever?",
    ),
    Mistake(
        "counted-after-backward",
        _in_flight_of(_after_backward),
        "The starts are right. The microbatches in flight were counted after backward passes. When are there most?",
    ),
    Mistake(
        "counted-in-warm-up",
        _in_flight_of(_before_first_backward),
        "The starts are right. The forward passes before the first backward pass were counted. Can there be more in "
        "flight later?",
    ),
)
