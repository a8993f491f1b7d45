"""`hybridnn compare`: the settings that differ, and the figures of every run's history."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reference.command_line import Run, error_line, records_of

SMALL = ("--hidden", "6", "--batch-size", "200", "--set", "training.dtype=float64")
SVG = "{http://www.w3.org/2000/svg}"
PARTS = ("--set", "data.validation_fraction=0.2")


@pytest.fixture
def runs(run_hybridnn: Run, trained_once: Callable[..., Path]) -> Run:
    """Two runs that differ in three settings, and one of them again."""
    shutil.copytree(trained_once(*SMALL, "--epochs", "2"), "a")
    shutil.copytree(trained_once(*SMALL, "--epochs", "3", "--lr", "0.2", "--optimizer", "adam"), "b")
    shutil.copytree("a", "again")
    return run_hybridnn


def test_settings_that_differ_and_figures_of_the_histories(runs: Run) -> None:
    code, text, err = runs("compare", "a", "b", "--format", "json")
    assert (code, err) == (0, "")
    first, second = json.loads(text)["runs"]
    assert {"optimizer.name", "optimizer.lr", "training.epochs"} <= set(first["settings"])
    assert (first["settings"]["training.epochs"], second["settings"]["training.epochs"]) == (2, 3)
    assert (first["settings"]["optimizer.name"], second["settings"]["optimizer.name"]) == ("sgd", "adam")
    assert not {name for name in first["settings"] if name.startswith("output.")}
    for name, found in (("a", first), ("b", second)):
        epochs = records_of(name, "epoch")
        expected = {"run": name, "ranks": 1, "epochs": len(epochs), "validation_samples": None}
        expected |= {f"test_{key}": epochs[-1][f"validation_{key}"] for key in ("loss", "accuracy", "r2")}
        expected["train_loss"] = epochs[-1]["train_loss"]
        expected |= {"best": None, "best_epoch": None, "diverged": ""}  # test samples choose nothing
        assert {key: found[key] for key in expected} == expected


def test_the_best_epoch_is_that_of_the_monitor(runs: Run, trained_once: Callable[..., Path]) -> None:
    run = trained_once(*SMALL, "--epochs", "3", "--lr", "0.9", "--set", "training.monitor=validation_loss", *PARTS)
    found = json.loads(runs("compare", "a", str(run), "--format", "json")[1])["runs"][1]
    losses = [record["validation_loss"] for record in records_of(run, "epoch")]
    assert (found["best_validation_loss"], found["best_epoch"]) == (min(losses), 1 + losses.index(min(losses)))


def test_text_has_a_column_for_each_run_and_no_empty_rows(runs: Run) -> None:
    code, text, err = runs("compare", "a", "b", "again")
    assert (code, err) == (0, "")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == ["a", "b", "again"]
    assert ["training.epochs", "2", "3", "2"] in lines
    assert ["optimizer.name", "sgd", "adam", "sgd"] in lines
    assert "r2" not in text
    assert "diverged" not in text
    found = json.loads(runs("compare", "a", "again", "--format", "json")[1])["runs"]
    assert [item["settings"] for item in found] == [{}, {}]
    assert "RUN... = 'a': " in error_line(runs("compare", "a"))
    assert "absent is not a run folder" in error_line(runs("compare", "a", "absent"))


def test_runs_with_a_pipeline(run_hybridnn: Run) -> None:
    for name, partition in (("first", "[2,1]"), ("second", "[1,2]")):
        split = ("--in-process", "2", "--set", f"parallel.partition={partition}", "--set", "parallel.pipeline=2")
        assert run_hybridnn("train", *SMALL, "--hidden", "6,6", "--epochs", "1", *split, "--out", name)[0] == 0
    code, text, err = run_hybridnn("compare", "first", "second", "--format", "json")
    assert (code, err) == (0, "")
    found = [run["settings"] for run in json.loads(text)["runs"]]
    assert found == [{"parallel.partition": [2, 1]}, {"parallel.partition": [1, 2]}]
    rows = [line.split() for line in run_hybridnn("compare", "first", "second")[1].splitlines()]
    assert ["parallel.partition", "2,", "1", "1,", "2"] in rows


def test_a_run_that_diverged_says_so(run_hybridnn: Run) -> None:
    assert run_hybridnn("train", *SMALL, "--epochs", "1", "--out", "good")[0] == 0
    diverging = ("train", *SMALL, "--batch-size", "20", "--epochs", "3", "--lr", "1e30", "--out", "bad")
    assert run_hybridnn(*diverging)[0] == 1
    found = json.loads(run_hybridnn("compare", "good", "bad", "--format", "json")[1])["runs"]
    assert [item["diverged"] for item in found] == ["", "epoch 1"]
    assert (found[1]["train_loss"], found[1]["seconds_per_epoch"]) == (None, None)


def _texts(path: str) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def _curves(path: str) -> list[list[dict[str, str]]]:
    """Attributes of the lines of the legend, and of those of each panel, which begin with the legend's colours."""
    lines = [dict(line.attrib) for line in ElementTree.parse(path).getroot().iter(f"{SVG}polyline")]
    runs = len(lines) // 3
    return [lines[start : start + runs] for start in range(0, len(lines), runs)]


