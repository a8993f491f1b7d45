"""Answer of a study of layouts: the fastest one, its interval, what it loses to, and the first choice of the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridnn.study.answer import fastest_layouts
from hybridnn.study.plots import draw_plots
from hybridnn.study.report import latex_text, markdown_text
from hybridnn.study.results import StudyResults
from reference.finished_runs import load_line, made_study, measured_line, prediction_line

Layout = tuple[int, int, int]
ONE, BATCH, MODEL, STAGES = (1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1)


def _study(
    folder: Path,
    times: Mapping[Layout, Sequence[float | None]],
    *,
    doubt: str = "",
    disturbed: Collection[tuple[Layout, int]] = (),
    **predicted: float,
) -> StudyResults:
    """Layouts with their seconds per epoch in rounds, of which some are missing or disturbed; predictions by grid."""
    runs = {}
    for (stages, batch, model), rounds in times.items():
        grid = f"{stages}x" * (stages > 1) + f"{batch}x{model}"
        ranks, method = stages * batch * model, "1f1b" if stages > 1 else "-"
        for number, seconds in enumerate(rounds, 1):
            if seconds is None:
                continue
            lines: list[Mapping[str, Any]] = [measured_line(epoch, seconds / 10) for epoch in (1, 2)]
            said = predicted.get(f"grid_{grid}")
            lines += [] if said is None else [prediction_line(said / 10, doubt=doubt)]
            lines += [load_line(1.5)] if ((stages, batch, model), number) in disturbed else []
            options = {"ranks": ranks, "grid": (stages, batch, model), "seconds": [seconds] * 2, "lines": lines}
            values = {"ranks": ranks, "grid": grid, "method": method, "repeat": number}
            runs[f"{grid}-{number}"] = (values, options)
    return made_study(folder, runs, more={"compares": "times"})


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
    assert text.startswith("2 ranks: 2x1 is the fastest, 2.5 [2.5, 2.55] s per epoch, 1.59 [1.53, 1.65] times as fast")
    assert " as 1 rank; it loses to smaller products 10%, communicate 6%, " in text
    assert "The next, 1x2, takes 1.21 [1.1" in text
    assert text.endswith("The model had chosen 1x2, 1.21 [1.18, 1.23] times as long.")
    assert text in markdown_text(results, {}).splitlines()[2]
    assert "2x1 is the fastest" in latex_text(results)
    facts = found.facts
    assert (facts["layout"], facts["is_fastest"], facts["predicted"], facts["ranks"]) == ("2x1", True, "1x2", 2)
    agreed = _study(tmp_path / "agreed", times, grid_2x1=2.0, grid_1x2=2.8, grid_2x1x1=4.0)
    assert fastest_layouts(agreed)[0].text.endswith("The model said so.")
    without = _study(tmp_path / "without", times, grid_2x1=2.0)
    assert "model" not in fastest_layouts(without)[0].text


MEASURED = {ONE: [4.0, 4.1, 3.9], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]}
FEW = "2 ranks: {} cannot show a difference, so nothing is concluded; 2x1 had the least time, "
ALL = [(layout, number) for layout in MEASURED for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("times", "disturbed", "expected"),
    [
        pytest.param(
            {**MEASURED, MODEL: [2.6, 2.4, 2.7]},
            [],
            r"2 ranks: 2x1 had the least time, 2\.5 .*, 1\.59 \[1\.53, 1\.65\] times as fast as 1 rank; it loses to .*"
            r"\. No difference can be told to 1x2 \(1\.02 \[0\.8., 1\...\] times as long\)\.",
            id="undecided",
        ),
        pytest.param(
            {BATCH: [0.060, 0.060, 0.060], MODEL: [0.055, 0.054, 0.056, 0.08, 0.081, 0.08, 0.08]},
            [],
            r"2 ranks: 1x2 is the fastest, 0\.055 \[0\.054, 0\.056\] s per epoch in the 3 rounds of all\. "
            r"The next, 2x1, takes 1\.09 \[1\.04, 1\.14\] times as long\.",
            id="winner by the common rounds",
        ),
        pytest.param(
            {ONE: [1.0, 1.01, 1.0], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]},
            [],
            r"2 ranks: 2x1 is the fastest, .* s per epoch, slower than 1 rank \(0\.40 \[0\.39, 0\.40\] times as "
            r"fast\); it loses to .*",
            id="slower than the base",
        ),
        pytest.param(
            {ONE: [2.5, 2.6, 2.4], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]},
            [],
            r".*2x1 is the fastest, .* s per epoch; no difference to 1 rank can be told \(0\.99 \[0\.9., 1\.0.\] times "
            r"as fast\); it loses to .*",
            id="base undecided",
        ),
        pytest.param(
            {ONE: [4.0, None, None], BATCH: [2.5, 2.55, 2.5], MODEL: [3.0, 3.1, 3.0]},
            [],
            r"2 ranks: 2x1 is the fastest, 2\.5 \[2\.5, 2\.55\] s per epoch\. It is not compared with 1 rank: "
            r"1 round cannot show a difference\. The next, .*",
            id="missing rounds of the base",
        ),
        pytest.param({ONE: [4.0], BATCH: [1.0], MODEL: [3.0]}, [], FEW.format("1 round") + "1 s per epoch.", id="1"),
        pytest.param(
            {BATCH: [1.0, 1.0], MODEL: [3.0, 3.0]}, [], FEW.format("2 rounds") + "1 s per epoch.", id="2 rounds"
        ),
        pytest.param(
            {BATCH: [1.0] * 5, MODEL: [None, None, None, 3.0, 3.0]},
            [],
            FEW.format("2 rounds") + "1 s per epoch in the 2 rounds of all.",
            id="2 common rounds",
        ),
        pytest.param(
            {BATCH: [1.0] * 3, MODEL: [None] * 3 + [3.0] * 3},
            [],
            "2 ranks: no round has all layouts, so nothing is concluded; 2x1 had the least time, 1 [1, 1] s per epoch.",
            id="no common round",
        ),
        pytest.param(
            MEASURED,
            ALL,
            "2 ranks: 9 of 9 runs were disturbed by other processes, so nothing is concluded; 2x1 had the least time, "
            "2.5 [2.5, 2.55] s per epoch.",
            id="all disturbed",
        ),
        pytest.param(
            MEASURED,
            [(ONE, 2)],
            "2 ranks: 1 of 9 runs was disturbed by other processes, so nothing is concluded; 2x1 had the least time, "
            "2.5 [2.5, 2.55] s per epoch.",
            id="base disturbed",
        ),
        pytest.param(
            {BATCH: [2.5, 2.6, 2.7], MODEL: [2.5, 2.6, 2.7]},
            [],
            r"2 ranks: 2x1 had the least time, 2\.6 \[2\.5, 2\.7\] s per epoch\. No difference can be told to "
            r"1x2 \(1\.00 \[1\.00, 1\.00\] times as long\)\.",
            id="tie",
        ),
        pytest.param(
            {BATCH: [1.0, 1.0, 1.0], MODEL: [1.002, 1.0021, 1.002]},
            [],
            r".*2x1 is the fastest, .* The next, 1x2, takes 1\.002 \[1\.002, 1\.002\] times as long\.",
            id="digits beyond 1",
        ),
    ],
)
def test_sentence_says_what_the_rounds_carry(
    tmp_path: Path, times: dict[Layout, list[float | None]], disturbed: list[tuple[Layout, int]], expected: str
) -> None:
    (found,) = fastest_layouts(_study(tmp_path, times, disturbed=disturbed))
    assert re.fullmatch(expected, found.text) or found.text == expected, found.text
    assert f", {found.facts['seconds_per_epoch']:.4g} " in found.text
    if found.reservation:
        assert "times as" not in found.text
        assert "fastest" not in found.text
        assert not found.facts["is_fastest"]


def test_one_layout_has_no_answer(tmp_path: Path) -> None:
    assert fastest_layouts(_study(tmp_path / "one", {ONE: [1.0], BATCH: [1.0]})) == []


def test_disturbed_runs_and_a_doubtful_machine_file_are_named_in_the_answer(tmp_path: Path) -> None:
    times = {ONE: [4.0] * 3, BATCH: [2.5] * 3, MODEL: [3.0] * 3}
    results = _study(tmp_path, times, doubt="too old", disturbed=[(BATCH, 1)], grid_2x1=2.9, grid_1x2=2.8)
    text = fastest_layouts(results)[0].text
    assert text.startswith("2 ranks: 1 of 9 runs was disturbed by other processes, so nothing is concluded; ")
    assert text.endswith(" The model, of a doubtful machine file, had chosen 1x2.")
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
