from __future__ import annotations

import numpy as np
import pytest

from hybridnn.cost.calibration.noise import fit_noise
from hybridnn.cost.machine.machine_file import read_machine


def test_exponential_delays_are_found_again() -> None:
    generator = np.random.default_rng(0)
    networks = [list(seconds * (1 + generator.exponential(0.2, 40))) for seconds in (1e-4, 1e-2) for _ in range(200)]
    # The median has ln 2 of a delay in it already, and the delay is relative to it.
    assert fit_noise(networks) == pytest.approx(0.2 / (1 + 0.2 * np.log(2)), rel=0.05)


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
