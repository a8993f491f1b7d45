"""The programs of examples/ run in an empty folder, and print what the mathematics says."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hybridnn.datasets import load_dataset
from mpi_runner.launch import job_environment
from mpi_runner.slowness import deadline
from reference.pages import ROOT

EXAMPLES = ROOT / "examples"
RUN = {
    "train_digits.py": (),
    "process_grid.py": ("-m", "hybridnn", "run", "-n", "4"),
    "stale_pipeline.py": (),
    "own_table.py": (),
    "own_optimizer.py": (),
    "compare_layouts.py": (),
}
"""Arguments of Python before each program."""


def output_of(name: str, folder: Path, before: tuple[str, ...] | None = None) -> str:
    command = [sys.executable, *(RUN[name] if before is None else before), str(EXAMPLES / name)]
    done = subprocess.run(
        command, cwd=folder, env=job_environment({}), capture_output=True, text=True, timeout=deadline(60)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(line: str) -> list[float]:
    return [float(text) for text in re.findall(r"\d+\.\d+", line)]


def test_every_example_is_tested_and_listed() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert programs == set(RUN) == set(re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", page, re.MULTILINE))
    for name in programs:
        assert f"examples/{name}" in (EXAMPLES / name).read_text(encoding="utf-8").partition('\n"""')[0]


def test_weights_of_the_digits_classify_them(tmp_path: Path) -> None:
    accuracy = float(re.findall(r"test accuracy ([\d.]+)", output_of("train_digits.py", tmp_path))[0])
    assert accuracy > 0.95
    with np.load(tmp_path / "digits-weights.npz") as weights:
        rows = load_dataset("digits").train
        x, labels = np.empty((rows.samples, 64)), np.empty(rows.samples, np.int64)
        rows.take(np.arange(rows.samples), x, labels)
        for layer in range(3):
            x = x @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
            x = np.maximum(x, 0) if layer < 2 else x
    assert (x.argmax(axis=1) == labels).mean() > 0.95


def test_the_grid_of_four_ranks_trains_as_that_of_two(tmp_path: Path) -> None:
    text = output_of("process_grid.py", tmp_path)
    assert "batch=2, model=2" in text
    two = output_of("process_grid.py", tmp_path, ("-m", "hybridnn", "run", "-n", "2"))
    assert "batch=1, model=2" in two
    assert re.findall(r"loss [\d.]+", text) == re.findall(r"loss [\d.]+", two) != []


def test_an_exact_pipeline_trains_as_one_rank_and_others_do_not(tmp_path: Path) -> None:
    one, exact, *stale = map(numbers, output_of("stale_pipeline.py", tmp_path).splitlines())
    assert one == exact
    assert len(stale) == 2
    for losses in (one, *stale):
        assert len(losses) == 5
        assert losses == sorted(losses, reverse=True)
        assert (losses == one) is (losses is one)


def test_prices_follow_the_formula_of_the_table(tmp_path: Path) -> None:
    first, *predicted = output_of("own_table.py", tmp_path).splitlines()
    assert numbers(first)[0] > 0.97
    for line, (rooms, age) in zip(predicted, [(3, 10), (6, 50)], strict=True):
        assert float(line.split()[-1]) == pytest.approx(60 * rooms - 0.01 * (age - 50) ** 2, abs=15)


def test_an_own_optimizer_trains_the_same_on_four_ranks(tmp_path: Path) -> None:
    one, four = map(numbers, output_of("own_optimizer.py", tmp_path).splitlines())
    assert len(one) == 4
    assert one == four == sorted(one, reverse=True)


def test_the_layouts_train_the_same_and_send_what_the_ring_sends(tmp_path: Path) -> None:
    rows = dict(line.strip().split("  ", 1) for line in output_of("compare_layouts.py", tmp_path).splitlines()[1:])
    assert len(rows) == 9
    assert len({numbers(row)[0] for row in rows.values()}) == 1
    widths, steps, ranks = (64, 96, 96, 96, 10), -(-load_dataset("digits").train.samples // 200), 8
    parameters = sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
    sent = steps * 2 * (ranks - 1) * parameters * 8  # an all-reduce of float64 gradients in every step
    assert numbers(rows["1 x 8 x 1"])[1] * 1e6 == pytest.approx(sent, rel=1e-3)
