"""Known wrong solutions of A2: bounds, minibatches and buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.assignment import Variant
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a2_batch.solution import bounds_solution, buckets_solution, minibatches_solution

Order = NDArray[np.int64]


# -- bounds -----------------------------------------------------------------------------------------------------------


def _remainder_lost(_: Variant) -> Callable[..., tuple[int, int]]:
    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        size = items // parts
        return part * size, (part + 1) * size

    return block_bounds


def _remainder_to_one(variant: Variant) -> Callable[..., tuple[int, int]]:
    longest = 0 if variant["longer_parts"] == "first" else None

    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        size, rest = divmod(items, parts)
        if longest == 0:
            start = part * size + (rest if part else 0)
            return start, start + size + (0 if part else rest)
        return part * size, items if part == parts - 1 else (part + 1) * size

    return block_bounds


def _rounded_up(_: Variant) -> Callable[..., tuple[int, int]]:
    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        size = -(-items // parts)
        return min(part * size, items), min((part + 1) * size, items)

    return block_bounds


def _proportional(_: Variant) -> Callable[..., tuple[int, int]]:
    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        return part * items // parts, (part + 1) * items // parts

    return block_bounds


def _last_included(variant: Variant) -> Callable[..., tuple[int, int]]:
    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        start, stop = bounds_solution(variant)(items, parts, part)
        return start, stop - 1

    return block_bounds


def _size_returned(variant: Variant) -> Callable[..., tuple[int, int]]:
    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        start, stop = bounds_solution(variant)(items, parts, part)
        return start, stop - start

    return block_bounds


def _counted_from_one(variant: Variant) -> Callable[..., tuple[int, int]]:
    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        return bounds_solution(variant)(items, parts, part - 1) if part else (0, 0)

    return block_bounds


BOUNDS = (
    Mistake(
        "remainder-lost",
        _remainder_lost,
        "Every part has the same size, so the last items belong to no part. How many items are left over when 10 are "
        "dealt to 4 parts?",
    ),
    Mistake(
        "remainder-to-one",
        _remainder_to_one,
        "All items that are left over went to one part, which is then much longer than the others. By how much may two "
        "parts differ?",
    ),
    Mistake(
        "rounded-up",
        _rounded_up,
        "The size was rounded up, so the first parts are full and the last ones short or empty. By how much may two "
        "parts differ?",
    ),
    Mistake(
        "last-included",
        _last_included,
        "The second bound is the last item of the part. What does Python's order[start:stop] do with stop?",
    ),
    Mistake(
        "proportional",
        _proportional,
        "The parts are as equal as they can be, but the longer ones are scattered. Which are to be the longer ones?",
    ),
    Mistake(
        "size-returned", _size_returned, "The second value is the size of the part. What does the docstring return?"
    ),
    Mistake(
        "counted-from-one",
        _counted_from_one,
        "The parts are shifted by one: each has the bounds of the one before. What is the number of the first part?",
    ),
)


# -- minibatches ------------------------------------------------------------------------------------------------------


def _drops_short(variant: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        first = len(order) % batch_size if variant["short_minibatch"] == "first" else 0
        for start in range(first, len(order) - batch_size + 1, batch_size):
            yield order[start : start + batch_size]

    return minibatches


def _drops_other_end(variant: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        first = len(order) % batch_size if variant["short_minibatch"] == "last" else 0
        for start in range(first, len(order) - batch_size + 1, batch_size):
            yield order[start : start + batch_size]

    return minibatches


def _empty_minibatch(variant: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        batches = list(minibatches_solution(variant)(order, batch_size))
        if len(order) % batch_size == 0:
            batches.insert(0 if variant["short_minibatch"] == "first" else len(batches), order[:0])
        yield from batches

    return minibatches


def _pads_short(_: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        for start in range(0, len(order), batch_size):
            yield np.resize(np.concatenate([order[start:], order]), batch_size)

    return minibatches


def _equal_sizes(_: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        if len(order):
            yield from np.array_split(order, -(-len(order) // batch_size))

    return minibatches


def _sorted_indices(variant: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        yield from minibatches_solution(variant)(np.sort(order), batch_size)

    return minibatches


def _positions(variant: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        yield from minibatches_solution(variant)(np.arange(len(order)), batch_size)

    return minibatches


def _number_of_batches(_: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        yield from np.array_split(order, batch_size)

    return minibatches


def _overlapping(_: Variant) -> Callable[..., Iterator[Order]]:
    def minibatches(order: Order, batch_size: int) -> Iterator[Order]:
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size + 1]

    return minibatches


MINIBATCHES = (
    Mistake(
        "drops-short-batch",
        _drops_short,
        "The samples of the short minibatch are never used. Does every sample train once per epoch?",
    ),
    Mistake(
        "drops-the-other-end",
        _drops_other_end,
        "The samples that do not fill a minibatch were left out, at the other end of the order. Does every sample "
        "train once per epoch?",
    ),
    Mistake(
        "empty-minibatch",
        _empty_minibatch,
        "There is a minibatch without samples where they divide evenly. What is the remainder then?",
    ),
    Mistake(
        "pads-short-batch",
        _pads_short,
        "The short minibatch was filled up with samples that were used before. What weight do they have in the epoch?",
    ),
    Mistake(
        "equal-sizes",
        _equal_sizes,
        "The samples were divided into minibatches of nearly equal sizes. Which size does the handout ask for?",
    ),
    Mistake(
        "sorted-order",
        _sorted_indices,
        "The indices are sorted: the shuffled order is lost. What is the meaning of `order`?",
    ),
    Mistake(
        "positions-not-indices",
        _positions,
        "These are positions in `order`, not the sample indices that it contains. What should index the data?",
    ),
    Mistake(
        "number-of-minibatches",
        _number_of_batches,
        "There are `batch_size` minibatches. Is it the number of minibatches, or the samples in one?",
    ),
    Mistake(
        "one-sample-twice",
        _overlapping,
        "Neighbouring minibatches share a sample. Where does one slice end, and where does the next begin?",
    ),
)


# -- buckets ----------------------------------------------------------------------------------------------------------


def _loss_left_out(variant: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        buckets = buckets_solution(variant)(ends, ends[-1], min_elements)
        if variant["loss_place"] == "first":
            buckets[0] = (1, buckets[0][1])
        return buckets

    return plan_buckets


def _from_the_front(_: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        buckets, start = {}, 0
        for layer, end in enumerate(ends):
            stop = size if layer == len(ends) - 1 else end
            if stop - start >= min_elements or layer == len(ends) - 1:
                buckets[layer] = (start, stop)
                start = stop
        return buckets

    return plan_buckets


def _one_per_layer(_: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        starts, stops = [0, *ends[:-1]], [*ends[:-1], size]
        return {layer: (starts[layer], stops[layer]) for layer in reversed(range(len(ends)))}

    return plan_buckets


def _rest_left_over(variant: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        buckets = buckets_solution(variant)(ends, size, min_elements)
        start, stop = buckets[0]
        if stop - start < min_elements and len(buckets) > 1:
            del buckets[0]
        return buckets

    return plan_buckets


def _one_bucket(_: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        return {0: (0, size)}

    return plan_buckets


def _more_than(variant: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    step = 1 if variant["bucket_size"] == "at least" else -1

    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        return buckets_solution(variant)(ends, size, min_elements + step)

    return plan_buckets


BUCKETS = (
    Mistake(
        "loss-left-out",
        _loss_left_out,
        "The loss is in no bucket. Which element of the buffer belongs to no layer?",
    ),
    Mistake(
        "from-the-front",
        _from_the_front,
        "The buckets were collected from layer 0 on. Which layer's gradient is complete first in a backward pass?",
    ),
    Mistake("one-per-layer", _one_per_layer, "Every layer has a bucket of its own. What is `min_elements` for?"),
    Mistake(
        "rest-left-over",
        _rest_left_over,
        "The first layers are in no bucket where they are small. When would their gradients be summed?",
    ),
    Mistake("one-bucket", _one_bucket, "Everything is in one bucket. What can then overlap with the backward pass?"),
    Mistake(
        "off-by-one-bucket",
        _more_than,
        "A bucket of exactly `min_elements` elements is treated wrongly. Is the limit itself allowed?",
    ),
)
