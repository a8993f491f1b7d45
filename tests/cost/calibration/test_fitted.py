"""The fits of samples: held-out sizes stay out of them, and give its error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridnn.cost.calibration.communication import TimedCase
from hybridnn.cost.calibration.fit import LARGE_BYTES, fit_operations
from hybridnn.cost.plots import draw_fits
from hybridnn.errors import EnvironmentProblem

SIZES = [2**exponent for exponent in range(3, 27)]


def samples(operation: str, alpha: float, beta: float, ranks: int = 2, spans_nodes: bool = False) -> list[TimedCase]:
    """Made to a line; the second of every three is held out, and took 10 % longer, 30 % from 1 MiB up."""
    made = []
    for index, nbytes in enumerate(SIZES):
        held_out = index % 3 == 1
        factor = (1.3 if nbytes >= 2**20 else 1.1) if held_out else 1.0
        made.append(TimedCase(operation, ranks, spans_nodes, nbytes, factor * (alpha + beta * nbytes), held_out))
    return made


def test_held_out_sizes_do_not_enter_the_fit_and_give_its_error() -> None:
    (fit,) = fit_operations(samples("send", 5e-6, 1e-9))
    assert fit.cost.segments[0].alpha_seconds == pytest.approx(5e-6, rel=1e-6)
    assert fit.cost.segments[0].beta_seconds_per_byte == pytest.approx(1e-9, rel=1e-6)
    # Held out are 2^4, 2^7, 2^10, 2^13, 2^16, 2^19 with 10 %, and 2^22, 2^25 with 30 %.
    error, large = fit.held_out_error(), fit.held_out_error(LARGE_BYTES)
    assert error is not None
    assert large is not None
    assert (error.sizes, large.sizes) == (8, 4)
    assert error.mean == pytest.approx((6 * 0.1 / 1.1 + 2 * 0.3 / 1.3) / 8, rel=1e-6)
    assert error.max == pytest.approx(0.3 / 1.3, rel=1e-6)
    assert large.mean == pytest.approx((2 * 0.1 / 1.1 + 2 * 0.3 / 1.3) / 4, rel=1e-6)
    assert fit.cost.held_out_error == pytest.approx(large.mean)
    assert fit.held_out_error(2**26) is None


def test_fits_are_by_operation_group_and_place() -> None:
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


def test_nothing_measured_gives_no_fits() -> None:
    assert fit_operations([]) == ()


def test_the_plot_is_a_picture_and_says_where_it_cannot_be_written(tmp_path: Path) -> None:
    made = [*samples("send", 1e-6, 1e-9), *samples("allreduce", 9e-6, 1e-9, 4, spans_nodes=True)]
    fits = fit_operations([*made, TimedCase("barrier", 2, False, 0, 3e-6, False)])
    draw_fits(fits, tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(EnvironmentProblem, match=r"no/fit\.png cannot be written"):
        draw_fits(fits, tmp_path / "no" / "fit.png")
