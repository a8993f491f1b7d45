"""The targets for GPUs start on a machine that has only what they say they need, and no MPI library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu_needs import required_packages
from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[2]
TREE = ("Makefile", "hybridnn", "datasets", "hpc_jobs", "assignments", "tests", "benchmarks")

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="no make"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH needs Python 3.11"),
]


def with_requirements(names: Iterable[str]) -> set[str]:
    """Packages with all that they require, as pip would install them."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            required = map(Requirement, metadata.requires(name) or ())
            waiting += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def link_packages(names: Iterable[str], site: Path) -> None:
    for name in names:
        tops = {file.parts[0] for file in metadata.files(name) or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops - {link.name for link in site.iterdir()}:
            (site / top).symlink_to(metadata.distribution(name).locate_file(top))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tree, and an interpreter that has only the required packages."""
    folder = tmp_path_factory.mktemp("bare")
    for name in TREE:
        (folder / name).symlink_to(ROOT / name)
    venv.create(folder / "env", symlinks=True)
    (site,) = folder.glob("env/lib/python*/site-packages")
    link_packages(with_requirements([*required_packages(), "torch"]), site)
    assert not (site / "hypothesis").exists()
    return folder


LEFT_OUT = "PYTHON", "MPI4PY", "LD_", "MAKE", "MFLAGS"  # the last ones are of a make that runs the tests


def run(folder: Path, command: Sequence[str], **changes: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    environment = inherited | {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""} | changes
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=deadline(120))


def make(folder: Path, target: str, arguments: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    return run(folder, ["make", target, f"PYTHON={folder}/env/bin/python", f"ARGS={arguments}"], **changes)


def program(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program as ``make gpu-day`` does, with the last tree that was linked."""
    path = os.pathsep.join([str(folder / "build" / "tree"), "tests", "."])
    return run(folder, [f"{folder}/env/bin/python", "-c", text], PYTHONSAFEPATH="1", PYTHONPATH=path)


def test_the_tests_are_collected_and_without_a_gpu_skipped_without_a_job(bare: Path) -> None:
    done = make(bare, "test-gpu", "-q -p no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("kernels", "training", "transports"):
        assert f"test_gpu_{name}.py" in done.stdout
    assert "a GPU was asked for" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert " skipped" in last
    assert "deselected" not in last


@pytest.mark.parametrize("target", ["bench-gpu", "gpu-day"])
def test_the_benchmarks_start_and_say_that_there_is_no_gpu(bare: Path, target: str) -> None:
    done = make(bare, target)
    assert done.returncode != 0
    assert "a GPU was asked for" in done.stderr, done.stderr
    assert "No module named 'hybridnn" not in done.stderr
    assert "cannot be imported" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_commands_of_the_page_start_the_day_without_make(bare: Path) -> None:
    page = (ROOT / "docs/use/gpus.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "-m benchmarks.gpu_day" in text]
    done = run(bare, ["bash", "-euc", block], PATH=f"{bare}/env/bin:/usr/bin:/bin", PYTHONPATH="")
    assert done.returncode == 2
    assert done.stderr.startswith("a GPU was asked for"), done.stderr


def test_everything_that_is_missing_is_named_before_any_piece(bare: Path, tmp_path: Path) -> None:
    for name in ("greenlet", "pytest_mpi", "scipy"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('there is no {name}')\n")
    done = make(bare, "gpu-day", f"--results {tmp_path / 'results'}", PYTHONPATH=str(tmp_path))
    assert "Error 2" in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, done.stderr
    for name in ("greenlet", "pytest_mpi", "scipy"):
        assert f"there is no {name}" in lines[0]
    assert "a GPU was asked for" in lines[0]
    assert "pydantic" not in lines[0]
    assert not (tmp_path / "results").exists()


PIECES_OF_TESTS = """
from pathlib import Path
from benchmarks.gpu_day import pieces_of_the_day, run_day
pieces = [piece for piece in pieces_of_the_day() if piece.is_test and not piece.program]
state = run_day(pieces, Path("results"), "none")
print(state)
assert len(pieces) == 4
for piece in state["devices"]["none"].values():
    assert piece["outcome"] == "done"
    (reason, number), = piece["figures"]["skipped"].items()
    assert "a GPU was asked for" in reason and number > 1
    assert not piece["figures"]["errors"]
"""


def test_every_piece_of_tests_is_collected(bare: Path) -> None:
    done = program(bare, PIECES_OF_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_MPIRUN = """
import sys, pytest
from hybridnn.kernels import cupy_loading
cupy_loading.load_cupy = lambda: None  # as if there were a GPU
arguments = ["-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider", "-q", "-rs", "-m", "gpu and mpi"]
sys.exit(pytest.main([*arguments, "tests/gpu/test_gpu_transports.py"]))
"""


def test_without_mpirun_tests_of_several_ranks_are_skipped_with_the_reason(bare: Path) -> None:
    if shutil.which("mpirun", path="/usr/bin:/bin"):
        pytest.skip("this machine has an mpirun")
    done = program(bare, WITHOUT_MPIRUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no MPI library was found" in done.stdout or "there is no mpirun" in done.stdout
    assert " skipped" in done.stdout.splitlines()[-1]
    assert "failed" not in done.stdout


TRAINING = """
import json, sys, torch
from benchmarks import gpu_training
gpu_training.SECONDS, gpu_training.PAIRS = 0.01, 1

def refuses(model, **_):
    raise RuntimeError("no compiler")

torch.compile = refuses
sys.argv = ["gpu_training", "--device", "cpu", "--case", "4-64", "--json", "training.json", "--no-chart"]
try:
    gpu_training.main()
except SystemExit as end:
    assert end.code == 1
(row,) = json.load(open("training.json"))["training"]
assert row["errors"] == {"compiled": "RuntimeError: no compiler"}, row
assert "ratio_compiled" not in row
measured = {"ratio", "ratio_plain", "products_share", "torch_products_share", "tflop_per_s", "our_samples_per_second"}
assert measured <= set(row)
torch.compile = lambda model, **_: model
try:
    gpu_training.main()
except SystemExit as end:
    assert not end.code
(row,) = json.load(open("training.json"))["training"]
assert "errors" not in row
assert row["ratio_compiled_min"] <= row["ratio_compiled"] <= row["ratio_compiled_max"]
"""


def test_a_training_is_measured_and_one_refusal_costs_one_figure(bare: Path) -> None:
    done = program(bare, TRAINING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "samples/s" in done.stdout
    assert not (bare / "training.png").exists()
