"""The programs of examples/ run in an empty folder, and print what the mathematics says."""

import re
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hybridnn.data import load_dataset
from hybridnn.in_process import run_ranks
from reference.pages import ROOT

EXAMPLES = ROOT / "examples"
LISTED = {"train_digits", "process_grid", "stale_pipeline", "own_table", "own_optimizer", "compare_layouts"}


@pytest.fixture
def output_of(tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    """Run a program in an empty folder, on as many ranks as are given; return what it prints."""

    def run(name: str, ranks: int = 1) -> str:
        monkeypatch.chdir(tmp_path)
        path = str(EXAMPLES / f"{name}.py")
        if ranks > 1:
            run_ranks(ranks, lambda comm: exec(Path(path).read_text(encoding="utf-8"), {"__name__": "__main__"}))
        else:
            runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


def numbers(line: str) -> list[float]:
    return [float(text) for text in re.findall(r"\d+\.\d+", line)]


def test_every_example_is_tested_and_listed() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert programs == LISTED == set(re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", page, re.MULTILINE))
    for name in programs:
        docstring = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").partition('\n"""')[0]
        assert f"examples/{name}.py" in docstring


def test_weights_of_the_digits_classify_them(output_of: Callable[..., str]) -> None:
    accuracy = float(re.findall(r"test accuracy ([\d.]+)", output_of("train_digits"))[0])
    assert accuracy > 0.95
    with np.load("digits-weights.npz") as weights:
        rows = load_dataset("digits").train
        x, labels = np.empty((rows.samples, 64)), np.empty(rows.samples, np.int64)
        rows.take(np.arange(rows.samples), x, labels)
        for layer in range(3):
            x = x @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
            x = np.maximum(x, 0) if layer < 2 else x
    assert (x.argmax(axis=1) == labels).mean() > 0.95


def test_the_grid_of_four_ranks_trains_as_that_of_two(output_of: Callable[..., str]) -> None:
    four, two = output_of("process_grid", 4), output_of("process_grid", 2)
    assert "batch=2, model=2" in four
    assert "batch=1, model=2" in two
    assert re.findall(r"loss [\d.]+", four) == re.findall(r"loss [\d.]+", two) != []


@pytest.mark.slow
def test_an_exact_pipeline_trains_as_one_rank_and_others_do_not(output_of: Callable[..., str]) -> None:
    one, exact, *stale = map(numbers, output_of("stale_pipeline").splitlines())
    assert one == exact
    assert len(stale) == 2
    for losses in (one, *stale):
        assert len(losses) == 5
        assert losses == sorted(losses, reverse=True)
        assert (losses == one) is (losses is one)


def test_prices_follow_the_formula_of_the_table(output_of: Callable[..., str]) -> None:
    first, *predicted = output_of("own_table").splitlines()
    assert numbers(first)[0] > 0.97
    for line, (rooms, age) in zip(predicted, [(3, 10), (6, 50)], strict=True):
        assert float(line.split()[-1]) == pytest.approx(60 * rooms - 0.01 * (age - 50) ** 2, abs=15)


def test_an_own_optimizer_trains_the_same_on_four_ranks(output_of: Callable[..., str]) -> None:
    one, four = map(numbers, output_of("own_optimizer").splitlines())
    assert len(one) == 4
    assert one == four == sorted(one, reverse=True)


@pytest.mark.slow
def test_the_layouts_train_the_same_and_send_what_the_ring_sends(output_of: Callable[..., str]) -> None:
    rows = dict(line.strip().split("  ", 1) for line in output_of("compare_layouts").splitlines()[1:])
    assert len(rows) == 9
    assert len({numbers(row)[0] for row in rows.values()}) == 1
    widths, steps, ranks = (64, 96, 96, 96, 10), -(-load_dataset("digits").train.samples // 200), 8
    parameters = sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
    sent = steps * 2 * (ranks - 1) * parameters * 8  # an all-reduce of float64 gradients in every step
    assert numbers(rows["1 x 8 x 1"])[1] * 1e6 == pytest.approx(sent, rel=1e-3)
