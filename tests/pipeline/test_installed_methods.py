"""Pipeline methods and optimizers of other packages, found by their entry points, are used like any other."""

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
    "bad = delayed:absent": "AttributeError",
    "worse = no_such_module:mine": "ModuleNotFoundError",
    "number = delayed:half_way": "it is no pipeline method",
    "another = delayed:last_first": "its name is last-first",
}
"""Entry points without a method, and why."""


def test_installed_methods_are_listed_drawn_and_trained_with_and_others_left_out_with_a_warning(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "delayed.py").write_text(next(example for example in examples if "lwp-half" in example))
    info = tmp_path / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    points = ["last-first = delayed:last_first", "lwp-half = delayed:lwp_half", *LEFT_OUT]
    points += ["[hybridnn.optimizers]", "sgd-by-delay = delayed:SGDByDelay"]
    (info / "entry_points.txt").write_text("\n".join(["[hybridnn.methods]", *points, ""]))

    small = ("--hidden", "6,6", "--epochs", "1", "--set", "training.dtype=float64", "-q")
    commands = [("schedule",), ("schedule", "last-first", "--stages", "2", "--microbatches", "3")]
    # With two stages half of the one missed update is all of it; three tell delays apart.
    for stages, method, optimizer, *more in (
        ("2", "last-first", "sgd"),
        ("2", "gpipe", "sgd"),
        ("2", "lwp-half", "sgd"),
        ("2", "lwp", "sgd"),
        ("3", "vanilla", "sgd-by-delay", "--set", "optimizer.power=1"),
        ("3", "vanilla", "sgd-pipemare", "--set", "optimizer.annealing_updates=1000000000000000"),
    ):
        how = ("--in-process", stages, "--pipeline", stages, "--method", method, "--optimizer", optimizer, *more)
        commands.append(("train", *small, *how, "--out", optimizer if stages == "3" else method))
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
    assert_same_weights(tmp_path / "lwp-half", tmp_path / "lwp", 1e-13)
    assert_same_weights(tmp_path / "sgd-by-delay", tmp_path / "sgd-pipemare", 1e-13)
    for run, value in (
        ("last-first", "parallel.method = 'last-first'"),
        ("sgd-by-delay", "optimizer.name = 'sgd-by-delay'"),
    ):
        with pytest.raises(DataError, match=f"{value}.* from the package their-methods 1.0, which is not installed"):
            read_config(tmp_path / run)
