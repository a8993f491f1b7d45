"""The judgement on simulated studies of which the truth is known, and on measurements that allow no conclusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ttest_ind

from hybridnn.study.judgement import Estimate, Judgement, Sample, fastest_of, judge

STUDIES = 1000
SAMPLES = 360  # of a test
MOST_FALSE = 0.05 + 3 * np.sqrt(0.05 * 0.95 / STUDIES)  # 5 %, and three standard deviations of the count
DEVIATION = 0.03  # of a paired time: sqrt(2) times that of each
Draw = Callable[[int, int], NDArray[np.float64]]


def times(values: Iterable[float]) -> Sample:
    return Sample({str(number): float(value) for number, value in enumerate(values)}, "time")


def accuracies(values: Iterable[float]) -> Sample:
    return Sample({str(number): float(value) for number, value in enumerate(values)}, "training", step=1 / SAMPLES)


def drawn_times(generator: np.random.Generator, true: NDArray[np.float64], rounds: int) -> list[Sample]:
    """Times in rounds, each of which slows down the machine in its own way."""
    drift = generator.normal(0, 0.2, rounds)
    noise = generator.normal(0, DEVIATION / np.sqrt(2), (len(true), rounds))
    return [times(values) for values in true[:, None] * np.exp(drift + noise)]


@pytest.mark.parametrize("rounds", [3, 5, 8])
@pytest.mark.parametrize("layouts", [2, 3, 8])
@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_layouts_that_are_equally_fast_have_no_fastest(rounds: int, layouts: int, slower: float) -> None:
    generator = np.random.default_rng([rounds, layouts])
    true = np.array([1.0, 1.0, *[slower] * (layouts - 2)])
    claims = [
        all(found.conclusion == "higher" for _, found in fastest_of(drawn_times(generator, true, rounds))[1])
        for _ in range(STUDIES)
    ]
    assert np.mean(claims) < MOST_FALSE


def test_a_study_of_several_numbers_of_ranks_has_no_more_false_answers() -> None:
    generator = np.random.default_rng(5)
    claims = [
        any(
            found.conclusion == "higher"
            for _ in range(3)
            for _, found in fastest_of(drawn_times(generator, np.ones(2), 5), answers=3)[1]
        )
        for _ in range(STUDIES)
    ]
    assert np.mean(claims) < MOST_FALSE


@pytest.mark.parametrize("layouts", [2, 8])
def test_the_least_of_equal_times_is_rarely_faster_than_the_base(layouts: int) -> None:
    """The layout is chosen by its time, so its comparison with the base is one of those of all layouts."""
    generator = np.random.default_rng(layouts)
    claims = []
    for _ in range(STUDIES):
        base, *others = drawn_times(generator, np.ones(layouts + 1), 5)
        best, *_ = fastest_of(others)
        claims.append(judge(base, others[best], comparisons=layouts).conclusion != "undecided")
    assert np.mean(claims) < MOST_FALSE


def test_a_layout_that_is_a_tenth_faster_is_found() -> None:
    generator = np.random.default_rng(0)
    for layouts in (2, 9):
        true = np.array([1.0, *[1.1] * (layouts - 1)])
        found = [fastest_of(drawn_times(generator, true, 5)) for _ in range(STUDIES)]
        right = [best == 0 and all(one.conclusion == "higher" for _, one in others) for best, others, _ in found]
        assert np.mean(right) >= 0.8


def judged_methods(
    generator: np.random.Generator, costs: Iterable[float], seeds: int = 5, noise: float = 0.004, margin: float = 0.02
) -> list[Judgement]:
    """Accuracies of methods that cost so much, each beside one baseline, as parts of 360 test samples."""
    costs = list(costs)
    drift = generator.normal(0, 0.011, seeds)
    true = 0.95 - np.array([0.0, *costs])[:, None] + drift
    base, *others = (
        accuracies(row) for row in np.round(SAMPLES * (true + generator.normal(0, noise, true.shape))) / SAMPLES
    )
    return [judge(other, base, "difference", comparisons=len(costs), margin=margin) for other in others]


@pytest.mark.parametrize("margin", [0.0, 0.02])
def test_methods_that_cost_nothing_are_rarely_said_to_cost_accuracy(margin: float) -> None:
    generator = np.random.default_rng(1)
    studies = [judged_methods(generator, [0.0] * 5, margin=margin) for _ in range(STUDIES)]
    assert np.mean([any(found.conclusion in ("lower", "higher") for found in study) for study in studies]) < MOST_FALSE


def test_a_cost_beyond_the_margin_is_never_nothing() -> None:
    """Of eight methods one costs more than the margin; that the interval lies within it is as rare as stated."""
    generator = np.random.default_rng(2)
    studies = [judged_methods(generator, [0.021, *[0.0] * 7], seeds=8) for _ in range(STUDIES)]
    assert np.mean([study[0].conclusion == "equal" for study in studies]) < MOST_FALSE


@pytest.mark.parametrize("seeds", [3, 4, 5])
@pytest.mark.parametrize("noise", [0.001, 0.002])
def test_accuracies_that_agree_in_few_samples_show_no_certainty(seeds: int, noise: float) -> None:
    """Differences of a few test samples are often equal in all of three seeds; that is no interval of zero width."""
    generator = np.random.default_rng(4)
    studies = [judged_methods(generator, [0.0051] * 5, seeds, noise, margin=0.005) for _ in range(STUDIES)]
    assert np.mean([any(found.conclusion == "equal" for found in study) for study in studies]) < MOST_FALSE
    studies = [judged_methods(generator, [0.0] * 5, seeds, noise, margin=0.001) for _ in range(STUDIES)]
    assert np.mean([any(found.conclusion == "lower" for found in study) for study in studies]) < MOST_FALSE


def test_without_pairs_the_interval_is_that_of_welch() -> None:
    """Of two folders that ran at different times, rounds of one number have nothing in common."""
    generator = np.random.default_rng(6)
    for rounds, others in ((3, 3), (5, 8), (8, 3)):
        logs = [(generator.normal(0, 0.01, rounds), generator.normal(0, 0.04, others)) for _ in range(STUDIES)]
        found = [judge(times(np.exp(a)), times(np.exp(b)), comparisons=2, is_paired=False) for a, b in logs]
        ends = ttest_ind(*logs[0], equal_var=False).confidence_interval(1 - 0.05 / 2)
        estimate = found[0].estimate
        assert (estimate.low, estimate.high) == pytest.approx(tuple(np.exp([ends.low, ends.high])))
        assert estimate.value == pytest.approx(np.exp(logs[0][0].mean() - logs[0][1].mean()))
        assert np.mean([one.conclusion != "undecided" for one in found]) < MOST_FALSE
    assert judge(times([2.0] * 3), times([1.0] * 4), is_paired=False).estimate == Estimate(2.0, 2.0, 2.0)
    few = judge(times([2.0] * 5), times([1.0, 1.1]), is_paired=False)
    assert (few.estimate.low, few.reservation) == (None, "2 rounds cannot show a difference")


@pytest.mark.parametrize("by", ["ratio", "difference"])
def test_too_little_allows_no_conclusion(by: Literal["ratio", "difference"]) -> None:
    base, other = [1.0, 1.0, 1.0], [2.0, 2.0, 2.1]
    assert judge(accuracies([1.0, 2.0, np.inf]), accuracies(base), by).reservation == "some runs diverged"
    assert judge(times(other), times(base), by).conclusion == "higher"
    none = judge(Sample({"a": 2.0}, "time"), times(base), by)
    assert (none.estimate, none.reservation) == (Estimate(2.0 if by == "ratio" else 1.0), "no round is common")


@pytest.mark.parametrize(
    ("found", "by", "expected"),
    [
        (Estimate(1.06, 1.0045, 1.11), "ratio", "1.060 [1.004, 1.110]"),
        (Estimate(1.06, 0.97, 1.11), "ratio", "1.06 [0.97, 1.11]"),
        (Estimate(1.0, 1.0, 1.0), "ratio", "1.00 [1.00, 1.00]"),
        (Estimate(-1e-17, -0.001, 0.001), "difference", "+0.0000 [-0.0010, +0.0010]"),
        (Estimate(0.01, 0.00002, 0.02), "difference", "+0.01000 [+0.00002, +0.02000]"),
        (Estimate(0.01), "difference", "+0.0100"),
        (Estimate(float("nan")), "difference", "-"),
    ],
)
def test_printed_ends_of_an_interval_are_on_their_side_of_no_difference(found, by, expected) -> None:
    assert Judgement(found, "undecided", by, {}).text == expected
