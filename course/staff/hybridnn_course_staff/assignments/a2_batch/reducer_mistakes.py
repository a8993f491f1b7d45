"""Known wrong solutions of A2: the reducer whose all-reduces overlap the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridnn_course.assignment import Variant
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a2_batch.solution import reducer_solution

Methods = dict[str, Callable[..., Any]]


def _with(make: Callable[[type], Methods]) -> Callable[[Variant], type]:
    """A reducer with wrong methods, which `make` returns by name, from the right class."""

    def wrong(variant: Variant) -> type:
        right = reducer_solution(variant)
        return type("GradientReducer", (right,), make(right))

    return wrong


def _does_not_wait(_: Any) -> Methods:
    return {"finish": lambda self: float(self._buffer[self._place])}


def _waits_for_last(right: Any) -> Methods:
    def finish(self: Any) -> float:
        del self._requests[:-1]
        return float(right.finish(self))

    return {"finish": finish}


def _waits_at_once(right: Any) -> Methods:
    def ready(self: Any, layer: int) -> None:
        right.ready(self, layer)
        right.finish(self)

    return {"ready": ready}


def _begins_in_finish(right: Any) -> Methods:
    def finish(self: Any) -> float:
        for layer in self._buckets:
            right.ready(self, layer)
        return float(right.finish(self))

    return {"ready": lambda self, layer: None, "finish": finish}


def _one_at_the_end(right: Any) -> Methods:
    def finish(self: Any) -> float:
        self._requests.append(self._group.iallreduce(self._buffer))
        return float(right.finish(self))

    return {"ready": lambda self, layer: None, "finish": finish}


def _begins_too_early(right: Any) -> Methods:
    def ready(self: Any, layer: int) -> None:
        """Begin a bucket when its first gradient is complete."""
        if not self._left:
            self._left = list(self._buckets)
            right.ready(self, self._left[0])
        elif layer < self._left[0]:
            del self._left[0]
            right.ready(self, self._left[0])
        if layer == 0:
            self._left = []

    def init(self: Any, *arguments: Any) -> None:
        right.__init__(self, *arguments)
        self._left = []

    return {"__init__": init, "ready": ready}


def _begins_too_late(right: Any) -> Methods:
    return {"ready": lambda self, layer: right.ready(self, layer + 1)}


def _sums_a_copy(right: Any) -> Methods:
    def ready(self: Any, layer: int) -> None:
        if layer in self._buckets:
            start, stop = self._buckets[layer]
            self._requests.append(self._group.iallreduce(self._buffer[start:stop].copy()))

    return {"ready": ready}


def _divided(right: Any) -> Methods:
    def finish(self: Any) -> float:
        right.finish(self)
        self._buffer /= self._group.size
        return float(self._buffer[self._place])

    return {"finish": finish}


def _loss_read_too_early(right: Any) -> Methods:
    def finish(self: Any) -> float:
        loss = float(self._buffer[self._place])
        right.finish(self)
        return loss

    return {"finish": finish}


def _used_up(right: Any) -> Methods:
    def ready(self: Any, layer: int) -> None:
        right.ready(self, layer)
        self._buckets = {key: bounds for key, bounds in self._buckets.items() if key != layer}

    return {"ready": ready}


REDUCER = (
    Mistake(
        "finish-does-not-wait",
        _with(_does_not_wait),
        "`finish` returned while the all-reduces were still under way. When may the sums be read?",
    ),
    Mistake(
        "last-bucket-waited-for",
        _with(_waits_for_last),
        "Only one of several all-reduces was waited for. Does the one that began last end last?",
    ),
    Mistake(
        "waits-at-once",
        _with(_waits_at_once),
        "The sums are right, but each all-reduce was waited for as soon as it had begun. What does the backward pass "
        "do meanwhile?",
    ),
    Mistake(
        "begins-in-finish",
        _with(_begins_in_finish),
        "The sums are right, but all buckets were begun after the backward pass. Since when was the first one "
        "complete?",
    ),
    Mistake(
        "one-at-the-end",
        _with(_one_at_the_end),
        "The sums are right, but the whole buffer is one message after the backward pass. What are the buckets for?",
    ),
    Mistake(
        "begins-too-early",
        _with(_begins_too_early),
        "A bucket was begun when its first gradient was complete. What does the backward pass still write into it?",
    ),
    Mistake(
        "last-bucket-left-out",
        _with(_begins_too_late),
        "Each bucket was begun one layer later, and the one of layer 0 not at all. Is the gradient of a layer complete "
        "when `ready` is called for it?",
    ),
    Mistake(
        "sums-a-copy",
        _with(_sums_a_copy),
        "Copies of the buckets were summed, and the buffer has kept the values of this rank. Which slices of an array "
        "share its memory?",
    ),
    Mistake(
        "divided-by-ranks",
        _with(_divided),
        "The sums were divided by the number of ranks. Who knows how many samples are in them?",
    ),
    Mistake(
        "loss-read-too-early",
        _with(_loss_read_too_early),
        "The buffer is right, but the loss was read before its all-reduce had been waited for. What does a buffer hold "
        "until then?",
    ),
    Mistake(
        "buckets-used-up",
        _with(_used_up),
        "The first step is right, and in the second nothing was summed. What has to be the same at the beginning of "
        "every step?",
    ),
)