def test_a_plot_has_the_curves_of_all_runs(runs: Run) -> None:
    code, text, err = runs("compare", "a", "b", "--plot", "curves.svg")
    assert (code, err) == (0, "")
    assert text == runs("compare", "a", "b")[1]
    words = _texts("curves.svg")
    legend = " ".join(words[: words.index("Test loss, mean per sample")])
    assert {"Test loss, mean per sample", "Test accuracy", "epoch"} <= set(words)
    assert re.search(r"a: .*optimizer\.name sgd.* b: .*optimizer\.name adam", legend)
    assert "momentum" not in legend, "a setting of one optimizer alone"
    assert re.search(r"training\.epochs 2.*training\.epochs 3", legend)
    for lines in _curves("curves.svg"):
        assert len({line["stroke"] for line in lines}) == 2
        assert not any("stroke-dasharray" in line for line in lines)
    assert [[len(line["points"].split()) for line in panel] for panel in _curves("curves.svg")[1:]] == [[2, 3], [2, 3]]
    root = ElementTree.parse("curves.svg").getroot()
    assert float(root.attrib["width"]) == pytest.approx(8.4 / 2.54 * 96, abs=1)
    assert all(float(text.attrib["font-size"]) * 0.75 >= 6 for text in root.iter(f"{SVG}text"))


def test_equal_curves_of_a_plot_differ_in_their_dashes(runs: Run) -> None:
    shutil.copytree("a", "third")
    assert runs("compare", "a", "again", "third", "b", "--plot", "curves.svg")[0] == 0
    legend, *panels = _curves("curves.svg")
    dashes = [line.get("stroke-dasharray", "") for line in legend]
    assert len(set(dashes[:3])) == 3
    assert (dashes[0], dashes[3]) == ("", "")
    for lines in panels:
        assert [line.get("stroke-dasharray", "") for line in lines] == dashes
        assert lines[0]["points"] == lines[1]["points"] == lines[2]["points"] != lines[3]["points"]
    # The filled points of the first run are seen inside the rings of the others.
    circles = [circle.attrib for circle in ElementTree.parse("curves.svg").getroot().iter(f"{SVG}circle")]
    radii = [{float(c["r"]) for c in circles if line["stroke"] in (c["fill"], c.get("stroke"))} for line in legend]
    assert max(radii[0]) < min(radii[1]) < min(radii[2])


@pytest.mark.parametrize(("name", "begin"), [("curves.png", b"\x89PNG"), ("curves.pdf", b"%PDF")])
def test_formats_of_a_plot(runs: Run, name: str, begin: bytes) -> None:
    code, text, err = runs("compare", "a", "again", "--format", "json", "--plot", name)
    assert (code, err) == (0, "")
    assert len(json.loads(text)["runs"]) == 2
    assert Path(name).read_bytes().startswith(begin)


def test_wrong_files_of_a_plot(runs: Run) -> None:
    assert "a name that ends with .png, .svg, .pdf" in error_line(runs("compare", "a", "b", "--plot", "x.jpg"))
    assert "there is no folder none" in error_line(runs("compare", "a", "b", "--plot", "none/x.svg"))


def test_a_plot_names_runs_that_diverged(run_hybridnn: Run, trained_once: Callable[..., Path]) -> None:
    good = str(trained_once(*SMALL, "--epochs", "2"))
    diverging = ("train", *SMALL, "--batch-size", "20", "--epochs", "3", "--lr", "1e30", "--out", "bad")
    assert run_hybridnn(*diverging)[0] == 1
    assert run_hybridnn("compare", good, "bad", "--plot", "curves.svg")[0] == 0
    assert "diverged in epoch 1" in " ".join(_texts("curves.svg"))
    shutil.copytree("bad", "worse")
    error = error_line(run_hybridnn("compare", "bad", "worse", "--plot", "none.svg"))
    assert "none of the runs has an epoch with an evaluation" in error
    assert not Path("none.svg").exists()
