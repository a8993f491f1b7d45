"""Studies of layouts for random networks: their files, and the summary of made-up measurements."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fastest_layouts
from benchmarks.fastest_layouts import random_network, study_text
from hybridnn.study.cells import make_cells
from hybridnn.study.results import StudyResults
from hybridnn.study.study_file import load_study
from reference.finished_runs import made_study, measured_line, prediction_line

GRIDS = {"1x1": (1, 1, 1), "2x1": (1, 2, 1), "1x2": (1, 1, 2)}


def _study(folder: Path, times: Mapping[str, Sequence[float]], predicted: Mapping[str, float]) -> StudyResults:
    """Seconds per epoch of grids in rounds, and those that the model predicts."""
    runs = {}
    for grid, rounds in times.items():
        shape = GRIDS[grid]
        for number, seconds in enumerate(rounds, 1):
            lines: list[Mapping[str, Any]] = [measured_line(epoch, seconds / 10) for epoch in (1, 2)]
            lines += [prediction_line(predicted[grid] / 10)] if grid in predicted else []
            options = {"ranks": shape[1] * shape[2], "grid": shape, "seconds": [seconds] * 2, "lines": lines}
            values = {"ranks": options["ranks"], "grid": grid, "method": "-", "repeat": number}
            runs[f"{grid}-{number}"] = (values, options)
    return made_study(folder, runs)


@pytest.mark.parametrize("ranks", [2, 4])
def test_studies_of_random_networks_have_all_families(ranks: int, tmp_path: Path) -> None:
    networks = [random_network(0, number) for number in range(10)]
    assert len(set(networks)) == 10
    assert networks[3] == random_network(0, 3)
    for network in networks:
        (tmp_path / "study.toml").write_text(study_text(network, "one", ranks, 3, "cluster-1024"))
        study = load_study(tmp_path / "study.toml")
        grids = [cell.values["grid"] for cell in make_cells(study).cells if cell.values["repeat"] == 1]
        assert (study.keys.compares, grids[:3]) == ("times", ["1x1", f"{ranks}x1", f"1x{ranks}"])
        assert grids[3:] == (["2x1x1"] if ranks == 2 else ["2x2", "4x1x1", "2x2x1"])


def test_a_named_layout_is_right_as_far_as_the_second_measurement_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = [1.0, 1.01, 0.99], [1.2, 1.21, 1.19]
    noisy = [0.8, 1.2, 0.9]
    said, predicted = {"1x1": [2.0] * 3, "2x1": one, "1x2": other}, {"1x1": 2.0, "2x1": 2.0, "1x2": 1.0}
    second = [{"2x1": one, "1x2": other}, {"2x1": other, "1x2": one}, {"2x1": one, "1x2": noisy}]
    results = iter(
        _study(tmp_path / f"{number}-{part}", {"1x1": [2.0] * 3, **times}, predicted)
        for number, again in enumerate(second)
        for part, times in enumerate((said, again))
    )
    monkeypatch.setattr(fastest_layouts, "run", lambda *arguments: next(results))
    monkeypatch.setattr(sys, "argv", ["fastest_layouts", "--networks", "3", "--folder", str(tmp_path / "runs")])
    fastest_layouts.main()
    _, _, *rows, _, right, model, marked = capsys.readouterr().out.splitlines()
    cells = [row.strip("| ").split(" | ")[1:] for row in rows]
    assert [(named, fastest.split(",")[0], answer) for named, fastest, _, answer, _, _ in cells] == [
        ("2x1", "2x1", "yes"),
        ("2x1", "1x2", "no"),
        ("2x1", "1x2", "yes"),
    ]
    assert [row[-2:] for row in cells] == [["1x2", "20%"], ["1x2", "0%"], ["1x2", "0%"]]
    assert right == "the named layout is right: 2 of 3"
    assert model == "the model's first choice loses at most 10%: 2 of 3"
    assert marked.startswith("marked as disturbed: 0 of 54 cells")
