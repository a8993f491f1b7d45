"""Plots of a study: curves, lines of scaling, maps and breakdowns, and their files."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hybridnn.drawing.figures import COLUMN, TWO_COLUMNS, figure_bytes
from hybridnn.study.plots import curves_of, draw_plots
from hybridnn.study.report import write_report
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.scaling import compare_points
from reference.finished_runs import load_line, made_study, measured_line, prediction_line, runs_by_ranks, write_study
from reference.pictures import least_points


def test_curves_are_medians_against_epochs_and_summed_time(tmp_path: Path) -> None:
    runs = {
        f"seed-{seed}": ({"seed": seed}, {"seconds": times, "accuracy": accuracy})
        for seed, (times, accuracy) in enumerate([((2, 1), 0.5), ((4, 3), 0.7), ((3, 2), 0.9)])
    }
    results = made_study(tmp_path, runs)
    (curve,) = curves_of(results, "test accuracy")
    assert (curve.epochs, curve.values) == ((1, 2), (0.35, 0.7))
    assert curve.seconds == (3, 5)  # of 2, 4, 3 and of 3, 7, 5
    plots = draw_plots(results)
    assert [(name, caption[:27]) for name, (caption, _) in plots.items()] == [
        ("accuracy", "Test accuracy against epoch"),
        ("accuracy-time", "Test accuracy against time,"),
    ]
    for name, xs in (("accuracy", [1, 2]), ("accuracy-time", [3, 5])):
        (axes,) = plots[name][1].axes
        assert (list(axes.lines[0].get_xdata()), list(axes.lines[0].get_ydata())) == (xs, [0.35, 0.7])
        assert axes.get_ylabel() == "test accuracy"
    assert curves_of(results, "test R²") == []


def test_curves_differ_in_colour_or_dashes(tmp_path: Path) -> None:
    runs = {str(width): ({"width": width}, {"seconds": (1, 1), "accuracy": 0.5}) for width in range(8, 24)}
    (axes,) = draw_plots(made_study(tmp_path, runs))["accuracy"][1].axes
    svg = figure_bytes(axes.figure, "svg").decode()
    assert len(set(re.findall(r"stroke-dasharray: ([^;]+);", svg))) == 7
    assert [line.is_dashed() for line in axes.lines[:8]] == [False] + 7 * [True]
    styles = {(line.get_color(), str(line._dash_pattern)) for line in axes.lines}
    assert len(styles) == len(axes.lines) == 16


def test_lines_of_scaling_have_a_place_of_their_own_with_their_bars_predictions_and_crosses(tmp_path: Path) -> None:
    runs = {}
    for family, number in (("batch", 1), ("model", 2), ("pipeline", 0)):
        for ranks, repeat in product((1, 2, 4), range(3)):
            grid = [1, 1, 1]
            grid[number] = ranks
            values = {"ranks": ranks, "grid": "x".join(map(str, grid)), "repeat": repeat}
            lines = [prediction_line(0.1), *([load_line(0.5)] * (ranks == 2))]
            options = {"ranks": ranks, "grid": grid, "seconds": [(1 + repeat * ranks / 10) / ranks], "lines": lines}
            runs[f"{family}-{ranks}-{repeat}"] = values, options
    caption, figure = draw_plots(made_study(tmp_path, runs, more={"compares": "times"}))["speed_up"]
    assert "; lines are moved aside, so that none hides another" in caption
    (axes,) = figure.axes
    places = []
    for bars in axes.containers:
        place = bars.lines[0].get_transform()
        own = [artist for artist in axes.get_children() if artist.get_transform() == place]
        labels = [str(artist.get_label()) for artist in own if "_" not in str(artist.get_label())]
        assert labels == ["predicted", "disturbed"]
        assert len(own) == 6, "the line, its bars with two caps, and the marks"
        places.append(place.transform((2, 3))[0] * 72 / figure.dpi)
    assert np.diff(sorted(places)) == pytest.approx([3.5, 3.5])


@pytest.mark.parametrize(("repeats", "is_announced"), [(1, False), (2, False), (3, True)])
def test_intervals_are_announced_where_there_are_any(tmp_path: Path, repeats: int, is_announced: bool) -> None:
    runs = {
        f"{ranks}-{repeat}": (
            {"ranks": ranks, "repeat": repeat},
            {"ranks": ranks, "seconds": [4.0 / ranks + 0.1 * repeat] * 2},
        )
        for ranks in (1, 2)
        for repeat in range(repeats)
    }
    plots = draw_plots(made_study(tmp_path, runs))
    for name in ("strong_scaling", "speed_up", "efficiency"):
        caption, figure = plots[name]
        assert ("confidence intervals" in caption) == is_announced
        assert any(bars.has_yerr for bars in figure.axes[0].containers) == is_announced


def test_training_that_diverged_ends_with_a_cross_and_a_count(tmp_path: Path) -> None:
    runs = {
        "a-0": ({"width": 8, "seed": 0}, {"seconds": (1, 1), "ended": False}),
        "a-1": ({"width": 8, "seed": 1}, {"seconds": (1, 1, 1), "accuracy": 0.7}),
        "b": ({"width": 9, "seed": 0}, {"seconds": (1, 1, 1)}),
    }
    with open(write_study(tmp_path, runs) / "cells/a-0/history.jsonl", "a") as file:
        file.write(json.dumps({"kind": "diverged", "step": 25, "epoch": 3, "reason": "the loss became nan"}) + "\n")
    results = read_results(tmp_path)
    curves = [(curve.name, curve.epochs) for curve in curves_of(results, "test accuracy")]
    assert curves == [("width 8, 1 of 2 diverged", (1, 2, 3)), ("width 9", (1, 2, 3))]
    (axes, *_) = draw_plots(results)["accuracy"][1].axes
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([3], [0.7])
    assert cross.get_color() == axes.lines[0].get_color()


def test_curves_take_the_fastest_layout(tmp_path: Path) -> None:
    (curve,) = curves_of(made_study(tmp_path, runs_by_ranks({1: 4.0, 2: 3.0})), "training loss")
    assert (curve.name, curve.seconds, curve.values) == ("ranks 2", (3, 6), (1, 0.5))


def test_strong_scaling_shows_efficiencies_and_explains_all_lines(strong: StudyResults) -> None:
    names = "strong_scaling", "speed_up", "efficiency"
    plots, again = draw_plots(strong), draw_plots(strong)
    figures = [plots[name][1] for name in names]
    assert all(plots[name][0].endswith(".") for name in names)
    # Equal results give equal small files, with text as text.
    contents = [figure_bytes(figure, "svg") for figure in figures]
    assert contents == [figure_bytes(again[name][1], "svg") for name in names]
    assert max(map(len, contents)) < 17_000
    assert b">seconds per epoch</text>" in contents[0]
    assert min(map(least_points, figures)) >= 6
    (seconds,), (speed_ups,), (efficiencies,) = (figure.axes for figure in figures)
    assert seconds.get_xlabel() == speed_ups.get_xlabel() == efficiencies.get_xlabel() == "ranks"
    assert efficiencies.get_ylabel() == "efficiency"
    assert efficiencies.yaxis.get_major_formatter()(0.5) == "50%"
    found = sorted(value for bars in efficiencies.containers for value in bars.lines[0].get_ydata())
    assert found == pytest.approx(sorted(one.efficiency.value for one in compare_points(strong).values()))
    for figure, more in zip(figures, ({"predicted"}, {"ideal", "predicted"}, set()), strict=True):
        entries = [text.get_text() for text in figure.legends[0].get_texts()]
        assert len(entries) == len(set(entries)) == len(more) + len(efficiencies.containers)
        assert more < set(entries)
    assert speed_ups.yaxis.get_major_formatter()(2.0**-7) == "1/128"


def test_disturbed_points_are_marked_in_maps_breakdowns_and_curves_over_time(tmp_path: Path) -> None:
    runs = {}
    for batch, model in ((1, 1), (2, 1), (1, 2), (2, 2)):
        ranks, name = batch * model, f"{batch}x{model}"
        lines = [measured_line(epoch, 0.1) for epoch in (1, 2)] + [load_line(0.4)] * (name == "1x2")
        options = {"ranks": ranks, "grid": (1, batch, model), "seconds": [4 / ranks] * 2, "lines": lines}
        runs[name] = {"ranks": ranks, "grid": name}, options
    plots = draw_plots(made_study(tmp_path / "grids", runs))
    for name in ("grids", "breakdown"):
        caption, figure = plots[name]
        texts = [text.get_text() for text in [*figure.axes[0].texts, *figure.axes[0].get_xticklabels()]]
        assert [text for text in texts if "†" in text] == [{"grids": "2,000 †", "breakdown": "2\n1x2 †"}[name]], texts
        assert caption.endswith(". †: disturbed by other processes.")
    runs = {
        str(rate): ({"rate": rate}, {"seconds": (1, 1), "lines": [load_line(others)]})
        for rate, others in ((1, 0.0), (2, 1.0))
    }
    plots = draw_plots(made_study(tmp_path / "rates", runs))
    for name, marks in (("accuracy", []), ("accuracy-time", ["rate 2 †"])):
        caption, figure = plots[name]
        assert [text.get_text() for text in figure.legends[0].get_texts() if "†" in text.get_text()] == marks
        assert ("†: disturbed by other processes" in caption) == bool(marks)


def test_plots_have_no_titles_no_names_on_lines_and_no_images(tmp_path: Path) -> None:
    runs = {}
    for (batch, model), width in product([(1, 1), (2, 1), (1, 2), (2, 2)], (8, 9)):
        ranks, name = batch * model, f"{batch}x{model}"
        lines = [measured_line(epoch, 0.1) for epoch in (1, 2)]
        options = {"ranks": ranks, "grid": (1, batch, model), "seconds": [4 / ranks + batch] * 2, "lines": lines}
        runs[f"{name}-{width}"] = {"ranks": ranks, "grid": name, "width": width}, options
    plots = draw_plots(made_study(tmp_path, runs))
    assert {"strong_scaling", "speed_up", "efficiency", "grids", "grids-2", "breakdown", "breakdown-2"} <= set(plots)
    for name, (caption, figure) in plots.items():
        assert [axes.get_title() for axes in figure.axes] == [""]
        assert name.startswith("grids") or not figure.axes[0].texts
        assert "<image" not in figure_bytes(figure, "svg").decode()
        assert ("width 9" in caption) == (name.endswith("-2") or name == "strong_scaling")
    assert "the least times have 1x2 (width 8, 2 ranks), 1x2 (width 9, 2 ranks)" in plots["strong_scaling"][0]


@pytest.mark.parametrize(("inches", "pixels"), [(COLUMN, 990), (TWO_COLUMNS, 2070)])
def test_plots_are_one_or_two_columns_wide_with_300_pixels_per_inch(tmp_path, strong, inches, pixels) -> None:
    write_report(strong, tmp_path, "png", inches)
    for path in tmp_path.glob("*.png"):
        assert int.from_bytes(path.read_bytes()[16:20], "big") == pixels


def test_plots_of_an_earlier_report_leave_and_files_of_the_user_stay(tmp_path: Path, strong: StudyResults) -> None:
    earlier = {path.name for path in write_report(strong, tmp_path) if path.suffix == ".svg"}
    assert "speed_up.svg" in earlier
    (tmp_path / "mine.svg").write_text("mine")
    files = write_report(strong, tmp_path, "png")
    assert {path.name for path in tmp_path.iterdir()} == {"mine.svg", *(path.name for path in files)}
