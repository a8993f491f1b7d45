"""Intervals and decisions on bounds: closed forms, and how often they are false where nothing is to be told."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybridnn.study.judgement import Contrast, Estimate, Sample, UndecidedError, decide
from hybridnn.study.study_folder import ManifestCell
from hybridnn_papers.records import CellFigures, StudyRecords
from hybridnn_papers.statements import Conclusions
from hybridnn_papers.verdicts import verdicts_of

FINITE = st.floats(-1e6, 1e6)
BOUND = st.one_of(st.none(), FINITE)


@given(st.lists(FINITE, min_size=3, max_size=8), BOUND, BOUND)
@example([1.0, 1.0, 1e-285], None, None)  # an interval that ends above all numbers
def test_no_value_outside_the_bounds_agrees(values: list[float], at_least: float | None, at_most: float | None) -> None:
    for kind in ("training", "time"):
        estimate = Contrast(_sample(values, kind)).estimate()
        outcome = decide(estimate, at_least, at_most)
        inside = (at_least is None or estimate.value >= at_least) and (at_most is None or estimate.value <= at_most)
        assert outcome != ("does not" if inside else "agrees")


@given(FINITE, FINITE, FINITE, BOUND, BOUND)
def test_decision_is_that_of_all_values_between(
    value: float, low: float, high: float, at_least: float | None, at_most: float | None
) -> None:
    low, high = min(low, high), max(low, high)
    found = [value, low, high]
    inside = [(at_least is None or x >= at_least) and (at_most is None or x <= at_most) for x in found]
    outcome = decide(Estimate(value, low, high), at_least, at_most)
    assert (outcome == "agrees") == all(inside)
    assert not (outcome == "does not" and any(inside))


def test_undefined_values_do_not_decide() -> None:
    for estimate in (Estimate(1.0), Estimate(nan, nan, nan), Estimate(nan)):
        assert decide(estimate, 0.0, None) == "cannot be decided"


def _sample(values: Iterable[float], kind: Any = "training", choices: int = 1) -> Sample:
    return Sample({str(seed): float(value) for seed, value in enumerate(values)}, kind, choices)


def test_intervals_by_hand() -> None:
    """Student's t of paired seeds, of logarithms for ratios, and Clopper and Pearson's of counted runs."""
    first, second = _sample([1, 2, 3]), _sample([11, 12, 14])
    difference = Contrast(second, first).estimate()
    half = 4.302653 * np.std([10, 10, 11], ddof=1) / np.sqrt(3)
    assert (difference.low, difference.high) == pytest.approx((31 / 3 - half, 31 / 3 + half))
    logs = np.log([11, 6, 14 / 3])
    half = 4.302653 * logs.std(ddof=1) / np.sqrt(3)
    ratio = Contrast(second, first, "ratio").estimate()
    assert (ratio.low, ratio.high) == pytest.approx((np.exp(logs.mean() - half), np.exp(logs.mean() + half)))
    assert Contrast(_sample([0, 0, 0], "share")).estimate().high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert Contrast(_sample([1] * 7, "share")).estimate(2).low == pytest.approx(0.0125 ** (1 / 7))
    for others in (_sample([1, 2]), Sample({"a": 1.0, "b": 1.0, "c": 1.0}, "training")):
        with pytest.raises(UndecidedError, match="these differ"):
            Contrast(first, others)


METHODS_4 = list("abcd")
REPETITIONS, MOST_FALSE = 3000, 0.06


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("by", ["difference", "ratio"])
def test_without_a_difference_few_comparisons_are_decided(seeds: int, by: Any) -> None:
    """Both sides have one distribution, so that every decision on the bound of equality is false."""
    drawn = np.random.default_rng(seeds).normal(0.9, 0.01, (REPETITIONS, 2, seeds))
    bound = 1.0 if by == "ratio" else 0.0
    found = [decide(Contrast(_sample(a), _sample(b), by).estimate(), bound, None) for a, b in drawn]
    assert 0.04 < np.mean([outcome != "cannot be decided" for outcome in found]) < MOST_FALSE


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    "statement",
    [
        {"where": {"method": METHODS_4}},  # all have to agree, and one contradiction decides
        {"where": {"method": METHODS_4}, "any": True},  # one that agrees decides
        {"over": ["method"]},  # the best of four
    ],
    ids=["all", "any", "best"],
)
def test_of_several_comparisons_few_statements_are_decided(seeds: int, statement: dict[str, Any]) -> None:
    """Four points whose true value is the bound."""
    given = {"says": "Says.", "quantity": "best_metric", "at_least": 0.0, **statement}
    conclusions = Conclusions.model_validate({"statements": [given]})
    generator, false = np.random.default_rng(seeds), 0
    names = [(method, seed) for method in METHODS_4 for seed in range(seeds)]
    planned = tuple(ManifestCell(f"{m}{seed}", 1, {"method": m, "seed": seed}) for m, seed in names)
    for drawn in generator.normal(size=(REPETITIONS, len(planned))):
        cells = tuple(
            CellFigures(cell.id, cell.values, 1, 1, False, "", {"best_metric": float(value)})
            for cell, value in zip(planned, drawn, strict=True)
        )
        (verdict,) = verdicts_of(StudyRecords(planned, cells, {}), conclusions)
        false += verdict.outcome != "cannot be decided"
    assert false < MOST_FALSE * REPETITIONS


@pytest.mark.parametrize("seeds", [3, 7, 10])
def test_of_shares_of_one_half_few_are_decided(seeds: int) -> None:
    drawn = np.random.default_rng(seeds).integers(0, 2, (REPETITIONS, 2, seeds))
    for other in (False, True):
        contrasts = [Contrast(_sample(a, "share"), _sample(b, "share") if other else None) for a, b in drawn]
        found = [decide(contrast.estimate(), 0.0 if other else 0.5, None) for contrast in contrasts]
        assert np.mean([outcome != "cannot be decided" for outcome in found]) < MOST_FALSE
