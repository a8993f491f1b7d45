"""Reference solutions of A3.

The documented functions at the top are what students write, in the standard variant. Below are the solutions of every
variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridnn.comm.blocks import block_slice
from hybridnn_course.assignment import Variant
from hybridnn_course.exercises.a3_allreduce.budgets import is_small, step_of
from hybridnn_course.exercises.a3_allreduce.calls import Array, block_of

Combine = Callable[..., Any]  # np.add or np.maximum

STANDARD = {"direction": "up", "block_of_rank": "own", "small_arrays": "ring"}
TAG = 0
COMBINE: dict[str, Combine] = {"sum": np.add, "max": np.maximum}


# -- what students write ----------------------------------------------------------------------------------------------


def shift(group: Any, array: Array) -> Array:
    """Send an array to the next rank of the ring, and return the array of the rank before.

    Parameters
    ----------
    group : Group
        The ranks, with `rank`, `size`, `isend` and `ireceive`.
    array : ndarray
        The same shape and dtype on all ranks; it does not change.

    Returns
    -------
    ndarray
        A new array of the same shape and dtype. On one rank it is a copy.
    """
    return shift_solution(STANDARD)(group, array)


def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
    """Sum an array over the ranks, and leave each rank one block of rows of the sum.

    The rows are cut into as many blocks as there are ranks. The first ``rows mod size`` blocks have one row more than
    the others; with fewer rows than ranks some blocks are empty.

    Parameters
    ----------
    group : Group
        The ranks, with `rank`, `size`, `isend` and `ireceive`.
    array : ndarray, shape (rows, ...)
        The same shape and dtype on all ranks; it does not change.
    out : ndarray, shape (rows of the block, ...)
        Receives the block of this rank.
    """
    reduce_scatter_solution(STANDARD)(group, array, out)


def allgather_rows(group: Any, array: Array) -> None:
    """Gather the blocks of rows of all ranks, in place.

    The rows are cut into as many blocks as there are ranks. The first ``rows mod size`` blocks have one row more than
    the others; with fewer rows than ranks some blocks are empty.

    Parameters
    ----------
    group : Group
        The ranks, with `rank`, `size`, `isend` and `ireceive`.
    array : ndarray, shape (rows, ...)
        The same shape and dtype on all ranks. On entry each rank has filled its block of rows, and the other rows hold
        any values; on return all rows are filled.
    """
    allgather_solution(STANDARD)(group, array)


def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
    """Replace an array by its sum (``"max"``: maximum) over the ranks, in place.

    Parameters
    ----------
    group : Group
        The ranks, with `rank`, `size`, `isend` and `ireceive`.
    array : ndarray
        Of any shape, contiguous; the same shape and dtype on all ranks.
    operation : {"sum", "max"}
        The maximum is that of each element.
    """
    allreduce_solution(STANDARD)(group, array, operation)


# -- messages ---------------------------------------------------------------------------------------------------------


def exchange(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Send one array and receive another at the same time."""
    sent = group.isend(outgoing, target, TAG)
    receive(group, incoming, source)
    sent.wait()


def send(group: Any, array: Array, target: int) -> None:
    """Send an array, and wait."""
    group.isend(array, target, TAG).wait()


def receive(group: Any, array: Array, source: int) -> None:
    """Receive an array, and wait."""
    group.ireceive(array, source, TAG).wait()


# -- the ring ---------------------------------------------------------------------------------------------------------


def pass_on(group: Any, step: int, outgoing: Array, incoming: Array) -> None:
    """Send to the next rank of the ring, and receive from the one before."""
    target, source = (group.rank + step) % group.size, (group.rank - step) % group.size
    exchange(group, target, outgoing, source, incoming)


def blocks_by_rank(array: Array, ranks: int, variant: Variant = STANDARD) -> list[Array]:
    """Views of the blocks of rows of an array, in the order of the ranks to which they belong."""
    return [array[block_slice(len(array), ranks, block_of(rank, ranks, variant))] for rank in range(ranks)]


def reduce_blocks(group: Any, blocks: Sequence[Array], combine: Combine, step: int) -> None:
    """Reduce the block of this rank over all ranks; the others hold partial results."""
    rank, ranks = group.rank, group.size
    for number in range(1, ranks):
        outgoing = blocks[(rank - step * number) % ranks]
        partial = blocks[(rank - step * (number + 1)) % ranks]
        incoming = np.empty_like(partial)
        pass_on(group, step, outgoing, incoming)
        combine(partial, incoming, out=partial)


