"""The README's commands on real data reach the stated quality."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_runner.launch import run_mpi


def train(unpacked: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    """Train with 2 ranks and return what ``--format json`` prints."""
    program = [sys.executable, "-m", "hybridnn", "train", *arguments, "--format", "json"]
    result = run_mpi(2, program, timeout=280, env={"HYBRIDNN_DATA": str(unpacked)}, cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_airfoil_reaches_an_r2_of_0_90(unpacked: Path, tmp_path: Path) -> None:
    recipe = "--data airfoil --hidden 64,64 --optimizer adam --lr 0.005 --epochs 60 --batch-size 32"
    printed = train(unpacked, tmp_path, *recipe.split())
    assert printed["header"]["train_samples"] == 1202
    assert printed["header"]["test_samples"] == 301
    assert printed["epochs"][-1]["validation_r2"] >= 0.90


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mnist_reaches_98_percent(unpacked: Path, tmp_path: Path) -> None:
    recipe = "--data mnist --set data.standardize=false --hidden 512,256 --lr 0.02 --epochs 12"
    printed = train(unpacked, tmp_path, *recipe.split(), "--set", "schedule.name=cosine")
    assert printed["header"]["test_samples"] == 10_000
    assert printed["epochs"][-1]["validation_accuracy"] >= 0.98
