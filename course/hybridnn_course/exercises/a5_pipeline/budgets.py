"""Budget of A5."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.pipeline.schedules.schedule import ScheduleError, ScheduleSize
from hybridnn_course.answers import MEASURED, Answer
from hybridnn_course.assignment import Bound, Case, Variant
from hybridnn_course.exercises.a5_pipeline.calls import size_of
from hybridnn_course.exercises.a5_pipeline.notation import timed

MOST_TEXT = 1 << 16  # characters of an order that the budget reads


def zero_bubble_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Makespan between that of ZB-H1 and that of 1F1B with split backward passes, and memory."""
    size = size_of(case.inputs[0])
    of_passes, behind = 3 * size.microbatches, size.stages - 1
    best = of_passes + behind + max(0, size.stages - size.microbatches)
    most = min(size.stages, size.microbatches)
    makespan, stored = _zero_bubble_amounts(size, answer)
    return [
        Bound(
            "makespan in forward passes", makespan, size.minibatches * best, size.minibatches * (of_passes + 2 * behind)
        ),
        Bound("microbatches whose activations a stage stores", stored, most, 2 * most),
    ]


def _zero_bubble_amounts(size: ScheduleSize, answer: Answer) -> tuple[float, float]:
    """Makespan and most activations of an answer; infinite if its orders break a rule."""
    measured = answer.outputs[0].get(MEASURED)
    texts = measured.get("orders") if isinstance(measured, dict) else None
    try:
        if (
            not isinstance(texts, list)
            or len(texts) != size.stages
            or any(not isinstance(text, str) or len(text) > MOST_TEXT for text in texts)
        ):
            raise ValueError("no orders")
        timeline = timed(size, texts)
    except (ScheduleError, ValueError):
        return float("inf"), float("inf")
    return timeline.makespan, max(plan.peak_live_activations for plan in timeline.plans)
