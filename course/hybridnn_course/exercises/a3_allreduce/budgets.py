"""Budgets of A3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.blocks import block_size
from hybridnn.cost.collectives import CommunicationCounts, counts, rounds_of
from hybridnn_course.answers import Answer
from hybridnn_course.assignment import Bound, Case, Variant
from hybridnn_course.execution import ALPHA, BETA

SMALL_BYTES = 256  # largest array that does not go round the ring in the variants that treat small arrays apart
ALGORITHMS = {"ring": "ring", "doubling": "recursive_doubling", "tree": "binomial"}
"""Names in `hybridnn.cost.collectives` of the algorithms for small arrays."""

Route = set[tuple[int, int]]  # pairs of a sender and a receiver


def is_small(array: NDArray[Any], variant: Variant) -> bool:
    """Whether an array does not go round the ring."""
    return variant["small_arrays"] != "ring" and array.nbytes <= SMALL_BYTES


def step_of(variant: Variant) -> int:
    """Difference of the next rank of the ring and this one."""
    return 1 if variant["direction"] == "up" else -1


def _bounds(case: Case, answer: Answer, model: CommunicationCounts, route: Route) -> Sequence[Bound]:
    """The time of the model, its messages and bytes, and no message between other ranks than those of the route."""
    if case.ranks == 1:
        return []
    sends = [answer.sent(rank) for rank in range(case.ranks)]
    amounts = (
        ("virtual time in microseconds", 1e6 * answer.clock, 1e6 * model.seconds(ALPHA, BETA)),
        ("messages sent by a rank", max(map(len, sends)), model.messages),
        ("bytes sent by a rank", max(sum(call.nbytes for call in calls) for calls in sends), model.nbytes),
    )
    strays = sum((call.rank, call.peer) not in route for calls in sends for call in calls)
    return [
        *(Bound(what, value, full, 2 * full) for what, value, full in amounts),
        Bound("messages off the route", strays, 0, 1),
    ]


def _ring(ranks: int, variant: Variant) -> Route:
    return {(rank, (rank + step_of(variant)) % ranks) for rank in range(ranks)}


def _with_even_blocks(items: int, item_bytes: int, ranks: int) -> int:
    """Bytes of an array whose blocks are all as large as the largest one."""
    return block_size(items, ranks, 0) * ranks * item_bytes


def reduce_scatter_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Those of a reduce-scatter round the ring."""
    return _phase_bounds("reduce_scatter", case, answer, variant)


def allgather_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Those of an all-gather round the ring."""
    return _phase_bounds("allgather", case, answer, variant)


def _phase_bounds(operation: str, case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    array = case.inputs[0]["array"]
    nbytes = _with_even_blocks(len(array), array[:1].nbytes or array.itemsize, case.ranks)
    return _bounds(case, answer, counts(operation, "ring", nbytes, case.ranks), _ring(case.ranks, variant))


def allreduce_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Those of the ring, or of the algorithm for small arrays."""
    array, ranks = case.inputs[0]["array"], case.ranks
    if not is_small(array, variant):
        nbytes = _with_even_blocks(array.size, array.itemsize, ranks)
        return _bounds(case, answer, counts("allreduce", "ring", nbytes, ranks), _ring(ranks, variant))
    algorithm = ALGORITHMS[variant["small_arrays"]]
    route: Route = set()
    for rounds in rounds_of("allreduce", algorithm, array.nbytes, ranks):
        senders, receivers = (side.tolist() for side in rounds.pattern(ranks, rounds.distance))
        route |= set(zip(senders, receivers, strict=True)) | set(zip(receivers, senders, strict=True))
    return _bounds(case, answer, counts("allreduce", algorithm, array.nbytes, ranks), route)
