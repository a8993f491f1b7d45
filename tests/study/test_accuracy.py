"""What methods cost beside a baseline: sentences, tables and plots of fabricated records, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from hybridnn.errors import SettingError
from hybridnn.study.answer import compare_trainings
from hybridnn.study.cells import make_cells
from hybridnn.study.plots import draw_plots
from hybridnn.study.report import csv_text, latex_text, markdown_text, report_facts
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.study_file import load_study
from hybridnn.study.study_folder import StudyFolder
from reference.finished_runs import write_study

BASE = [0.90, 0.92, 0.94, 0.91, 0.93]


def _study(
    folder: Path,
    accuracies: Mapping[str, Sequence[float | None]],
    *,
    margin: float | None = None,
    diverged: Sequence[str] = (),
    width: int | None = None,
) -> StudyResults:
    """Methods with their accuracies by seed, of which some are missing; those of one length are equal to the bit.

    A name ends with as many ``'`` as its training has more epochs.
    """
    runs = {}
    for name, values in accuracies.items():
        method, epochs = name.rstrip("'"), 2 + name.count("'")
        for seed, accuracy in enumerate(values):
            axes = {"method": method, "seed": seed} | ({} if width is None else {"width": width})
            ended = f"{method}-{seed}" not in diverged
            options = {
                "ranks": 4,
                "grid": (4, 1, 1),
                "method": method,
                "in_process": True,
                "test_samples": 1000,
                "seconds": [1.0] * epochs,
            }
            if accuracy is not None:
                runs[f"{method}-{seed}"] = axes, {**options, "accuracy": accuracy, "ended": ended}
    write_study(folder, runs, baseline={"method": "gpipe"}, more={"compares": "training", "margin": margin})
    for name in diverged:
        with open(folder / "cells" / name / "history.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": "diverged", "step": 25, "epoch": 3, "reason": "the loss is nan"}) + "\n")
    return read_results(folder)


def _plus(*differences: float) -> list[float | None]:
    return [base + difference for base, difference in zip(BASE, differences, strict=False)]


LOWER = _plus(-0.03, -0.04, -0.03, -0.05, -0.04)
NEAR = _plus(0.001, -0.001, 0.001, 0.0, 0.0)
FAR = _plus(0.02, -0.02, 0.01, -0.01, 0.0)
HIGHER = _plus(0.03, 0.04, 0.03, 0.05, 0.04)
UNTOLD = "No difference of fr to gpipe can be told: test accuracy"


@pytest.mark.parametrize(
    ("methods", "options", "expected"),
    [
        ({"fr": LOWER}, {}, "fr costs accuracy against gpipe: test accuracy -0.0380 [-0.0484, -0.0276] over 5 "),
        ({"fr": HIGHER}, {"margin": 0.01}, "fr has a higher accuracy than gpipe: test accuracy +0"),
        ({"fr'": FAR}, {}, f"{UNTOLD} +0.0000 [-0.0196, +0.0196] "),
        ({"fr'": NEAR}, {}, f"{UNTOLD} +0.0002 ["),
        ({"fr'": NEAR}, {"margin": 0.001}, f"{UNTOLD} +0.0002 ["),
        (
            {"fr": BASE, "ddg'": BASE, "pipedream''": LOWER, "pipemare''": LOWER},
            {"margin": 0.1},
            "fr trains as gpipe, to the bit.\n"
            "ddg costs nothing against gpipe: test accuracy +0.0000 [\n"
            "pipedream and pipemare, the same training to the bit, cost nothing against gpipe: test accuracy -0.0",
        ),
        (
            {"fr": LOWER[:1], "ddg": [None, *LOWER[1:3]], "pipedream": [None] * 5 + [0.9] * 5},
            {"margin": 0.1},
            "1 seed cannot show a difference, so nothing is concluded on fr against gpipe: test accuracy -0.0300 \n"
            "2 seeds cannot show a difference, so nothing is concluded on ddg against gpipe: test accuracy -0.03\n"
            "no seed is common, so nothing is concluded on pipedream against gpipe: no figure",
        ),
        (
            {"fr": LOWER, "ddg": NEAR},
            {"margin": 0.1, "diverged": ["fr-0", "fr-3"]},
            "2 of 10 runs diverged, so nothing is concluded on fr against gpipe: \nddg costs nothing against gpipe: ",
        ),
        ({"fr": LOWER}, {"diverged": ["gpipe-1"]}, "1 of 10 runs diverged, so nothing is concluded on fr against "),
    ],
    ids=["lower", "higher", "far", "no margin", "small margin", "equal", "few seeds", "diverged", "base diverged"],
)
def test_sentence_says_what_the_seeds_carry(tmp_path, methods, options, expected) -> None:
    results = _study(tmp_path, {"gpipe": BASE, **methods}, **options)
    texts, starts = [found.text for found in compare_trainings(results)], expected.splitlines()
    assert [text[: len(start)] for text, start in zip(texts, starts, strict=True)] == starts
    for text in texts:
        assert (" costs " in text or " cost " in text) <= ("so nothing is concluded" not in text)
        assert ("nothing against" in text) <= text.endswith(f"within the margin of {options.get('margin')}.")


def test_interval_is_that_of_student_for_all_comparisons_and_equal_trainings_are_one(tmp_path: Path) -> None:
    results = _study(tmp_path, {"gpipe": BASE, "fr": LOWER, "ddg": LOWER, "pipedream": FAR, "spectrain": BASE})
    fr, pipedream, spectrain = compare_trainings(results)
    assert (fr.names, pipedream.names, spectrain.last, fr.comparisons) == (("fr", "ddg"), ("pipedream",), None, 2)
    differences = np.subtract(LOWER, BASE)
    half = t.isf(0.025 / 2, 4) * differences.std(ddof=1) / np.sqrt(5)
    found = fr.last.estimate.low, fr.last.estimate.high
    assert found == pytest.approx((differences.mean() - half, differences.mean() + half))


def test_report_has_the_sentences_a_table_and_the_differences(tmp_path: Path) -> None:
    results = _study(tmp_path, {"gpipe": BASE, "fr": LOWER, "ddg'": NEAR}, margin=0.02)
    text, (fr, ddg) = markdown_text(results, {}), compare_trainings(results)
    assert text.index(f"* {fr.text}") < text.index(f"* {ddg.text}") < text.index("## Does it cost accuracy?")
    rows = [line for line in text.splitlines() if line.startswith("| ")][-5:]
    rows.pop(1)  # the rule
    assert [row.split(" | ")[-1] for row in rows] == [
        "conclusion |",
        "the baseline |",
        "costs accuracy |",
        "costs nothing |",
    ]
    assert "| fr | 0.882 ± 0.0" in rows[2]
    assert "within the margin of 0.02 of the study file." in text
    assert "of all 2 comparisons" in text
    assert "sgd" in rows[1]
    assert "Does it cost accuracy?" in latex_text(results)
    assert {"optimizer", "mean_staleness"} <= set(csv_text(results).splitlines()[0].split(","))
    facts = report_facts(results)["accuracy"]
    assert [(one["conclusion"], one["seeds"], one["margin"]) for one in facts] == [
        ("costs accuracy", 5, 0.02),
        ("costs nothing", 5, 0.02),
    ]
    caption, figure = draw_plots(results)["accuracy-differences"]
    assert caption.endswith("; shaded: the margin within which a training costs nothing.")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ddg", "fr"]
    bars = {round(float(found.lines[0].get_xdata()[0]), 6) for found in axes.containers}
    assert round(fr.last.estimate.value, 6) in bars
    (shaded,) = axes.patches
    assert (shaded.get_x(), shaded.get_width()) == (-0.02, 0.04)


def test_curves_have_bands_over_the_seeds(tmp_path: Path) -> None:
    plots = draw_plots(_study(tmp_path, {"gpipe": BASE, "fr": LOWER}))
    caption, figure = plots["accuracy"]
    assert "; bands: from the least to the greatest of the runs" in caption
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (min(BASE) / 2, max(BASE))


def test_without_a_baseline_or_in_a_study_of_times_nothing_is_compared(tmp_path: Path) -> None:
    results = _study(tmp_path, {"gpipe": BASE, "fr": LOWER})
    about = json.loads((tmp_path / "study.json").read_text())
    for changes in ({"baseline": {}}, {"compares": "times"}):
        (tmp_path / "study.json").write_text(json.dumps(about | changes))
        assert compare_trainings(read_results(tmp_path)) == []
    assert len(compare_trainings(results)) == 1


def test_margin_is_stated_before_the_cells_run(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    text = 'name = "s"\nbase.training = {epochs = 1}\nmargin = 0.01\n[axes]\nseeds = [0]\n'
    file.write_text(text)
    study, folder = load_study(file), StudyFolder(tmp_path / "runs")
    folder.begin(study, make_cells(study))
    folder.check(load_study(file), make_cells(study))
    cell = folder.cell(make_cells(study).cells[0].id)
    cell.mkdir(parents=True)
    (cell / "history.jsonl").write_text('{"kind": "end"}\n')
    file.write_text(text.replace("0.01", "0.02"))
    with pytest.raises(SettingError, match=r"margin = 0\.02: .* cells ran before with margin = 0\.01; name another"):
        folder.check(load_study(file), make_cells(study))
    for value in ("0", "-1", '"a"'):
        file.write_text(text.replace("0.01", value))
        with pytest.raises(SettingError, match=r"margin = .*must be a number"):
            load_study(file)
