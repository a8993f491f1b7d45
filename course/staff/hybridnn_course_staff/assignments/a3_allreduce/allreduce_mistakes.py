"""Known wrong solutions of the all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a3_allreduce.budgets import SMALL_BYTES, is_small, step_of
from hybridnn_course.exercises.a3_allreduce.calls import Array
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a3_allreduce.solution import (
    COMBINE,
    Combine,
    Exchange,
    allreduce_by_doubling,
    allreduce_by_ring,
    allreduce_by_tree,
    allreduce_solution,
    blocks_by_rank,
    exchange,
    gather_blocks,
    receive,
    reduce_blocks,
    reduce_to_root,
    send,
)
from hybridnn_course_staff.assignments.a3_allreduce.wrong_exchanges import (
    BLOCKING_RING,
    DIVISIBLE_ONLY,
    EMPTY_BLOCKS,
    EVEN_RANKS_FIRST,
    FLOAT64_BUFFER,
    ONE_BUFFER,
    READ_TOO_EARLY,
    SAME_NEIGHBOUR,
    SEND_NOT_WAITED,
    Wrong,
    adding,
    blocking,
    empty_blocks_not_sent,
    even_ranks_first,
    float64_buffer,
    one_buffer,
    pass_whole_arrays,
    read_too_early,
    same_neighbour,
    send_not_waited,
)

SMALL_APART = {"small_arrays": ("doubling", "tree")}


def _allreduce_with(swap: Exchange) -> Wrong:
    return lambda variant: allreduce_solution(variant, swap)


def _reducing_all(reduce: Callable[[Any, Array, Combine, Variant], None]) -> Wrong:
    """An all-reduce by a function of the group, the flat array, the operation and the variant, for all sizes."""

    def wrong(variant: Variant) -> Function:
        def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
            reduce(group, array.reshape(-1), COMBINE[operation], variant)

        return allreduce

    return wrong


def _reducing_large(reduce: Callable[[Any, Array, Combine, Variant], None]) -> Wrong:
    """As `_reducing_all`, for the arrays that go round the ring."""

    def wrong(variant: Variant) -> Function:
        right, large = allreduce_solution(variant), _reducing_all(reduce)(variant)

        def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
            (right if is_small(array, variant) else large)(group, array, operation)

        return allreduce

    return wrong


def _ignores_max(variant: Variant) -> Function:
    def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
        allreduce_solution(variant)(group, array)

    return allreduce


def _averages(variant: Variant) -> Function:
    def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
        allreduce_solution(variant)(group, array, operation)
        if operation == "sum":
            array /= group.size

    return allreduce


def _in_a_copy(variant: Variant) -> Function:
    def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
        allreduce_solution(variant)(group, array.flatten(), operation)

    return allreduce


def _even_ranks_first_round_ring(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    allreduce_by_ring(group, flat, combine, step_of(variant), even_ranks_first)


def _adds_when_gathering(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    blocks = blocks_by_rank(flat, group.size)
    reduce_blocks(group, blocks, combine, step_of(variant))
    gather_blocks(group, blocks, step_of(variant), adding)


def _one_allreduce_round_short(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    blocks = blocks_by_rank(flat, group.size)
    reduce_blocks(group, blocks, combine, step_of(variant))
    gather_blocks(group, blocks, step_of(variant), leave_out=1)


def _one_phase(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    reduce_blocks(group, blocks_by_rank(flat, group.size), combine, step_of(variant))


def _divisible_blocks(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    even = flat[: len(flat) - len(flat) % group.size]
    allreduce_by_ring(group, even, combine, step_of(variant))


def _whole_arrays(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    pass_whole_arrays(group, flat, combine, step_of(variant))


def _through_root(group: Any, flat: Array, combine: Combine, variant: Variant) -> None:
    if group.rank:
        send(group, flat, 0)
        receive(group, flat, 0)
        return
    incoming = np.empty_like(flat)
    for source in range(1, group.size):
        receive(group, incoming, source)
        combine(flat, incoming, out=flat)
    for target in range(1, group.size):
        send(group, flat, target)


def _blocks_of_rows(variant: Variant) -> Function:
    def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
        if is_small(array, variant):
            allreduce_solution(variant)(group, array, operation)
        else:
            allreduce_by_ring(group, array, COMBINE[operation], step_of(variant))

    return allreduce


def _powers_of_two(variant: Variant) -> Function:
    def doubling(group: Any, flat: Array, combine: Combine) -> None:
        incoming, distance = np.empty_like(flat), 1
        while distance < group.size:
            partner = group.rank ^ distance
            if partner < group.size:
                exchange(group, partner, flat, partner, incoming)
                combine(flat, incoming, out=flat)
            distance *= 2

    return _with_limit(lambda array: array.nbytes <= SMALL_BYTES, doubling)(variant)


def _with_limit(
    small: Callable[[Array], bool], algorithm: Callable[[Any, Array, Combine], None] | None = None
) -> Wrong:
    """An all-reduce with another rule for small arrays, and if given another algorithm for them."""

    def wrong(variant: Variant) -> Function:
        right = allreduce_by_doubling if variant["small_arrays"] == "doubling" else allreduce_by_tree

        def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
            flat, combine = array.reshape(-1), COMBINE[operation]
            if small(array):
                (algorithm or right)(group, flat, combine)
            else:
                allreduce_by_ring(group, flat, combine, step_of(variant))

        return allreduce

    return wrong


ALLREDUCE = (
    Mistake("blocking-ring", _allreduce_with(blocking), BLOCKING_RING),
    Mistake("wrong-neighbour", _allreduce_with(same_neighbour), SAME_NEIGHBOUR),
    Mistake("read-before-wait", _allreduce_with(read_too_early), READ_TOO_EARLY),
    Mistake("send-not-waited", _allreduce_with(send_not_waited), SEND_NOT_WAITED),
    Mistake("send-buffer-reused", _allreduce_with(one_buffer), ONE_BUFFER),
    Mistake("buffer-of-float64", _allreduce_with(float64_buffer), FLOAT64_BUFFER),
    Mistake("empty-block-one-sided", _allreduce_with(empty_blocks_not_sent), EMPTY_BLOCKS, {"small_arrays": ("ring",)}),
    Mistake("even-ranks-first", _reducing_large(_even_ranks_first_round_ring), EVEN_RANKS_FIRST),
    Mistake(
        "ignores-max",
        _ignores_max,
        "With the operation 'max' this is the sum. Where does the function use its argument `operation`?",
    ),
    Mistake("averaged", _averages, "This is the average over the ranks. What does the docstring ask for?"),
    Mistake(
        "result-in-a-copy",
        _in_a_copy,
        "The array has not changed. Which NumPy functions return a view of an array, and which a copy?",
    ),
    Mistake(
        "gather-adds",
        _reducing_large(_adds_when_gathering),
        "Blocks that are complete are added to partial sums. What does the second phase have to do with a block that "
        "arrives?",
    ),
    Mistake(
        "one-round-short",
        _reducing_large(_one_allreduce_round_short),
        "On each rank one block is not complete. How many rounds does each of the two phases need?",
    ),
    Mistake(
        "one-phase",
        _reducing_large(_one_phase),
        "On each rank only one block is reduced over all ranks. How do the other ranks get it?",
    ),
    Mistake("divisible-only", _reducing_large(_divisible_blocks), DIVISIBLE_ONLY),
    Mistake(
        "whole-array",
        _reducing_all(_whole_arrays),
        "The result is right, but whole arrays went round the ring. How many bytes does a rank have to receive at "
        "least, to know the sum?",
    ),
    Mistake(
        "through-root",
        _reducing_all(_through_root),
        "The result is right, but all arrays go through rank 0, one after another. What do the other ranks do "
        "meanwhile?",
    ),
    Mistake(
        "blocks-of-rows",
        _blocks_of_rows,
        "The result is right, but the blocks are whole rows, and some are much larger than others. How even could the "
        "blocks of an array with 2 rows and 1,000 columns on 4 ranks be?",
    ),
    Mistake(
        "limit-excluded",
        _with_limit(lambda array: array.nbytes < SMALL_BYTES),
        f"An array of exactly {SMALL_BYTES} bytes is treated like a larger one. Which sizes does the handout call "
        "small?",
        SMALL_APART,
    ),
    Mistake(
        "limit-in-elements",
        _with_limit(lambda array: array.size <= SMALL_BYTES),
        "The limit was compared with a number of elements. What is the unit of the limit in the handout?",
        SMALL_APART,
    ),
    Mistake(
        "power-of-two-only",
        _powers_of_two,
        "With 3 or 5 ranks small arrays are not reduced over all ranks: a partner beyond the last rank was left out. "
        "How does the array of a rank beyond the power of two reach the others?",
        {"small_arrays": ("doubling",)},
    ),
    Mistake(
        "only-root-has-it",
        _with_limit(lambda array: array.nbytes <= SMALL_BYTES, reduce_to_root),
        "For small arrays only rank 0 has the result. What has to happen after the reduction?",
        {"small_arrays": ("tree",)},
    ),
)
