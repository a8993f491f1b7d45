"""Budgets of A2."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn_course.answers import Answer, Call
from hybridnn_course.assignment import Bound, Case, Variant

STEPS = 2  # of a case, with the same reducer


def gradient_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """All-reduces, and bytes of a rank."""
    if case.ranks == 1:
        return []
    calls = max(sum(call.rank == rank for call in answer.calls) for rank in range(case.ranks))
    outputs, features = case.inputs[0]["weights"].shape
    nbytes = sum(call.nbytes for call in answer.calls if call.rank == 0)
    least = 8 * (outputs * features + outputs + 2)
    return [Bound("all-reduces per call", calls, 2, outputs + 2), Bound("bytes per rank", nbytes, least, 2 * least)]


def reducer_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """An all-reduce for each bucket, no more bytes than the buffer has, and all but the last one beside a pass."""
    if case.ranks == 1:
        return []
    inputs = case.inputs[0]
    buckets, nbytes = STEPS * len(inputs["buckets"]), STEPS * inputs["steps"][0].nbytes
    rows = [[call for call in answer.calls if call.rank == rank] for rank in range(case.ranks)]
    sums = [[call for call in row if call.name == "allreduce"] for row in rows]
    bounds = [
        Bound("all-reduces", max(map(len, sums)), buckets, 2 * buckets),
        Bound("bytes per rank", max(sum(call.nbytes for call in row) for row in sums), nbytes, 2 * nbytes),
    ]
    if buckets > STEPS:
        alone = max(buckets - _beside_a_pass(row, STEPS * len(inputs["layers"])) for row in rows)
        bounds.append(Bound("buckets that no backward pass overlaps", alone, STEPS, buckets))
    return bounds


def _beside_a_pass(calls: Sequence[Call], passes: int) -> int:
    """All-reduces of a rank between whose begin and wait the backward pass of a layer begins."""
    moments = [call.begun for call in calls if call.name == "barrier"]
    if len(moments) != passes:  # with barriers of the student's, it is not known which are those of the passes
        return 0
    return sum(
        any(call.begun < moment <= call.waited for moment in moments) for call in calls if call.name == "allreduce"
    )
