"""Answer of a study of layouts: the fastest one, its interval, what it loses to, and the first choice of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from hybridnn.study.answer import fastest_layouts
from hybridnn.study.plots import draw_plots
from hybridnn.study.report import latex_text, markdown_text
from hybridnn.study.results import StudyResults
from hybridnn.study.statistics import ratio_in_rounds
from reference.finished_runs import load_line, made_study, measured_line, prediction_line

Layout = tuple[int, int, int]
ONE, BATCH, MODEL, STAGES = (1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1)


def _study(
    folder: Path, times: Mapping[Layout, Sequence[float]], *, doubt: str = "", others: float = 0, **predicted: float
) -> StudyResults:
    """Layouts with their seconds per epoch in rounds; predicted seconds by the name of the grid."""
    runs = {}
    for (stages, batch, model), rounds in times.items():
        grid = f"{stages}x" * (stages > 1) + f"{batch}x{model}"
        ranks, method = stages * batch * model, "1f1b" if stages > 1 else "-"
        for number, seconds in enumerate(rounds, 1):
            lines: list[Mapping[str, Any]] = [measured_line(epoch, seconds / 10) for epoch in (1, 2)]
            said = predicted.get(f"grid_{grid}")
            lines += [] if said is None else [prediction_line(said / 10, doubt=doubt)]
            lines += [load_line(others)] if others and number == 1 else []
            options = {"ranks": ranks, "grid": (stages, batch, model), "seconds": [seconds] * 2, "lines": lines}
            values = {"ranks": ranks, "grid": grid, "method": method, "repeat": number}
            runs[f"{grid}-{number}"] = (values, options)
    return made_study(folder, runs, more={"compares": "times"})


def test_ratio_in_rounds_is_that_of_student() -> None:
    random = np.random.default_rng(1)
    drift = np.exp(random.normal(0, 1, 5))
    above, below = (drift * factor * np.exp(random.normal(0, 0.01, 5)) for factor in (1.2, 1.0))
    found = ratio_in_rounds(dict(enumerate(above)), dict(enumerate(below)))
    expected = ttest_1samp(np.log(above / below), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(np.exp([expected.low, expected.high])))
    assert found.value == pytest.approx(np.exp(np.log(above / below).mean()))
    assert found.low is not None
    assert found.low > 1.15, "the drift of the rounds cancels"
    assert ratio_in_rounds({1: 2.0, 2: 4.0}, {1: 1.0, 2: 1.0}).low is None


def test_fastest_layout_with_what_it_loses_to_and_the_choice_of_the_model(tmp_path: Path) -> None:
    times = {ONE: [4.0, 4.1, 3.9], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0], STAGES: [5.0, 5.0, 5.1]}
    results = _study(tmp_path, times, grid_2x1=2.9, grid_1x2=2.8, grid_2x1x1=4.0)
    (found,) = fastest_layouts(results)
    assert (found.point.first.grid, found.alike, [point.first.grid for point, _ in found.others]) == (
        "2x1",
        [],
        ["1x2", "2x1x1"],
    )
    text = found.text
    assert text.startswith("2 ranks: 2x1 is the fastest, 2.5 [2.5, 2.55] s per epoch, 1.60 [")
    assert "] times as fast as 1 rank; it loses to smaller products 10%, communicate 6%, " in text
    assert "The next, 1x2, takes 1.21 [1.1" in text
    assert text.endswith("The model had chosen 1x2, 1.21 [1.18, 1.23] times as long.")
    assert text in markdown_text(results, {}).splitlines()[2]
    assert "2x1 is the fastest" in latex_text(results)
    assert (found.facts["layout"], found.facts["predicted"], found.facts["ranks"]) == ("2x1", "1x2", 2)
    agreed = _study(tmp_path / "agreed", times, grid_2x1=2.0, grid_1x2=2.8, grid_2x1x1=4.0)
    assert fastest_layouts(agreed)[0].text.endswith("The model said so.")
    without = _study(tmp_path / "without", times, grid_2x1=2.0)
    assert "model" not in fastest_layouts(without)[0].text


def test_no_difference_is_told_where_the_interval_contains_one_or_there_is_none(tmp_path: Path) -> None:
    times = {BATCH: [2.5, 2.6, 2.4], MODEL: [2.6, 2.4, 2.7], STAGES: [5.0, 5.0, 5.1]}
    (found,) = fastest_layouts(_study(tmp_path / "alike", times))
    assert "No difference can be told to 1x2 (1.03 [0." in found.text
    assert "disturbed" not in found.text
    (few,) = fastest_layouts(_study(tmp_path / "few", {BATCH: [1.0, 1.0], MODEL: [3.0, 3.0]}))
    assert few.text.endswith("No difference can be told to 1x2 (3.00 times as long, without 3 repeats).")
    assert fastest_layouts(_study(tmp_path / "one", {ONE: [1.0], BATCH: [1.0]})) == []


def test_disturbed_runs_and_a_doubtful_machine_file_are_named_in_the_answer(tmp_path: Path) -> None:
    times = {ONE: [4.0] * 3, BATCH: [2.5] * 3, MODEL: [3.0] * 3}
    results = _study(tmp_path, times, doubt="too old", others=1.5, grid_2x1=2.0, grid_1x2=2.8)
    said = "The model, of a doubtful machine file, said so. 2 of its 6 runs were disturbed by other processes."
    assert fastest_layouts(results)[0].text.endswith(said)
    caption, _ = draw_plots(results)["strong_scaling"]
    assert caption.endswith("; open markers: predicted from a doubtful machine file.")
    assert "open markers" not in draw_plots(_study(tmp_path / "measured", times))["strong_scaling"][0]


def test_figure_names_the_fastest_layouts_and_has_open_markers_for_predictions(tmp_path: Path) -> None:
    times = {ONE: [4.0] * 3, BATCH: [2.5] * 3, MODEL: [3.0] * 3, STAGES: [5.0] * 3}
    predicted = {"grid_1x1": 4.0, "grid_2x1": 2.4, "grid_1x2": 2.8, "grid_2x1x1": 4.0}
    caption, figure = draw_plots(_study(tmp_path, times, **predicted))["strong_scaling"]
    seconds = figure.axes[0]
    assert "; the least times have 2x1 (2 ranks)" in caption
    lines = [line for line in seconds.get_lines() if line.get_label() == "predicted"]
    assert [list(line.get_ydata()) for line in lines] == [[4.0, 2.4], [4.0, 2.8], [4.0, 4.0]]
    for line in lines:
        assert (line.get_linestyle(), line.get_markerfacecolor()) == ("None", "none")
