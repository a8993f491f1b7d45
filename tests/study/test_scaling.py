import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from hybridnn.drawing.figures import figure_bytes
from hybridnn.runs.quantities import differing
from hybridnn.runs.run_files import RunRecord, read_run
from hybridnn.study.answer import warnings_of
from hybridnn.study.judgement import Estimate, MeanDeviation
from hybridnn.study.plots import breakdowns_of, curves_of, draw_plots
from hybridnn.study.report import breakdown_rows, point_rows
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.scaling import (
    baseline_text,
    compare_points,
    grid_maps,
    group_runs,
    strong_lines,
    times_as_fast,
    weak_lines,
)
from reference.finished_runs import load_line, made_study, measured_line, prediction_line, write_run


def _speed_ups(results: StudyResults) -> dict[str, tuple[float, str]]:
    """Speed-up and base of every point, by the id of its first cell."""
    return {name: (found.speed_up.value, found.base.cells[0].id) for name, found in compare_points(results).items()}


def test_strong_lines_have_speed_ups_against_one_rank(strong: StudyResults) -> None:
    first, second = strong_lines(strong)
    assert (first.name, second.name) == ("width 8", "width 16")
    assert first.ranks == (1, 2, 4)
    assert [found.value for found in first.seconds] == [5, 2.5, 2]
    assert first.predicted == [(1, 2.5), (2, 1.25), (4, 1.0)]
    assert _speed_ups(strong) == {
        f"{width}-{ranks}-0": (speed_up, f"{width}-1-0")
        for width, speed_ups in ((8, (1, 12 ** (1 / 3), 22.5 ** (1 / 3))), (16, (1, 2, 4)))
        for ranks, speed_up in zip((1, 2, 4), map(pytest.approx, speed_ups), strict=True)
    }
    assert grid_maps(strong) == {}
    assert weak_lines(strong) == []
    assert breakdowns_of(strong) == {}


def test_interval_of_a_speed_up_is_that_of_the_ratios_in_the_rounds_that_both_have(strong: StudyResults) -> None:
    found = compare_points(strong)
    logs = np.log([4 / 2, 5 / 2, 9 / 2])
    expected = np.exp([logs.mean(), *ttest_1samp(logs, 0).confidence_interval(0.95)])
    speed_up, efficiency = found["8-4-0"].speed_up, found["8-4-0"].efficiency
    assert (speed_up.value, speed_up.low, speed_up.high) == pytest.approx(tuple(expected))
    assert (efficiency.value, efficiency.low, efficiency.high) == pytest.approx(tuple(expected / 4))
    assert found["8-1-0"].speed_up == Estimate(1.0)


def test_serial_fraction_is_that_of_amdahls_law(tmp_path: Path) -> None:
    serial = 0.1
    runs = {
        str(ranks): ({"ranks": ranks}, {"ranks": ranks, "seconds": [serial + (1 - serial) / ranks]})
        for ranks in (1, 2, 16)
    }
    results = made_study(tmp_path, runs)
    found = compare_points(results)
    assert found["1"].serial_fraction is None
    assert [found[name].serial_fraction for name in ("2", "16")] == pytest.approx([serial] * 2)
    assert baseline_text(results) == "the fewest ranks of the same work (1 rank, 1 s per epoch)"


GRIDS = {(4, 1): 2.0, (2, 2): 1.0, (1, 4): 3.0, (8, 1): 1.5, (4, 2): 0.5}
"""Seconds by batch and model ranks."""


def _grids(folder: Path, **options: Any) -> StudyResults:
    runs = {
        f"{b}x{m}": ({"ranks": b * m, "grid": f"{b}x{m}"}, {"ranks": b * m, "grid": (1, b, m), "seconds": [taken]})
        for (b, m), taken in GRIDS.items()
    }
    return made_study(folder, runs, **options)