def gather_blocks(group: Any, blocks: Sequence[Array], step: int) -> None:
    """Fill the blocks of all ranks, of which each has filled its own."""
    rank, ranks = group.rank, group.size
    for number in range(ranks - 1):
        outgoing = blocks[(rank - step * number) % ranks]
        incoming = blocks[(rank - step * (number + 1)) % ranks]
        pass_on(group, step, outgoing, incoming)


def allreduce_by_ring(group: Any, flat: Array, combine: Combine, step: int) -> None:
    """All-reduce by a reduce-scatter and an all-gather of blocks of elements."""
    blocks = blocks_by_rank(flat, group.size)
    reduce_blocks(group, blocks, combine, step)
    gather_blocks(group, blocks, step)


# -- small arrays -----------------------------------------------------------------------------------------------------


def allreduce_by_doubling(group: Any, flat: Array, combine: Combine) -> None:
    """All-reduce by exchanges of whole arrays at distance 1, 2, 4, …; ranks beyond a power of two are folded."""
    power = 1 << (group.size.bit_length() - 1)
    folded = group.size - power
    rank, incoming = group.rank, np.empty_like(flat)
    is_folding = rank < 2 * folded
    if is_folding and rank % 2 == 0:
        send(group, flat, rank + 1)
        receive(group, flat, rank + 1)
        return
    if is_folding:
        receive(group, incoming, rank - 1)
        combine(flat, incoming, out=flat)
    number = rank // 2 if is_folding else rank - folded
    for distance in _distances(power):
        other = number ^ distance
        partner = 2 * other + 1 if other < folded else other + folded
        exchange(group, partner, flat, partner, incoming)
        combine(flat, incoming, out=flat)
    if is_folding:
        send(group, flat, rank - 1)


def allreduce_by_tree(group: Any, flat: Array, combine: Combine) -> None:
    """All-reduce by a binomial reduction to rank 0 and the same messages backwards."""
    reduce_to_root(group, flat, combine)
    rank = group.rank
    for distance in _distances(group.size):
        if distance <= rank < 2 * distance:
            receive(group, flat, rank - distance)
        elif rank < distance and rank + distance < group.size:
            send(group, flat, rank + distance)


def reduce_to_root(group: Any, flat: Array, combine: Combine) -> None:
    """Binomial reduction to rank 0."""
    rank, incoming = group.rank, np.empty_like(flat)
    for distance in reversed(_distances(group.size)):
        if distance <= rank < 2 * distance:
            send(group, flat, rank - distance)
        elif rank < distance and rank + distance < group.size:
            receive(group, incoming, rank + distance)
            combine(flat, incoming, out=flat)


def _distances(ranks: int) -> list[int]:
    return [1 << level for level in range((ranks - 1).bit_length())]


# -- solutions --------------------------------------------------------------------------------------------------------


def shift_solution(variant: Variant) -> Callable[[Any, Array], Array]:
    """One exchange with both neighbours, up or down the ring."""

    def shift(group: Any, array: Array) -> Array:
        incoming = np.empty_like(array)
        pass_on(group, step_of(variant), array, incoming)
        return incoming

    return shift


def reduce_scatter_solution(variant: Variant) -> Callable[[Any, Array, Array], None]:
    """Partial sums go round the ring, up or down, and end at the rank to which their block belongs."""

    def reduce_scatter_rows(group: Any, array: Array, out: Array) -> None:
        blocks = blocks_by_rank(array.copy(), group.size, variant)
        reduce_blocks(group, blocks, np.add, step_of(variant))
        out[...] = blocks[group.rank]

    return reduce_scatter_rows


def allgather_solution(variant: Variant) -> Callable[[Any, Array], None]:
    """Blocks go round the ring, up or down, and each rank keeps them all."""

    def allgather_rows(group: Any, array: Array) -> None:
        gather_blocks(group, blocks_by_rank(array, group.size, variant), step_of(variant))

    return allgather_rows


def allreduce_solution(variant: Variant) -> Callable[..., None]:
    """A ring, or for small arrays the algorithm of the variant."""

    def allreduce(group: Any, array: Array, operation: str = "sum") -> None:
        flat, combine = array.reshape(-1), COMBINE[operation]
        if not is_small(array, variant):
            allreduce_by_ring(group, flat, combine, step_of(variant))
        elif variant["small_arrays"] == "doubling":
            allreduce_by_doubling(group, flat, combine)
        else:
            allreduce_by_tree(group, flat, combine)

    return allreduce
