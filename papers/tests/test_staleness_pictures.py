"""Pictures of staleness and their records: Chen et al. 2018, Figure 8; errors of gradients and weights by stage."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

from hybridnn.data import load_dataset
from hybridnn_papers import staleness_pictures as pictures
from reference.pages import ROOT


def rows_of(path: Path) -> list[pictures.Row]:
    with open(path, encoding="utf-8", newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]


def test_stale_weights_are_further_away_with_every_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a short training, whose errors are drawn and written."""
    monkeypatch.setattr(pictures, "SEEDS", 1)
    monkeypatch.setattr(pictures, "FORM", {"layers": 8, "epochs": 4, "batch_size": 32, "log_every": 5})
    pictures.main("weights", str(tmp_path / "a.svg"))
    rows = rows_of(tmp_path / "a.csv")
    assert min(pictures.better_predictions(rows)) >= 0.95
    means = [fmean(row["stale"] for row in rows if row["ahead"] == ahead) for ahead in range(1, pictures.STAGES)]
    assert 0 < means[0] < means[1] < means[2]
    lines = pictures.draw_weight_errors(rows).axes[0].lines
    assert [line.get_label() for line in lines[:2]] == ["stale, 1 ahead", "predicted, 1 ahead"]
    assert list(lines[0].get_ydata()) == [row["stale"] for row in rows if row["ahead"] == 1]


def test_record_carries_the_page() -> None:
    rows = rows_of(ROOT / "papers" / "docs" / "chen-figure-8" / "weight_error.csv")
    assert {row["seed"] for row in rows} == {0, 1, 2}
    assert pictures.better_predictions(rows) == [1, 1, 1]
    page = (ROOT / "papers" / "docs" / "chen-2018.md").read_text(encoding="utf-8")
    assert "in every logged step" in page.replace("\n", " ")


def test_vertical_sync_has_old_weights_on_every_stage_and_pipedream_on_all_but_the_last() -> None:
    data = load_dataset("digits")
    rows = [pictures.staleness(data, method, stages=4, epochs=2) for method in ("pipedream-vsync", "pipedream")]
    synced, plain = ([row["error of weights"] for row in of_method] for of_method in rows)
    assert min(synced) > 0
    assert plain[-1] == 0
    assert plain[:-1] == sorted(plain[:-1], reverse=True)
    gradients, weights = pictures.draw_staleness([*rows[0], *rows[1]]).axes
    names = [f"{of_method[0]['method']}, {of_method[0]['accuracy']:.3f}" for of_method in rows]
    assert [line.get_label() for line in gradients.lines] == names
    assert list(weights.lines[0].get_ydata()) == synced


def test_page_has_the_numbers_of_the_record() -> None:
    folder = ROOT / "papers" / "docs"
    with open(folder / "staleness" / "staleness.csv", encoding="utf-8", newline="") as file:
        first = {row["method"]: row for row in csv.DictReader(file) if row["stage"] == "0"}
    page = (folder / "stale-methods.md").read_text(encoding="utf-8")
    assert set(first) == set(pictures.METHODS)
    for method, row in first.items():
        numbers = [f"{float(row[name]):.2f}" for name in pictures.ERRORS]
        assert f"| `{method}` | {' | '.join(numbers)} | {float(row['accuracy']):.3f} |" in page
