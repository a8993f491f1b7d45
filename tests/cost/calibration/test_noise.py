from __future__ import annotations

import numpy as np
import pytest

from hybridnn.cost.calibration.compute import fit_noise
from hybridnn.cost.machine.file import read_machine

pytestmark = pytest.mark.slow


def test_exponential_delays_are_found_again() -> None:
    generator = np.random.default_rng(0)
    networks = [list(seconds * (1 + generator.exponential(0.2, 40))) for seconds in (1e-4, 1e-2) for _ in range(200)]
    # The median has ln 2 of a delay in it already, and the delay is relative to it.
    assert fit_noise(networks) == pytest.approx(0.2 / (1 + 0.2 * np.log(2)), rel=0.05)


@pytest.mark.parametrize("rounds", [2, 5, 6, 7, 17, 40])
def test_the_expected_distance_of_the_quartiles_is_that_of_drawn_delays(rounds: int) -> None:
    """Around a base so long that the median is the base: then the estimate is the mean delay itself."""
    drawn = 1e6 + np.random.default_rng(1).exponential(1.0, (20_000, rounds))
    found = [fit_noise([one]) * 1e6 for one in drawn]
    assert np.mean(found) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("factor", [3.0, 20.0, 1000.0])
def test_few_slow_rounds_do_not_decide(factor: float) -> None:
    """Of delays with 5 % outliers: quartiles of the rest move by a seventh, the mean by as much as the outliers."""
    generator = np.random.default_rng(2)
    times = 1 + generator.exponential(0.2, (300, 40))
    times[generator.random(times.shape) < 0.05] *= factor
    clean = 0.2 / (1 + 0.2 * np.log(2))
    assert clean < fit_noise(times.tolist()) < 1.2 * clean


def test_networks_that_met_another_job_do_not_decide() -> None:
    generator = np.random.default_rng(3)
    times = 1 + generator.exponential(0.2, (200, 40))
    times[:10] *= 1 + generator.exponential(5.0, (10, 40))
    assert fit_noise(times.tolist()) == pytest.approx(0.2 / (1 + 0.2 * np.log(2)), rel=0.1)


def test_equal_times_have_no_noise() -> None:
    assert fit_noise([[2.0] * 5, [3.0] * 7]) == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 64])
def test_pace_is_that_of_the_slowest_of_many_draws(ranks: int) -> None:
    compute = read_machine("cluster-1024").compute[0].model_copy(update={"noise": 0.2})
    delays = 0.2 * np.random.default_rng(0).exponential(size=(40_000, ranks))
    median = 1.0
    drawn = median - 0.2 * np.log(2) + delays.max(1).mean()
    assert compute.pace(ranks) == pytest.approx(drawn, rel=0.005)


def test_without_noise_all_ranks_are_alike() -> None:
    compute = read_machine("cluster-1024").compute[0]
    assert compute.noise == 0
    assert compute.pace(1024) == 1
    assert compute.scaled(2.0).noise == 0
