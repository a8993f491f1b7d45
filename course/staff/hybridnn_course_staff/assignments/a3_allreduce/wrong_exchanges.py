"""Wrong exchanges of two arrays, and the hints of mistakes that several tasks have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a3_allreduce.calls import Array
from hybridnn_course_staff.assignments.a3_allreduce.solution import Combine, Exchange, exchange, receive, send

Wrong = Callable[[Variant], Function]


def blocking(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Wait for the send, then receive."""
    send(group, outgoing, target)
    receive(group, incoming, source)


def receiving_first(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Wait for the receive, then send."""
    receive(group, incoming, source)
    send(group, outgoing, target)


def even_ranks_first(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Even ranks send and then receive, odd ranks receive and then send."""
    (receiving_first if group.rank % 2 else blocking)(group, target, outgoing, source, incoming)


def same_neighbour(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Receive from the rank that it sends to."""
    exchange(group, target, outgoing, target, incoming)


def read_too_early(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Copy the receive buffer before its wait."""
    buffer = np.empty_like(incoming)
    requests = group.ireceive(buffer, source, 0), group.isend(outgoing, target, 0)
    incoming[...] = buffer
    for request in requests:
        request.wait()


def send_not_waited(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Wait for the receive only."""
    group.isend(outgoing, target, 0)
    receive(group, incoming, source)


def one_buffer(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Receive into the array that is being sent."""
    requests = group.isend(outgoing, target, 0), group.ireceive(outgoing, source, 0)
    for request in requests:
        request.wait()
    incoming[...] = outgoing


def float64_buffer(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Receive into a buffer of NumPy's default type."""
    buffer = np.empty(incoming.shape)
    exchange(group, target, outgoing, source, buffer)
    incoming[...] = buffer


def empty_blocks_not_sent(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Send only blocks with elements, but receive all."""
    request = group.isend(outgoing, target, 0) if outgoing.size else None
    receive(group, incoming, source)
    if request is not None:
        request.wait()


def adding(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
    """Add what arrives to what is there."""
    buffer = np.empty_like(incoming)
    exchange(group, target, outgoing, source, buffer)
    incoming += buffer


BLOCKING_RING = (
    "Every rank waits in its send, and none comes to its receive. A send need not end before the receive begins. Which "
    "of the two calls could begin without waiting for the other?"
)
SAME_NEIGHBOUR = (
    "Every rank receives from the rank to which it sends. Round a ring, who sends to this rank, and to whom does it "
    "send?"
)
READ_TOO_EARLY = (
    "The receive buffer was read before its wait, when the data had not arrived. What does ireceive return, and when "
    "are the data there?"
)
SEND_NOT_WAITED = "There is a send without a wait. When may the memory that is sent be used again?"
ONE_BUFFER = (
    "The array that is being sent is also the receive buffer. What would leave this rank if the data arrived before "
    "the old ones had left?"
)
FLOAT64_BUFFER = (
    "The receive buffer has another element type than the array that is sent. What does np.empty(shape) use if it is "
    "not given one?"
)
EMPTY_BLOCKS = (
    "With fewer rows or elements than ranks some blocks are empty. They are not sent, but received. What does the rank "
    "do that waits for an empty block?"
)
EVEN_RANKS_FIRST = (
    "The outputs are right, but in each round half of the ranks wait until their neighbours have sent: each round "
    "takes the time of two messages. Could a rank send and receive at the same time?"
)
SAME_BLOCK = "Every round sends the same block. Which block did this rank receive in the round before?"
DIVISIBLE_ONLY = (
    "All blocks have the same size, and the last rows or elements belong to no block. What is left over when 10 are "
    "cut into 4 blocks?"
)


def with_first_block(solution: Callable[[Variant, Exchange], Function]) -> Wrong:
    """A solution whose exchanges always send what the first one sent."""

    def wrong(variant: Variant) -> Function:
        def function(*arguments: Any) -> None:
            first: list[Array] = []

            def swap(group: Any, target: int, outgoing: Array, source: int, incoming: Array) -> None:
                first.append(outgoing)
                exchange(group, target, first[0], source, incoming)

            solution(variant, swap)(*arguments)

        return function

    return wrong


def pass_whole_arrays(group: Any, total: Array, combine: Combine, step: int) -> None:
    """All-reduce in which the array of every rank goes round the ring."""
    outgoing = total.copy()
    for _ in range(group.size - 1):
        incoming = np.empty_like(outgoing)
        exchange(group, (group.rank + step) % group.size, outgoing, (group.rank - step) % group.size, incoming)
        combine(total, incoming, out=total)
        outgoing = incoming