def test_grids_make_a_map_and_every_family_a_line(tmp_path: Path) -> None:
    results = _grids(tmp_path)
    (grids,) = grid_maps(results).values()
    assert {grid: point.seconds_per_epoch.value for grid, point in grids.items()} == GRIDS
    lines = {line.name: (line.ranks, [found.value for found in line.seconds]) for line in strong_lines(results)}
    assert lines == {"grid": ((4, 8), [1.0, 0.5]), "batch": ((4, 8), [2.0, 1.5]), "model": ((4,), [3.0])}
    assert _speed_ups(results)["4x1"] == (0.5, "2x2")
    plots = draw_plots(results)
    assert set(plots) == {"strong_scaling", "speed_up", "efficiency", "grids"}
    assert "$P_r$ (model) x $P_c$ (batch)" in plots["grids"][0]
    (axes,) = plots["grids"][1].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("$P_r$ (model ranks)", "$P_c$ (batch ranks)")
    svg = re.sub(r"<!--.*?-->", "", figure_bytes(plots["grids"][1], "svg").decode())
    assert "P_" not in svg, "symbols, not their names"


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ({"grid": "batch"}, {"4x1": (1, "4x1"), "2x2": (2, "4x1"), "1x4": (2 / 3, "4x1"), "4x2": (3, "8x1")}),
        ({"grid": "2x2"}, {"4x1": (0.5, "2x2"), "2x2": (1, "2x2"), "8x1": (2 / 3, "2x2"), "4x2": (2, "2x2")}),
        ({"ranks": "4", "grid": "1x4"}, {"1x4": (1, "1x4"), "8x1": (2, "1x4"), "4x2": (6, "1x4")}),
    ],
)
def test_baseline_of_a_grid(tmp_path: Path, baseline: dict[str, str], expected: dict[str, tuple[float, str]]) -> None:
    found = _speed_ups(_grids(tmp_path, baseline=baseline))
    assert len(found) == 5
    for name, (speed_up, base) in expected.items():
        assert found[name] == (pytest.approx(speed_up), base)


def _method_runs(seconds: Mapping[tuple[str, int], float], **options: Any) -> dict[str, tuple[Any, Any]]:
    """A run of a method by its number of stages."""
    return {
        f"{method}-{stages}": (
            {"ranks": stages, "grid": "1x1" if stages == 1 else f"{stages}x1x1", "method": method},
            {"ranks": stages, "grid": (stages, 1, 1), "method": method, "seconds": [taken, taken], **options},
        )
        for (method, stages), taken in seconds.items()
    }


METHODS = {("sequential", 1): 6.0, ("sequential", 4): 12.0, ("ddg", 4): 4.0, ("pipedream", 2): 3.0}


def test_methods_are_compared_with_the_baseline_on_their_own_ranks_or_the_fewest(tmp_path: Path) -> None:
    runs = _method_runs(METHODS)
    for _, options in runs.values():
        options["lines"] = [prediction_line(options["seconds"][0] / 10)]
    results = made_study(tmp_path / "own", runs, baseline={"method": "sequential"})
    lines = draw_plots(results)["speed_up"][1].axes[0].get_lines()
    predicted = [list(line.get_ydata()) for line in lines if line.get_label() == "predicted"]
    assert sorted(predicted) == [[1, 1], [1, 2], [1, 3]], "against the bases of the measured ones"
    assert _speed_ups(results) == {
        "sequential-1": (1, "sequential-1"),
        "sequential-4": (1, "sequential-4"),
        "ddg-4": (3, "sequential-4"),
        "pipedream-2": (2, "sequential-1"),
    }
    assert compare_points(results)["pipedream-2"].efficiency.value == 1
    assert baseline_text(results) == "method sequential"
    rows = {row["method"] + row["ranks"]: row["speed-up"] for row in point_rows(results)}
    assert (rows["ddg4"], rows["pipedream2"]) == ("3.00 (against 4)", "2.00")

    single = made_study(tmp_path / "single", runs, baseline={"method": "sequential", "ranks": "1"})
    speed_ups = {name: speed_up for name, (speed_up, _) in _speed_ups(single).items()}
    assert speed_ups == {"sequential-1": 1, "sequential-4": 0.5, "ddg-4": 1.5, "pipedream-2": 2}
    assert baseline_text(single) == "method sequential, ranks 1 (1 rank, 6 s per epoch)"


