"""Budgets of A4."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.prediction.memory import layer_collectives
from hybridnn_course.answers import Answer
from hybridnn_course.assignment import Bound, Case, Variant
from hybridnn_course.exercises.a4_model.calls import FORWARD, LayerCase

ITEM_BYTES = 8


def columns_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Collectives and bytes of a layer split by outputs, and whether its all-reduce overlaps."""
    item = LayerCase(**case.inputs[0]["case"])
    bounds = _budget(item, False, answer, variant)
    if item.overlap and item.ranks > 1:
        begun = {call.rank: call.begun for call in answer.calls if call.name == "barrier"}
        early = {call.rank for call in answer.calls if call.name == "allreduce" and call.waited < begun[call.rank]}
        bounds.append(Bound("ranks that wait before the weight gradient", len(early), 0, 1))
    return bounds


def rows_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Collectives and bytes of a layer split by inputs."""
    return _budget(LayerCase(**case.inputs[0]["case"]), True, answer, variant)


def _budget(item: LayerCase, by_inputs: bool, answer: Answer, variant: Variant) -> list[Bound]:
    if item.ranks == 1:
        return []
    counts, sent = [0] * item.ranks, [0] * item.ranks
    for call in answer.calls:
        if call.name != "barrier":
            counts[call.rank] += 1
            sent[call.rank] += bytes_sent_by_rank(call.name, call.nbytes, item.ranks, is_root=True)
    expected = expected_collectives(item, by_inputs, variant)
    nbytes = sum(bytes_sent_by_rank(name, size, item.ranks) for name, size in expected)
    return [
        Bound("collectives", max(counts), len(expected), len(expected) + 2),
        Bound("bytes sent by a rank", max(sent), nbytes, 2 * nbytes + ITEM_BYTES),
    ]


def expected_collectives(item: LayerCase, by_inputs: bool, variant: Variant) -> list[tuple[str, int]]:
    """Operation and bytes of the collectives of a pass, as the library predicts them."""
    calls = layer_collectives(item.shards(by_inputs, variant, 0)[-1], item.ranks, ITEM_BYTES)
    found = calls.forward if item.kind == FORWARD else calls.backward
    if by_inputs and variant["residual"] == "before activation":  # nothing has to be gathered
        found = tuple(call for call in found if call[0] != "allgather")
    return [(name, nbytes * item.samples) for name, nbytes in found]


def norm_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Collectives and bytes."""
    if case.ranks == 1:
        return []
    calls = [call for call in answer.calls if call.rank == 0]
    nbytes = sum(bytes_sent_by_rank(call.name, call.nbytes, case.ranks, is_root=True) for call in calls)
    least = bytes_sent_by_rank("allreduce", ITEM_BYTES, case.ranks)
    return [Bound("collectives", len(calls), 1, 3), Bound("bytes sent by a rank", nbytes, 2 * least, 8 * least)]
