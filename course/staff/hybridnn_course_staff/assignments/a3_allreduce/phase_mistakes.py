"""Known wrong solutions of the tasks before the all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a3_allreduce.budgets import step_of
from hybridnn_course.exercises.a3_allreduce.calls import Array, block_of
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a3_allreduce.solution import (
    Exchange,
    allgather_solution,
    blocks_by_rank,
    exchange,
    gather_blocks,
    receive,
    reduce_blocks,
    reduce_scatter_solution,
    send,
    shift_solution,
)
from hybridnn_course_staff.assignments.a3_allreduce.wrong_exchanges import (
    BLOCKING_RING,
    DIVISIBLE_ONLY,
    EMPTY_BLOCKS,
    EVEN_RANKS_FIRST,
    FLOAT64_BUFFER,
    ONE_BUFFER,
    READ_TOO_EARLY,
    SAME_BLOCK,
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
    receiving_first,
    same_neighbour,
    send_not_waited,
    with_first_block,
)

# -- shift ------------------------------------------------------------------------------------------------------------


def _shift_with(swap: Exchange) -> Wrong:
    return lambda variant: shift_solution(variant, swap)


def _into_argument(variant: Variant) -> Function:
    right = shift_solution(variant)

    def shift(group: Any, array: Array) -> Array:
        array[...] = right(group, array)
        return array

    return shift


def _own_array(variant: Variant) -> Function:
    right = shift_solution(variant)

    def shift(group: Any, array: Array) -> Array:
        right(group, array)
        return array.copy()

    return shift


SHIFT = (
    Mistake("blocking-ring", _shift_with(blocking), BLOCKING_RING),
    Mistake(
        "receives-first",
        _shift_with(receiving_first),
        "Every rank waits in its receive, and none comes to its send. Which of the two calls could begin without "
        "waiting for the other?",
    ),
    Mistake("wrong-neighbour", _shift_with(same_neighbour), SAME_NEIGHBOUR),
    Mistake("read-before-wait", _shift_with(read_too_early), READ_TOO_EARLY),
    Mistake("send-not-waited", _shift_with(send_not_waited), SEND_NOT_WAITED),
    Mistake("one-buffer", _shift_with(one_buffer), ONE_BUFFER),
    Mistake("buffer-of-float64", _shift_with(float64_buffer), FLOAT64_BUFFER),
    Mistake(
        "argument-changed",
        _into_argument,
        "The result is right, but the argument has changed. Whose memory is the array that the function was given?",
    ),
    Mistake(
        "own-array-returned",
        _own_array,
        "Each rank returns its own array. Into which array did the data of the neighbour arrive?",
    ),
)


# -- reduce_scatter ---------------------------------------------------------------------------------------------------


def _reduce_scatter_with(swap: Exchange) -> Wrong:
    return lambda variant: reduce_scatter_solution(variant, swap)


def _reducing(reduce: Callable[[Any, list[Array], Variant], None]) -> Wrong:
    """A reduce-scatter that reduces the block of this rank by another function."""

    def wrong(variant: Variant) -> Function:
        def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
            blocks = blocks_by_rank(array.copy(), group.size, variant)
            reduce(group, blocks, variant)
            out[...] = blocks[group.rank]

        return reduce_scatter_rows

    return wrong


def _one_round_short(group: Any, blocks: list[Array], variant: Variant) -> None:
    reduce_blocks(group, blocks, np.add, step_of(variant), leave_out=1)


def _own_rows_sent(group: Any, blocks: list[Array], variant: Variant) -> None:
    """Sends this rank's own rows in place of the partial sums."""
    own = {id(block): block.copy() for block in blocks}

    def swap(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
        exchange(group, target, own[id(outgoing)], source, incoming)

    reduce_blocks(group, blocks, np.add, step_of(variant), swap)


def _reduced_directly(group: Any, blocks: list[Array], variant: Variant) -> None:
    incoming = np.empty_like(blocks[group.rank])
    for distance in range(1, group.size):
        target, source = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        exchange(group, target, blocks[target], source, incoming)
        blocks[group.rank] += incoming


def _averaged(group: Any, blocks: list[Array], variant: Variant) -> None:
    reduce_blocks(group, blocks, np.add, step_of(variant))
    blocks[group.rank] /= group.size


def _divisible_scatter(variant: Variant) -> Function:
    def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
        rows = len(array) // group.size
        even = np.empty((rows, *array.shape[1:]), array.dtype)
        reduce_scatter_solution(variant)(group, array[: rows * group.size], even)
        out[:rows] = even

    return reduce_scatter_rows


def _in_argument(variant: Variant) -> Function:
    def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
        blocks = blocks_by_rank(array, group.size, variant)
        reduce_blocks(group, blocks, np.add, step_of(variant))
        out[...] = blocks[group.rank]

    return reduce_scatter_rows


def _rebinds_out(variant: Variant) -> Function:
    def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
        total = np.empty_like(out)
        reduce_scatter_solution(variant)(group, array, total)
        out = total

    return reduce_scatter_rows


def _all_rows_travel(variant: Variant) -> Function:
    def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
        total = array.copy()
        pass_whole_arrays(group, total, np.add, step_of(variant))
        out[...] = blocks_by_rank(total, group.size, variant)[group.rank]

    return reduce_scatter_rows


REDUCE_SCATTER = (
    Mistake("blocking-ring", _reduce_scatter_with(blocking), BLOCKING_RING),
    Mistake("wrong-neighbour", _reduce_scatter_with(same_neighbour), SAME_NEIGHBOUR),
    Mistake("read-before-wait", _reduce_scatter_with(read_too_early), READ_TOO_EARLY),
    Mistake("send-not-waited", _reduce_scatter_with(send_not_waited), SEND_NOT_WAITED),
    Mistake("send-buffer-reused", _reduce_scatter_with(one_buffer), ONE_BUFFER),
    Mistake("buffer-of-float64", _reduce_scatter_with(float64_buffer), FLOAT64_BUFFER),
    Mistake("empty-block-one-sided", _reduce_scatter_with(empty_blocks_not_sent), EMPTY_BLOCKS),
    Mistake("even-ranks-first", _reduce_scatter_with(even_ranks_first), EVEN_RANKS_FIRST),
    Mistake(
        "one-round-short",
        _reducing(_one_round_short),
        "A round is missing: the array of one rank is not in the sum. How many ranks must a block visit?",
    ),
    Mistake("same-block-every-round", with_first_block(reduce_scatter_solution), SAME_BLOCK),
    Mistake(
        "own-rows-sent",
        _reducing(_own_rows_sent),
        "Each rank sends the rows of its own array, and what it has received and added stays behind. What has to reach "
        "the rank at the end of the path?",
    ),
    Mistake("averaged", _reducing(_averaged), "This is the average over the ranks. What does the docstring ask for?"),
    Mistake("divisible-only", _divisible_scatter, DIVISIBLE_ONLY),
    Mistake(
        "argument-changed",
        _in_argument,
        "The block is right, but `array` has changed: the partial sums were built in it. Where else could they be "
        "built?",
    ),
    Mistake(
        "rebinds-out",
        _rebinds_out,
        "`out` was not filled. What does an assignment to the name of an argument change in the caller?",
    ),
    Mistake(
        "whole-array",
        _all_rows_travel,
        "The block is right, but whole arrays went round the ring. Which rows of an array does a rank need that "
        "reduces one block only?",
    ),
    Mistake(
        "not-a-ring",
        _reducing(_reduced_directly),
        "The block is right, and so is the time, but there are messages between ranks that are not neighbours in the "
        "ring. Over which ranks does a block reach its owner when each rank sends to the next one only?",
    ),
)


# -- allgather --------------------------------------------------------------------------------------------------------


def _allgather_with(swap: Exchange) -> Wrong:
    return lambda variant: allgather_solution(variant, swap)


def _gathering(gather: Callable[[Any, Array, list[Array], Variant], None]) -> Wrong:
    """An all-gather by a function of the group, the array, its blocks and the variant."""

    def wrong(variant: Variant) -> Function:
        def allgather_rows(group: Any, array: Array) -> None:
            gather(group, array, blocks_by_rank(array, group.size, variant), variant)

        return allgather_rows

    return wrong


def _one_gather_short(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    gather_blocks(group, blocks, step_of(variant), leave_out=1)


def _passed_on_too_early(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    """Starts all rounds, and then waits for all of them."""
    requests: list[Any] = []

    def swap(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
        requests.extend((group.ireceive(incoming, source, 0), group.isend(outgoing, target, 0)))

    gather_blocks(group, blocks, step_of(variant), swap)
    for request in requests:
        request.wait()


def _divisible_gather(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    rows = len(array) // group.size
    even = np.empty((rows * group.size, *array.shape[1:]), array.dtype)
    own = block_of(group.rank, group.size, variant)
    even[own * rows : (own + 1) * rows] = blocks[group.rank][:rows]
    allgather_solution(variant)(group, even)
    array[: len(even)] = even


def _in_order_of_ranks(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    gather_blocks(group, blocks, step_of(variant))
    array[...] = np.concatenate(blocks)


def _gathered_directly(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    for distance in range(1, group.size):
        target, source = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        exchange(group, target, blocks[group.rank], source, blocks[source])


def _gathered_at_root(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    if group.rank:
        send(group, blocks[group.rank], 0)
        receive(group, array, 0)
        return
    for source in range(1, group.size):
        receive(group, blocks[source], source)
    for target in range(1, group.size):
        send(group, array, target)


def _whole_array_gathered(group: Any, array: Array, blocks: list[Array], variant: Variant) -> None:
    step = step_of(variant)
    incoming = np.empty_like(array)
    for number in range(1, group.size):
        exchange(group, (group.rank + step) % group.size, array, (group.rank - step) % group.size, incoming)
        source = (group.rank - step * number) % group.size
        blocks[source][...] = blocks_by_rank(incoming, group.size, variant)[source]


ALLGATHER = (
    Mistake("blocking-ring", _allgather_with(blocking), BLOCKING_RING),
    Mistake("wrong-neighbour", _allgather_with(same_neighbour), SAME_NEIGHBOUR),
    Mistake("send-not-waited", _allgather_with(send_not_waited), SEND_NOT_WAITED),
    Mistake("buffer-of-float64", _allgather_with(float64_buffer), FLOAT64_BUFFER),
    Mistake("empty-block-one-sided", _allgather_with(empty_blocks_not_sent), EMPTY_BLOCKS),
    Mistake("even-ranks-first", _allgather_with(even_ranks_first), EVEN_RANKS_FIRST),
    Mistake(
        "gather-adds",
        _allgather_with(adding),
        "What arrives is added to the rows that are there. What do the rows of the other ranks hold on entry?",
    ),
    Mistake(
        "one-round-short",
        _gathering(_one_gather_short),
        "The rows of one rank are missing. How many blocks does a rank lack at the beginning, and how many arrive in a "
        "round?",
    ),
    Mistake("same-block-every-round", with_first_block(allgather_solution), SAME_BLOCK),
    Mistake(
        "passed-on-too-early",
        _gathering(_passed_on_too_early),
        "A block is sent on whose receive has not been waited for. What is in its rows at that moment?",
    ),
    Mistake("divisible-only", _gathering(_divisible_gather), DIVISIBLE_ONLY),
    Mistake(
        "in-order-of-ranks",
        _gathering(_in_order_of_ranks),
        "All blocks are there, in the order of the ranks that sent them. Which rows belong to which rank in your "
        "variant?",
        {"block_of_rank": ("next", "reversed")},
    ),
    Mistake(
        "whole-array",
        _gathering(_whole_array_gathered),
        "The rows are right, but each round sends the whole array. Which rows does the next rank not have yet?",
    ),
    Mistake(
        "through-root",
        _gathering(_gathered_at_root),
        "The rows are right, but all of them go through rank 0, which sends them one rank after another. Which links "
        "of the ring carry nothing meanwhile?",
    ),
    Mistake(
        "not-a-ring",
        _gathering(_gathered_directly),
        "The rows are right, and so is the time, but there are messages between ranks that are not neighbours in the "
        "ring. From which rank can a block also come than from its owner?",
    ),
)