def test_lines_begin_with_their_base(tmp_path: Path) -> None:
    seconds = {**METHODS, ("pipedream", 4): 2.0}
    baseline = {"method": "sequential", "ranks": "1"}
    results = made_study(tmp_path / "with", _method_runs(seconds), baseline=baseline)
    lines = {line.name: [point.cells[0].id for point in line.points] for line in strong_lines(results)}
    assert lines == {
        "pipeline pipedream": ["sequential-1", "pipedream-2", "pipedream-4"],
        "pipeline ddg": ["sequential-1", "ddg-4"],
        "pipeline sequential": ["sequential-1", "sequential-4"],
    }
    without = made_study(tmp_path / "without", _method_runs(seconds))
    assert [line.name for line in strong_lines(without)] == list(lines)
    assert _speed_ups(without)["ddg-4"] == (1.5, "sequential-1")
    assert _speed_ups(without)["sequential-4"] == (0.5, "sequential-1")
    assert baseline_text(without) == "the fewest ranks of the same work (1 rank, 6 s per epoch)"


def test_values_of_the_other_axes_are_those_of_the_base(tmp_path: Path) -> None:
    runs = {
        f"{width}-{method}": (
            {"ranks": 2, "width": width, "method": method},
            {"ranks": 2, "grid": (2, 1, 1), "method": method, "hidden": [width], "seconds": [taken]},
        )
        for (width, method), taken in {(8, "sequential"): 4.0, (8, "ddg"): 2.0, (16, "ddg"): 1.0}.items()
    }
    results = made_study(tmp_path, runs, baseline={"method": "sequential"})
    assert _speed_ups(results) == {"8-sequential": (1, "8-sequential"), "8-ddg": (2, "8-sequential")}
    (warning,) = warnings_of(results)  # none on the efficiency of 200 %: another method is faster on the same ranks
    assert warning.startswith("1 of 3 rows have no speed-up: the baseline was not run")
    assert warning.endswith("with their other values, such as width 16")
    assert [row["speed-up"] for row in point_rows(results)] == ["1.00", "2.00", "-"]
    assert baseline_text(results) == "method sequential (2 ranks, 4 s per epoch)"


def test_stages_that_change_the_training_have_a_curve_each(tmp_path: Path) -> None:
    stale, exact = ("ddg", "fr", "pipedream", "pipedream-2bw", "vanilla", "spectrain"), ("1f1b", "gpipe")
    seconds = {(method, stages): 6.0 / stages for method in (*stale, *exact) for stages in (2, 3)}
    curves = curves_of(made_study(tmp_path, _method_runs(seconds)), "training loss")
    expected = {f"ranks {k}, grid {k}x1x1, method {method}" for method in stale for k in (2, 3)}
    assert {curve.name for curve in curves} == expected | {"ranks 3, grid 3x1x1, method 1f1b"}


def test_batch_ranks_do_not_change_the_training_of_any_method(tmp_path: Path) -> None:
    runs = {
        f"{k}x{b}": (
            {"ranks": k * b, "grid": f"{k}x{b}x1"},
            {"ranks": k * b, "grid": (k, b, 1), "method": "ddg", "seconds": [taken, taken]},
        )
        for (k, b), taken in {(2, 1): 8.0, (2, 2): 4.0, (4, 1): 5.0}.items()
    }
    results = made_study(tmp_path, runs)
    assert [curve.name for curve in curves_of(results, "training loss")] == [
        "ranks 4, grid 2x2x1",
        "ranks 4, grid 4x1x1",
    ]
    lines = {line.name: (line.ranks, [found.value for found in line.seconds]) for line in strong_lines(results)}
    assert lines == {"my-study": ((2, 4), [8, 4])}


