"""`hybridnn compare`: the settings that differ, and the figures of every run's history."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reference.command_line import Run, error_line, records_of

SMALL = ("--hidden", "6", "--batch-size", "200", "--set", "training.dtype=float64")
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
