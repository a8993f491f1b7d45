"""Pipeline methods and optimizers of other packages, found by their entry points, are used like any other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridnn.errors import DataError
from hybridnn.runs.run_files import read_config
from mpi_runner.slowness import deadline
from reference.command_line import assert_same_weights

MODULE = """
from dataclasses import dataclass

from hybridnn import SGD
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


@dataclass(frozen=True)
class Faster(SGD):
    name = "faster"
    times: float = 2.0

    def update(self, weights, gradient, state, lr, out=None):
        super().update(weights, gradient, state, self.times * lr, out)

    reads_gradient_once = False
other_name = mine
"""


PROGRAM = """
import json, sys
from hybridnn.cli.main import main
from hybridnn.runs import report
report.draw_learning_curve = lambda *_: None
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0, arguments
"""

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"

LEFT_OUT = {
    "bad = their_methods:absent": "AttributeError",
    "worse = no_such_module:mine": "ModuleNotFoundError",
    "number = their_methods:not_a_method": "it is no pipeline method",
    "another = their_methods:other_name": "its name is last-first",
}
"""Entry points without a method, and why."""


def test_installed_methods_are_listed_drawn_and_trained_with_and_others_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "their_methods.py").write_text(MODULE)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "delayed.py").write_text(next(example for example in examples if "ddg-newest" in example))
    info = tmp_path / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    points = ["last-first = their_methods:mine", "ddg-newest = delayed:newest", *LEFT_OUT]
    points += ["[hybridnn.optimizers]", "faster = their_methods:Faster"]
    (info / "entry_points.txt").write_text("\n".join(["[hybridnn.methods]", *points, ""]))

    small = ("--hidden", "6,6", "--epochs", "1", "--set", "training.dtype=float64", "-q", "--in-process", "2")
    commands = [("schedule",), ("schedule", "last-first", "--stages", "2", "--microbatches", "3")]
    for method in ("last-first", "gpipe", "ddg-newest", "vanilla"):
        commands.append(("train", *small, "--pipeline", "2", "--method", method, "--out", method))
    faster = ("--optimizer", "faster", "--set", "optimizer.times=4", "--set", "optimizer.lr=0.01")
    commands += [("train", *small, *faster, "--out", "faster")]
    commands += [("train", *small, "--set", "optimizer.lr=0.04", "--out", "sgd")]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=deadline(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gpipe whose backward passes begin" in done.stdout
    assert "spectrain" in done.stdout
    assert done.stdout.count("lint: ok") == 1
    for line, reason in LEFT_OUT.items():
        name, _, value = line.partition(" = ")
        assert f"the pipeline method {name} ({value}) is left out: {reason}" in done.stderr
    assert done.stderr.count("is left out") == len(LEFT_OUT)
    assert_same_weights(tmp_path / "last-first", tmp_path / "gpipe", 1e-13)
    assert_same_weights(tmp_path / "ddg-newest", tmp_path / "vanilla", 1e-13)  # other orders, the same versions
    assert_same_weights(tmp_path / "faster", tmp_path / "sgd", 1e-13)
    for run, value in (("last-first", "parallel.method = 'last-first'"), ("faster", "optimizer.name = 'faster'")):
        with pytest.raises(DataError, match=f"{value}.* from the package their-methods 1.0, which is not installed"):
            read_config(tmp_path / run)
