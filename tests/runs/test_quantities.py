"""Figures of runs: speed, prediction error, scaling, and what limits them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridnn.runs.quantities import (
    RunFigures,
    TimeShares,
    compare_runs,
    distinguishing_conditions,
    figures_of,
    instruction_figures,
    judge,
    karp_flatt_fraction,
    mean_shares,
    relative_error,
)
from hybridnn.runs.run_files import read_run
from reference.finished_runs import measured_line, prediction_line, write_run


def test_figures_of_a_run_without_a_prediction(tmp_path: Path) -> None:
    figures = figures_of(read_run(write_run(tmp_path, ranks=4, grid=(1, 2, 2), samples=1000)))
    # Epochs of 9, 2, 1 and 3 s, ten steps each: the median of the last three.
    assert (figures.seconds_per_epoch, figures.seconds_per_step) == (2, 0.2)
    assert figures.samples_per_second == 500
    assert figures.bytes_per_step == 1500  # of 10, 15 and 20 kB per epoch
    assert figures.shares.communicate == pytest.approx(0.25)
    assert figures.shares.idle is None
    assert (figures.grid, figures.network, figures.ranks) == ("2x2", "64-64-64-10", 4)
    assert (figures.metric_name, figures.metric) == ("test accuracy", 0.5)
    assert figures.predicted_seconds_per_step is None
    assert figures.prediction_error is None
    assert figures.verdict.limit == "communicate"


def test_figures_of_a_predicted_run(tmp_path: Path) -> None:
    lines = [prediction_line(0.25), measured_line(1, 9.0), measured_line(2, 0.2), measured_line(3, 0.2)]
    run = read_run(write_run(tmp_path, accuracy=None, lines=lines))
    figures = figures_of(run)
    assert figures.prediction_error == pytest.approx(0.25)
    assert (figures.predicted_seconds_per_epoch, figures.predicted_bytes_per_step) == (2.5, 4000)
    assert figures.shares.communicate == pytest.approx(0.3)
    assert (figures.shares.bubble, figures.shares.wait) == (0, pytest.approx(0.1))
    assert figures.shares.overhead == pytest.approx(0.1)
    assert (figures.metric_name, figures.metric) == ("test R²", 0.75)
    forward, backward, update = instruction_figures(run)
    assert (forward.kind, backward.kind, update.kind) == ("forward", "backward", "update")
    assert forward.seconds_per_step == pytest.approx(0.04)  # the first epoch does not count
    assert forward.error == pytest.approx(0.05 / 0.04 - 1)
    assert (backward.predicted_seconds_per_step, backward.error) == (None, None)
    assert (update.seconds_per_step, update.error) == (None, None)


def test_karp_flatt_fraction_inverts_amdahls_law() -> None:
    for serial, ranks in ((0.0, 4), (0.1, 2), (1.0, 3)):
        assert karp_flatt_fraction(1 / (serial + (1 - serial) / ranks), ranks) == pytest.approx(serial)
    assert karp_flatt_fraction(1.0, 1) is None
    assert karp_flatt_fraction(0.5, 2) == 3.0  # two ranks take twice as long
    assert karp_flatt_fraction(4.0, 2) == pytest.approx(-0.5)  # faster than the ranks allow


def test_load_balance_is_mean_over_greatest_computing_time(tmp_path: Path) -> None:
    lines = [measured_line(1, 9.0, most_computing=9.0)]
    lines += [measured_line(2, 0.2, most_computing=0.12), measured_line(3, 0.2, most_computing=0.13)]
    shares = figures_of(read_run(write_run(tmp_path, ranks=2, lines=lines))).shares
    assert shares.most_compute == pytest.approx(0.625)  # of the second and third epoch
    assert shares.load_balance == pytest.approx(0.5 / 0.625)
    assert shares.load_balance * shares.communication_efficiency == pytest.approx(shares.compute)  # type: ignore[operator]


def test_what_one_run_lacks_is_missing() -> None:
    found = mean_shares([TimeShares(0.1, 0.05, 0.15, 0.3, 0.5), TimeShares(0.3, 0.3, 0.1, 0.1)])
    assert (found.communicate, found.idle, found.overhead) == pytest.approx((0.2, 0.3, 0.2))
    assert found.most_compute is None
    assert found.compute == pytest.approx(0.3)
    assert sum(found.parts.values()) == pytest.approx(1)
    assert relative_error(1.0, 0.0) is None
    assert relative_error(None, 1.0) is None


def test_small_runs_are_limited_by_overhead(tmp_path: Path) -> None:
    # 64 x 2 + 2 + 2 x 10 + 10 = 160 parameters, and six operations for each of 10 samples.
    run = read_run(write_run(tmp_path, hidden=[2], batch_size=10, communication_share=0.0))
    assert figures_of(run).verdict.text == "too small: overhead, 0.0096 MFlop per rank and step"


def _figures(folder: Path, ranks: int, seconds: float, predicted: float | None = None, **options: object) -> RunFigures:
    lines = [] if predicted is None else [prediction_line(predicted / 10)]
    return figures_of(read_run(write_run(folder, ranks=ranks, seconds=[seconds], lines=lines, **options)))  # type: ignore[arg-type]


def test_scaling_is_against_the_fewest_ranks(tmp_path: Path) -> None:
    runs = [
        _figures(tmp_path / "8", 8, 3.0, 2.0),
        _figures(tmp_path / "2", 2, 6.0, 5.0),
        _figures(tmp_path / "4", 4, 4.0),
    ]
    (group,) = compare_runs(runs)
    assert group.base.folder.endswith("/2")
    assert [row.figures.ranks for row in group.rows] == [2, 4, 8]
    assert [row.speed_up for row in group.rows] == [1.0, 1.5, 2.0]
    assert [row.efficiency for row in group.rows] == [1.0, 0.75, 0.5]
    assert [row.predicted_speed_up for row in group.rows] == [1.0, None, 2.5]


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"batch_size": 50}, {"training.batch_size": ("100", "50")}),
        ({"settings": {"training": {"dtype": "float64"}}}, {"training.dtype": ("float32", "float64")}),
        ({"settings": {"optimizer": {"name": "adam"}}}, {"optimizer.name": ("sgd", "adam")}),
        ({"settings": {"optimizer": {"momentum": 0.5}}}, {"optimizer.momentum": ("0.9", "0.5")}),
        ({"settings": {"model": {"activation": "tanh"}}}, {"model.activation": ("relu", "tanh")}),
        ({"hidden": [8]}, {"model.sizes": ("(64, 64, 64, 10)", "(64, 8, 10)")}),
        ({"samples": 10}, {"data.train_samples": ("1000", "10")}),
    ],
)
def test_runs_of_other_work_or_training_are_not_compared(
    tmp_path: Path, options: dict[str, object], condition: dict[str, tuple[str, str]]
) -> None:
    runs = [_figures(tmp_path / "a", 1, 6.0), _figures(tmp_path / "b", 2, 3.0, **options)]
    groups = compare_runs(runs)
    assert [[row.speed_up for row in group.rows] for group in groups] == [[1.0], [1.0]]
    first, second = distinguishing_conditions(runs)
    for name, values in condition.items():
        assert (first[name], second.get(name)) == values


def test_exact_methods_are_compared_and_others_with_the_same_stages_alone(tmp_path: Path) -> None:
    def run(name: str, grid: tuple[int, int, int], method: str, **options: object) -> RunFigures:
        return _figures(tmp_path / name, grid[0] * grid[1], 6.0, grid=grid, method=method, **options)

    seed = {"training": {"seed": 1, "epochs": 3}, "output": {"log_every": 7}}
    exact = [run("a", (1, 1, 1), "sequential"), run("b", (2, 1, 1), "gpipe"), run("c", (1, 2, 1), "sequential")]
    exact.append(run("d", (4, 1, 1), "1f1b", settings=seed))
    stale = [
        run("e", (2, 1, 1), "ddg"),
        run("f", (2, 2, 1), "ddg"),
        run("g", (3, 1, 1), "ddg"),
        run("h", (2, 1, 1), "fr"),
    ]
    groups = [[row.figures.folder[-1] for row in group.rows] for group in compare_runs(exact + stale)]
    assert groups == [["a", "b", "c", "d"], ["e", "f"], ["g"], ["h"]]


LARGE, SMALL = 1e9, 1e6


@pytest.mark.parametrize(
    ("shares", "flops", "limit", "text"),
    [
        (TimeShares(0.45, 0.0, 0.1, 0.05), LARGE, "communicate", "communicate, 45% of the step"),
        (TimeShares(0.1, 0.1, 0.4, 0.1), LARGE, "wait", "wait, 40% of the step"),
        (TimeShares(0.1, 0.4, 0.1, 0.1), LARGE, "bubble", "bubble, 40% of the step"),
        (TimeShares(0.1, 0.0, 0.2, 0.5), LARGE, "overhead", "too small: overhead, 50% of the step"),
        (TimeShares(0.2, 0.0, 0.2, 0.2), LARGE, "compute", "compute"),
        (TimeShares(0.24), LARGE, "compute", "compute"),
        (TimeShares(0.25), LARGE, "communicate", "communicate and wait, 25% of the step"),
        (TimeShares(0.0), SMALL, "overhead", "too small: overhead, 1 MFlop per rank and step"),
        (TimeShares(0.6), SMALL, "communicate", "communicate and wait, 60% of the step"),
    ],
)
def test_greatest_costly_share_limits_a_run(shares: TimeShares, flops: float, limit: str, text: str) -> None:
    verdict = judge(shares, flops)
    assert (verdict.limit, verdict.text) == (limit, text)
