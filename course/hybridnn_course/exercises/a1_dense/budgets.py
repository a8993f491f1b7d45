"""Budgets of A1."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn_course.answers import Answer
from hybridnn_course.assignment import Bound, Case, Variant
from hybridnn_course.measuring import measured_amount, measured_bounds


def cost_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """No loops over elements and no large temporary arrays, in the cases that measure them."""
    return measured_bounds(answer)


def differences_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Two evaluations for an element."""
    least = 2 * case.inputs[0]["point"].size
    return [Bound("evaluations", measured_amount(answer, "evaluations"), least, 1.5 * least)]
