"""Fits recover the coefficients, segments and algorithms of synthetic samples."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest

from hybridnn.cost.calibration.communication import OVERHEAD_BYTES, TimedCase
from hybridnn.cost.calibration.fit import (
    LARGE_BYTES,
    fit_collective,
    fit_linear,
    fit_operations,
    fit_overhead,
    fit_segments,
)
from hybridnn.cost.machine import Segment

EAGER, RENDEZVOUS, LARGE = (4096.0, 2e-6, 1e-9), (1e6, 8e-6, 2e-10), (None, 2e-5, 4e-10)


def noisy(seconds: float, generator: np.random.Generator, sigma: float = 0.05) -> float:
    return seconds * float(np.exp(sigma * generator.standard_normal()))


def sizes(count: int, most: float, generator: np.random.Generator) -> list[int]:
    """Spread evenly on a logarithmic scale from 8 bytes up."""
    places = (np.arange(count) + generator.uniform(size=count)) / count
    return [round(8 * (most / 8) ** place) for place in places]


def piecewise(nbytes: int) -> float:
    """Seconds of a message with three regimes, written out."""
    if nbytes <= 4096:
        return 2e-6 + 1e-9 * nbytes
    if nbytes <= 1_000_000:
        return 8e-6 + 2e-10 * nbytes
    return 2e-5 + 4e-10 * nbytes


def at(segments: tuple[Segment, ...], nbytes: int) -> float:
    segment = next(one for one in segments if one.up_to_bytes is None or nbytes <= one.up_to_bytes)
    return segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte


@pytest.mark.parametrize("seed", range(2))
def test_linear_coefficients_of_very_different_size_are_recovered(seed: int) -> None:
    generator = np.random.default_rng(seed)
    features = np.exp(generator.uniform(0, 12, (200, 3))) * [1, 1e3, 1e6]
    true = [3e-6, 2e-9, 5e-12]
    exact = fit_linear(features, features @ true)
    assert exact.coefficients == pytest.approx(true, rel=1e-9)
    assert exact.mean_relative_error < 1e-9
    fit = fit_linear(features, [noisy(seconds, generator) for seconds in features @ true])
    assert fit.coefficients == pytest.approx(true, rel=0.1)
    # The mean of |x| of a normal variable is sigma sqrt(2 / pi).
    assert fit.mean_relative_error == pytest.approx(0.05 * np.sqrt(2 / np.pi), rel=0.25)
    assert fit.seconds([1.0, 2.0, 4.0]) == pytest.approx(float(np.dot(true, [1, 2, 4])), rel=0.1)


def test_coefficients_are_not_negative_and_0_for_absent_features() -> None:
    # 10 - x: the best line falls, the best allowed one is level. Relative error weighs 1 / t^2: sum(1/t) / sum(1/t^2).
    x, seconds = np.arange(1.0, 9.0), 10 - np.arange(1.0, 9.0)
    fit = fit_linear(np.column_stack([np.ones(8), x, np.zeros(8)]), seconds)
    level = (1 / seconds).sum() / (1 / seconds**2).sum()
    assert fit.coefficients == pytest.approx((level, 0.0, 0.0), rel=1e-9)
    assert fit.mean_relative_error == pytest.approx(float(np.abs(level / seconds - 1).mean()))


@pytest.mark.parametrize("seed", range(2))
def test_three_regimes_are_recovered_with_their_borders(seed: int) -> None:
    generator = np.random.default_rng(seed)
    measured = [(n, noisy(piecewise(n), generator)) for n in sizes(90, 2**26, generator)]
    segments = fit_segments(measured)
    assert len(segments) == 3
    for segment, (end, alpha, beta) in zip(segments, (EAGER, RENDEZVOUS, LARGE), strict=True):
        if end is None:
            assert segment.up_to_bytes is None
        else:
            assert segment.up_to_bytes == pytest.approx(end, rel=0.6)
        assert segment.beta_seconds_per_byte == pytest.approx(beta, rel=0.2)
        if alpha != LARGE[1]:  # 20 us in 400 us and more cannot be told from noise
            assert segment.alpha_seconds == pytest.approx(alpha, rel=0.15)
    for nbytes in (8, 100, 1000, 20_000, 300_000, 5_000_000, 50_000_000):
        assert at(segments, nbytes) == pytest.approx(piecewise(nbytes), rel=0.08)


def test_a_straight_line_stays_one_segment() -> None:
    whole = 0
    for seed in range(8):
        generator = np.random.default_rng(seed)
        measured = [(n, noisy(5e-6 + 3e-10 * n, generator)) for n in sizes(30, 2**26, generator)]
        segments = fit_segments(measured)
        whole += len(segments) == 1
        for n in (8, 1000, 100_000, 50_000_000):
            assert at(segments, n) == pytest.approx(5e-6 + 3e-10 * n, rel=0.1)
    assert whole >= 7  # noise may look like a border now and then


def test_the_median_of_a_repeated_size_counts() -> None:
    generator = np.random.default_rng(0)
    repeats = [(n, factor * (5e-6 + 3e-10 * n)) for n in sizes(24, 2**24, generator) for factor in (1, 1, 1, 90, 0.01)]
    (segment,) = fit_segments(repeats)
    assert segment.alpha_seconds == pytest.approx(5e-6, rel=1e-6)
    assert segment.beta_seconds_per_byte == pytest.approx(3e-10, rel=1e-6)


@pytest.mark.parametrize(
    ("measured", "seconds"),
    [
        ([(4096, 2e-5)], 2e-5),
        ([(4096, 1e-5), (4096, 2e-5), (4096, 9e-5)], 2e-5),
        ([(0, 3e-6), (0, 4e-6), (0, 3e-6)], 3e-6),
    ],
)
def test_a_single_size_is_fitted_exactly(measured: list[tuple[int, float]], seconds: float) -> None:
    (segment,) = fit_segments(measured)
    nbytes = measured[0][0]
    assert segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte == pytest.approx(seconds)
    assert nbytes > 0 or segment.beta_seconds_per_byte == 0


def test_larger_messages_are_not_much_cheaper() -> None:
    # Everything above 100 kB takes a quarter of what the line below would say.
    measured = [(n, (1e-5 + 1e-9 * n) * (1 if n < 100_000 else 0.25)) for n in (2**k for k in range(3, 27))]
    segments = fit_segments(measured)
    at_sizes = [at(segments, n) for n in range(8, 2**20, 997)]
    assert min(later / earlier for earlier, later in pairwise(at_sizes)) > 0.75


Closed = Callable[[int, int, float, float], float]
CLOSED_FORMS: dict[str, tuple[str, Closed]] = {
    "ring": ("allreduce", lambda n, p, a, b: 2 * (p - 1) * a + 2 * n * (p - 1) / p * b),
    "recursive_doubling": ("allreduce", lambda n, p, a, b: log2(p) * (a + n * b)),
    "rabenseifner": ("allreduce", lambda n, p, a, b: 2 * log2(p) * a + 2 * n * (p - 1) / p * b),
    "binomial": ("broadcast", lambda n, p, a, b: ceil(log2(p)) * (a + n * b)),
    "scatter_ring": ("broadcast", lambda n, p, a, b: (log2(p) + p - 1) * a + 2 * n * (p - 1) / p * b),
    "bruck": ("allgather", lambda n, p, a, b: log2(p) * a + n * (p - 1) / p * b),
}


@pytest.mark.parametrize("algorithm", CLOSED_FORMS)
def test_the_algorithm_is_recognized_and_extrapolates_to_larger_groups(algorithm: str) -> None:
    operation, closed = CLOSED_FORMS[algorithm]
    generator = np.random.default_rng(1)
    alpha, beta = 2e-6, 5e-10
    timings = {
        ranks: [(n, noisy(closed(n, ranks, alpha, beta), generator)) for n in sizes(20, 2**26, generator)]
        for ranks in (2, 4, 16)
    }
    costs = fit_collective(operation, timings)
    assert [cost.ranks for cost in costs] == [2, 4, 16]
    # For powers of two Bruck's counts are those of recursive doubling: either is right.
    same = {"bruck": {"bruck", "recursive_doubling"}}.get(algorithm, {algorithm})
    assert {cost.algorithm for cost in costs} <= same
    for cost in costs:
        assert (cost.operation, cost.spans_nodes) == (operation, False)
    for n in (100, 10_000, 1_000_000, 50_000_000):
        assert costs[-1].seconds(n, 64) == pytest.approx(closed(n, 64, alpha, beta), rel=0.15)


def test_with_one_size_of_group_the_default_algorithm_is_taken() -> None:
    timings = {2: [(n, 1e-5 + 1e-9 * n) for n in (8, 64, 512, 4096, 32768, 262144)]}
    found = {op: fit_collective(op, timings)[0].algorithm for op in ("allreduce", "allgather", "broadcast", "barrier")}
    assert found == {
        "allreduce": "rabenseifner",
        "allgather": "bruck",
        "broadcast": "binomial",
        "barrier": "dissemination",
    }
    (cost,) = fit_collective("allreduce", timings, spans_nodes=True)
    assert cost.spans_nodes
    assert cost.seconds(100_000, 2) == pytest.approx(1e-5 + 1e-9 * 100_000, rel=1e-3)


SIZES = [2**exponent for exponent in range(3, 27)]


def samples(operation: str, alpha: float, beta: float, ranks: int = 2, spans_nodes: bool = False) -> list[TimedCase]:
    """Made to a line; the second of every three is held out, and took 10 % longer, 30 % from 1 MiB up."""
    made = []
    for index, nbytes in enumerate(SIZES):
        held_out = index % 3 == 1
        factor = (1.3 if nbytes >= 2**20 else 1.1) if held_out else 1.0
        made.append(TimedCase(operation, ranks, spans_nodes, nbytes, factor * (alpha + beta * nbytes), held_out))
    return made


def test_held_out_sizes_are_not_fitted_and_give_the_error() -> None:
    assert fit_operations([]) == ()
    (fit,) = fit_operations(samples("send", 5e-6, 1e-9))
    assert fit.cost.segments[0].alpha_seconds == pytest.approx(5e-6, rel=1e-6)
    assert fit.cost.segments[0].beta_seconds_per_byte == pytest.approx(1e-9, rel=1e-6)
    # Held out are 2^4, 2^7, 2^10, 2^13, 2^16, 2^19 with 10 %, and 2^22, 2^25 with 30 %.
    error, large = fit.held_out_error(), fit.held_out_error(LARGE_BYTES)
    assert (error.sizes, large.sizes) == (8, 4)
    assert error.mean == pytest.approx((6 * 0.1 / 1.1 + 2 * 0.3 / 1.3) / 8, rel=1e-6)
    assert error.max == pytest.approx(0.3 / 1.3, rel=1e-6)
    assert large.mean == pytest.approx((2 * 0.1 / 1.1 + 2 * 0.3 / 1.3) / 4, rel=1e-6)
    assert fit.cost.held_out_error == pytest.approx(large.mean)
    assert fit.held_out_error(2**26) is None


def test_fits_are_by_operation_and_group() -> None:
    made = [
        *samples("allreduce", 2e-6, 1e-9),
        *samples("allreduce", 2e-6, 1e-9, ranks=4),
        *samples("allreduce", 9e-6, 1e-9, ranks=2, spans_nodes=True),
        *samples("send", 1e-6, 1e-9),
    ]
    fits = fit_operations(made)
    found = {(fit.operation, fit.cost.ranks, fit.cost.spans_nodes) for fit in fits}
    assert found == {("allreduce", 2, False), ("allreduce", 4, False), ("allreduce", 2, True), ("send", 2, False)}
    for fit in fits:
        assert {(one.operation, one.ranks, one.spans_nodes) for one in fit.samples} == {
            (fit.operation, fit.cost.ranks, fit.cost.spans_nodes)
        }
        assert len(fit.samples) == len(SIZES)


def test_the_nonblocking_all_reduce_is_the_blocking_one_times_a_factor() -> None:
    # 4 times as long for small sizes, twice as long for those that count.
    slower = [
        replace(one, operation="iallreduce", seconds=one.seconds * (2 if one.nbytes >= LARGE_BYTES else 4))
        for one in samples("allreduce", 5e-6, 1e-9)
    ]
    fits = {fit.operation: fit for fit in fit_operations([*samples("allreduce", 5e-6, 1e-9), *slower])}
    assert fits["allreduce"].factor == 1
    assert fits["iallreduce"].factor == pytest.approx(2, rel=1e-6)
    assert fits["iallreduce"].seconds(2**20) == pytest.approx(2 * (5e-6 + 1e-9 * 2**20), rel=1e-6)


def test_overheads_of_messages_are_recovered() -> None:
    known = {nbytes: 5e-6 + 2e-9 * nbytes for nbytes in OVERHEAD_BYTES}
    found = fit_overhead(list(known.items()))
    assert (found.message_seconds, found.seconds_per_byte) == (pytest.approx(5e-6), pytest.approx(2e-9))
    assert found.seconds(10**6) == pytest.approx(5e-6 + 2e-3)
    # Differences of two noisy times may be 0.
    assert fit_overhead([(nbytes, 0.0) for nbytes in OVERHEAD_BYTES]).seconds(1 << 18) < 1e-5
