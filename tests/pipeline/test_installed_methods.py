"""Pipeline methods of other packages, found by their entry points: drawn, checked and trained with like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpi_runner.slowness import deadline

MODULE = """
from hybridnn.pipeline.schedules import computation_orders as orders
from hybridnn.pipeline.schedules.methods import Method
from hybridnn.pipeline.schedules.weight_policies import EXACT


def backwards_in_reverse(size, stage):
    found = orders.gpipe(size, stage)
    first = next(place for place, item in enumerate(found) if item.name == "backward")
    count = sum(item.name == "backward" for item in found[:first + size.microbatches])
    return [*found[:first], *reversed(found[first:first + count]), *found[first + count:]]


mine = Method(
    "last-first", "gpipe whose backward passes begin with the last microbatch", backwards_in_reverse, EXACT,
    lambda size, stage: size.microbatches, cuts_minibatches=True,
)
not_a_method = 3
other_name = mine
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that holds an installed package with one method."""
    (tmp_path / "their_methods.py").write_text(MODULE)
    info = tmp_path / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hybridnn.methods]\nlast-first = their_methods:mine\n")
    return tmp_path


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "hybridnn", *arguments],
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        cwd=package,
        capture_output=True,
        text=True,
        timeout=deadline(60),
        check=False,
    )


def test_an_installed_method_is_listed_drawn_and_trained_with(package: Path) -> None:
    assert "last-first" in run(package, "schedule").stdout
    drawn = run(package, "schedule", "last-first", "--stages", "2", "--microbatches", "3")
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert "lint: ok" in drawn.stdout
    small = ("--hidden", "6,6", "--epochs", "1", "--set", "training.dtype=float64", "-q", "--in-process", "2")
    for method in ("last-first", "gpipe"):
        trained = run(package, "train", *small, "--pipeline", "2", "--method", method, "--out", method)
        assert (trained.returncode, trained.stderr) == (0, "")
    with np.load(package / "last-first/weights.npz") as found, np.load(package / "gpipe/weights.npz") as expected:
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("bad = their_methods:absent", "AttributeError"),
        ("bad = no_such_module:mine", "ModuleNotFoundError"),
        ("bad = their_methods:not_a_method", "it is of class int, not Method"),
        ("bad = their_methods:other_name", "its name is last-first"),
    ],
)
def test_an_entry_point_without_a_method_is_left_out_with_a_warning(package: Path, line: str, reason: str) -> None:
    (package / "their_methods-1.0.dist-info/entry_points.txt").write_text(f"[hybridnn.methods]\n{line}\n")
    listed = run(package, "schedule")
    assert listed.returncode == 0
    assert "spectrain" in listed.stdout
    assert f"the pipeline method bad ({line.split(' = ')[1]}) is left out: {reason}" in listed.stderr
