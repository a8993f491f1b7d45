"""`make test-gpu`, `make bench-gpu` and `make gpu-day` start where nothing of the package is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mpi_runner.slowness import deadline

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="no make"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH needs Python 3.11"),
]


def make(folder: Path, target: str, arguments: str = "") -> subprocess.CompletedProcess[str]:
    """Run a target with an interpreter that knows no package but those of PYTHONPATH, in a copy of the tree.

    With ``-S``, Python does not read the file by which this package may be installed.
    """
    for name in ("Makefile", "hybridnn", "datasets", "hpc_jobs", "assignments", "tests", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment = inherited | {"PYTHONPATH": sysconfig.get_path("purelib"), "CUDA_VISIBLE_DEVICES": ""}
    command = ["make", target, f"PYTHON={sys.executable} -S", f"ARGS={arguments}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=deadline(120))


def test_the_tests_are_collected(tmp_path: Path) -> None:
    done = make(tmp_path, "test-gpu", "--collect-only -q -p no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_gpu_training.py" in done.stdout
    assert "test_gpu_transports.py" in done.stdout
    assert "errors" not in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("target", ["bench-gpu", "gpu-day"])
def test_the_benchmarks_start_and_say_that_there_is_no_gpu(tmp_path: Path, target: str) -> None:
    done = make(tmp_path, target)
    assert done.returncode != 0
    assert "a GPU was asked for" in done.stderr, done.stderr
    assert "No module named 'hybridnn" not in done.stderr
    assert "Traceback" not in done.stderr
