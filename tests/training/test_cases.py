"""Trainings on every grid, by every method and with every setting equal the serial reference or replay, to 1e-10."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference import network as net
from reference.cases import reference
from reference.pipeline_cases import MOMENTUM
from reference.training_cases import TrainingCase, run_training_case
from reference.training_list import all_cases


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case", [pytest.param(it, id=str(it), marks=[pytest.mark.slow] * (it.ranks > 4)) for it in all_cases()]
)
def test_training_equals_the_reference(case: TrainingCase) -> None:
    run_training_case(case)


def test_cases_with_a_limit_of_the_norm_are_clipped() -> None:
    """Else a training without clipping would pass."""
    gradients = reference(replace(MOMENTUM, clip_norm=0.05)).gradients
    assert net.norm(gradients.values()) == pytest.approx(0.05)