def test_work_that_grows_with_the_ranks_makes_weak_lines(tmp_path: Path) -> None:
    by_batch = {
        f"b{ranks}": (
            {"ranks": ranks, "batch-per-rank": 50},
            {"ranks": ranks, "batch_size": 50 * ranks, "steps": 20 // ranks, "seconds": [taken, taken]},
        )
        for ranks, taken in ((1, 4.0), (2, 2.5))
    }
    results = made_study(tmp_path / "batch", by_batch)
    (line,) = weak_lines(results)
    assert line.per_step
    assert [found.value for found in line.seconds] == [0.2, 0.25]
    efficiency = draw_plots(results)["weak_efficiency"][1].axes[0]
    assert list(efficiency.get_lines()[0].get_ydata()) == [1.0, 0.8]
    assert strong_lines(results) == []
    assert len(curves_of(results, "training loss")) == 2, "greater minibatches are another training"
    by_samples = {
        f"s{ranks}": (
            {"ranks": ranks, "samples-per-rank": 500},
            {"ranks": ranks, "samples": 500 * ranks, "seconds": [taken]},
        )
        for ranks, taken in ((1, 4.0), (2, 5.0), (4, 8.0))
    }
    results = made_study(tmp_path / "samples", by_samples)
    (line,) = weak_lines(results)
    assert not line.per_step
    assert (line.ranks, [found.value for found in line.seconds]) == ((1, 2, 4), [4, 5, 8])
    # The speed-up counts samples per second: 2 x 4 / 5 and 4 x 4 / 8.
    assert _speed_ups(results) == {"s1": (1, "s1"), "s2": (1.6, "s1"), "s4": (2, "s1")}
    assert [found.efficiency.value for found in compare_points(results).values()] == [1.0, 0.8, 0.5]
    assert [found.serial_fraction for found in compare_points(results).values()] == [None, None, None]
    assert set(draw_plots(results)) == {"weak_scaling", "weak_efficiency"}


def test_metrics_are_means_over_the_seeds_and_repeats_of_one_count_once(tmp_path: Path) -> None:
    accuracies = {(0, 1): 0.5, (0, 2): 0.5, (0, 3): 0.5, (1, 1): 0.7, (2, 1): 0.9}
    runs = {
        f"{seed}-{repeat}": ({"seed": seed, "repeat": repeat}, {"accuracy": accuracy})
        for (seed, repeat), accuracy in accuracies.items()
    }
    (point,) = made_study(tmp_path, runs).points
    assert point.metric == MeanDeviation(pytest.approx(0.7), pytest.approx(0.2), 3)
    (repeated,) = made_study(tmp_path / "repeats", {str(n): ({"repeat": n}, {}) for n in (1, 2, 3)}).points
    assert repeated.metric == MeanDeviation(0.5, None, 1)


def _measured(ranks: int, most: float | None, seconds: float, **options: Any) -> dict[str, Any]:
    lines = [measured_line(epoch, seconds / 10, most_computing=most and most * seconds / 10) for epoch in (1, 2)]
    return {"ranks": ranks, "seconds": [seconds, seconds], "lines": lines, **options}


def test_parts_of_the_time_and_pop_metrics(tmp_path: Path) -> None:
    runs = {
        "1": ({"ranks": 1}, _measured(1, 0.5, 4.0)),
        "2": ({"ranks": 2}, _measured(2, 0.625, 3.0)),
        "4": ({"ranks": 4}, _measured(4, None, 2.0)),
    }
    results = made_study(tmp_path, runs)
    one, two, four = (point.shares for point in results.points)
    assert list(two.parts.values()) == pytest.approx([0.5, 0.1, 0.3, 0.0, 0.1])
    assert (one.load_balance, one.communication_efficiency) == pytest.approx((1.0, 0.5))
    assert (two.load_balance, two.communication_efficiency) == pytest.approx((0.8, 0.625))
    assert two.compute == pytest.approx(two.load_balance * two.communication_efficiency)  # type: ignore[operator]
    assert (four.load_balance, four.communication_efficiency) == (None, None)
    # Of the time of two ranks, 6 s, the base needs 4 s; its parts are half as large again. Speed-ups 4/3 and 2:
    # (3/4 - 1/2) / (1/2) and (1/2 - 1/4) / (3/4).
    assert [list(row.values()) for row in breakdown_rows(results)] == [
        ["1", "1x1", "100.0%", "0.0%", "0.0%", "0.0%", "0.0%", "0.0%", "1.000", "0.500", "-"],
        ["2", "2x1", "66.7%", "16.7%", "3.3%", "10.0%", "0.0%", "3.3%", "0.800", "0.625", "0.5000"],
        ["4", "4x1", "50.0%", "25.0%", "5.0%", "15.0%", "0.0%", "5.0%", "-", "-", "0.3333"],
    ]


def test_breakdown_has_a_bar_for_every_family_and_number_of_ranks(tmp_path: Path) -> None:
    pipeline = {"grid": (2, 1, 1), "method": "1f1b"}
    runs = {
        "1": ({"ranks": 1, "grid": "1x1", "method": "-"}, _measured(1, 0.5, 4.0)),
        "2": ({"ranks": 2, "grid": "2x1", "method": "-"}, _measured(2, 0.5, 3.0)),
        "model": ({"ranks": 2, "grid": "1x2", "method": "-"}, _measured(2, 0.5, 5.0, grid=(1, 1, 2))),
        "1f1b": ({"ranks": 2, "grid": "2x1x1", "method": "1f1b"}, _measured(2, 0.5, 2.0, **pipeline)),
    }
    results = made_study(tmp_path, runs)
    ((name, bars),) = breakdowns_of(results).items()
    assert name == "my-study"
    assert list(bars) == ["1\n1x1", "2\n2x1", "2\n1x2", "2\n2x1x1 1f1b"]
    # Compute is the efficiency; but the pipeline waits 10 % of its time less than one rank, which is subtracted.
    assert [parts["compute"] for parts in bars.values()] == pytest.approx([1, 4 / 6, 4 / 10, 1 - 0.1])
    assert [sum(parts.values()) for parts in bars.values()] == pytest.approx([1] * 4)
    # One microbatch on two stages: half of the time is the bubble, and 10 % are idle.
    assert (bars["2\n2x1x1 1f1b"]["bubble"], bars["2\n2x1x1 1f1b"]["wait"]) == (pytest.approx(0.1), 0)
    assert "breakdown" in draw_plots(results)
    (axes,) = draw_plots(results)["breakdown"][1].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ranks, layout", "share of the ranks' time")


def test_the_fastest_of_lines_maps_breakdowns_curves_and_bases_are_so_in_the_rounds_of_all(tmp_path: Path) -> None:
    """By the medians of their own rounds, 2x4 would take less time than 4x2, whose last rounds were slow for all."""
    slow = [0.055, 0.054, 0.056, 0.08, 0.081, 0.08, 0.08]
    runs = {
        f"{b}x{m}-{n}": (
            {"ranks": b * m, "grid": f"{b}x{m}", "repeat": n},
            _measured(b * m, 0.5, taken, grid=(1, b, m)),
        )
        for (b, m), seconds in {(2, 4): [0.06] * 3, (4, 2): slow, (4, 4): [0.07] * 7}.items()
        for n, taken in enumerate(seconds, 1)
    }
    results = made_study(tmp_path, runs)
    assert compare_points(results)["4x4-1"].base.id == "4x2-1"
    assert [[point.id for point in line.points] for line in strong_lines(results)] == [["4x2-1", "4x4-1"]]
    assert [list(bars) for bars in breakdowns_of(results).values()] == [["8\n4x2", "16\n4x4"]]
    assert [curve.name for curve in curves_of(results, "training loss")] == ["ranks 8, grid 4x2"]
    texts = draw_plots(results)["grids"][1].axes[0].texts
    boxed = {text.get_text(): text.get_bbox_patch() is not None for text in texts}
    assert boxed == {"60": False, "55": True, "70": False}


def _crossed(results: StudyResults, plot: str) -> list[float]:
    """Ranks of the crosses of a plot."""
    _, figure = draw_plots(results)[plot]
    lines = [line for axes in figure.axes for line in axes.get_lines() if line.get_label() == "disturbed"]
    return [float(ranks) for line in lines for ranks in line.get_xdata()]


def test_what_is_compared_with_a_disturbed_base_is_crossed_out(tmp_path: Path) -> None:
    seconds = {1: 4.0, 2: 2.5, 4: 2.0}
    runs: dict[str, Any] = {str(n): ({"ranks": n}, {"ranks": n, "seconds": [taken]}) for n, taken in seconds.items()}
    runs["1"][1]["lines"] = [load_line(1.5)]
    strong = made_study(tmp_path / "strong", runs)
    for axes, run in runs.values():
        axes["samples-per-rank"] = 500
        run["samples"] = 500 * run["ranks"]
    weak = made_study(tmp_path / "weak", runs)
    assert (_crossed(strong, "strong_scaling"), _crossed(weak, "weak_scaling")) == ([1], [1])
    for results, name in ((strong, "speed_up"), (strong, "efficiency"), (weak, "weak_efficiency")):
        assert _crossed(results, name) == [1, 2, 4]


def test_folders_are_compared_without_pairs_and_the_first_marks_the_others(tmp_path: Path) -> None:
    seconds = {"old": [4.0, 6.0, 5.0, 5.0], "new": [2.0, 2.0, 4.0]}
    for name, rounds in seconds.items():
        runs = {
            str(n): ({"ranks": 1, "repeat": n}, {"seconds": [taken], "lines": [load_line(1.5)] * (name == "old")})
            for n, taken in enumerate(rounds)
        }
        made_study(tmp_path / name, runs)
    results = read_results(tmp_path / "old", tmp_path / "new")
    (found,) = times_as_fast(results).values()
    logs = [np.log(rounds) for rounds in seconds.values()]
    ends = ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert (found.speed_up.low, found.speed_up.high) == pytest.approx(tuple(np.exp([ends.low, ends.high])))
    assert [row["times as fast"] for row in point_rows(results)] == ["-", f"{found.judged.text} †"]


def _run(folder: Path, ranks: int, seconds: float, predicted: float | None = None, **options: Any) -> RunRecord:
    lines = [] if predicted is None else [prediction_line(predicted / 10)]
    return read_run(write_run(folder, ranks=ranks, seconds=[seconds], lines=lines, **options))


def _folders(runs: list[RunRecord]) -> list[list[str]]:
    """Names of the folders of the base runs of the points, by group."""
    return [[Path(found.point.first.folder).name for found in group] for group in group_runs(runs)]


def test_runs_that_differ_in_their_seeds_are_repeats_with_an_interval(tmp_path: Path) -> None:
    def run(name: str, ranks: int, seconds: float, seed: int, **training: Any) -> RunRecord:
        settings = {"training": {"seed": seed, **training}}
        return _run(tmp_path / name, ranks, seconds, settings=settings)

    one = [run(f"one-{seed}", 1, seconds, seed) for seed, seconds in enumerate((4.0, 6.0, 5.0))]
    two = [run(f"two-{seed}", 2, seconds, seed) for seed, seconds in enumerate((2.0, 2.0, 4.0))]
    (group,) = group_runs([*two, *one, run("other", 2, 3.0, 0, checkpoint_every=2)])
    assert [len(found.point.cells) for found in group] == [3, 3, 1]
    assert [found.point.seconds_per_epoch for found in group] == [Estimate(5, 4, 6), Estimate(2, 2, 4), Estimate(3)]
    found = group[1].speed_up
    logs = np.log([4, 6, 5]), np.log([2, 2, 4])  # which have no common rounds: an interval without pairs
    ends = ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    expected = np.exp([logs[0].mean() - logs[1].mean(), *ends])
    assert (found.value, found.low, found.high) == pytest.approx(tuple(expected))
    assert group[2].speed_up == Estimate(pytest.approx(120 ** (1 / 3) / 3)), "another setting, of one run"


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
def test_runs_of_other_work_or_training_are_not_compared(tmp_path, options, condition) -> None:
    groups = group_runs([_run(tmp_path / "a", 1, 6.0), _run(tmp_path / "b", 2, 3.0, **options)])
    assert [[found.speed_up.value for found in group] for group in groups] == [[1.0], [1.0]]
    first, second = (group[0].base.first.conditions for group in groups)
    for name, values in condition.items():
        assert name in differing([first, second])
        assert (first[name], second.get(name)) == values


def test_exact_methods_are_compared_and_others_with_the_same_stages_alone(tmp_path: Path) -> None:
    def run(name: str, grid: tuple[int, int, int], method: str, **options: object) -> RunRecord:
        return _run(tmp_path / name, grid[0] * grid[1], 6.0, grid=grid, method=method, **options)

    seed = {"training": {"seed": 1, "epochs": 3}, "output": {"log_every": 7}}
    exact = [run("a", (1, 1, 1), "sequential"), run("b", (2, 1, 1), "gpipe"), run("c", (1, 2, 1), "sequential")]
    exact.append(run("d", (4, 1, 1), "1f1b", settings=seed))
    stale = [
        run("e", (2, 1, 1), "ddg"),
        run("f", (2, 2, 1), "ddg"),
        run("g", (3, 1, 1), "ddg"),
        run("h", (2, 1, 1), "fr"),
    ]
    assert _folders(exact + stale) == [["a", "b", "c", "d"], ["e", "f"], ["g"], ["h"]]
