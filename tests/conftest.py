"""Set-up shared by all tests: the runner of the MPI tests, and the same random examples on every rank."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ["mpi_runner.plugin"]

# The tests start hundreds of processes, and without bytecode each of them compiles the whole package first.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"

if find_spec("hypothesis") is not None:  # the tests on a GPU do without
    from hypothesis import settings

    # Ranks that draw different examples would wait for each other for ever; a shared machine has no deadlines.
    settings.register_profile("same-on-every-rank", derandomize=True, deadline=None)
    settings.load_profile("same-on-every-rank")


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Let runs in this process draw no learning curve, which takes longer than all else of a small run.

    The picture has tests of its own, and a run that `test_train` starts leaves one.
    """
    try:
        from hybridnn.runs import report as run_report
    except ImportError:  # the kernels are also tested on a machine that has little beside a GPU
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "draw_learning_curve", lambda epochs, path: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_waiting_for_the_disk() -> Iterator[None]:
    """No test can cut the power; that `os.fsync` is called where it must be is tested by counting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def unpacked(pytestconfig: pytest.Config) -> Path:
    """Return a folder with the official files of airfoil, MNIST and CIFAR-10.

    It is kept from run to run, as decompressing takes ten seconds; the script writes only what is missing or damaged.
    """
    if not (REAL / "unpack.py").is_file():
        pytest.skip(f"the official data files are not in {REAL}")
    folder = pytestconfig.cache.mkdir("official-data")
    with open(folder.parent / "official-data.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run side by side
        subprocess.run([sys.executable, str(REAL / "unpack.py"), str(folder)], check=True, capture_output=True)
    return folder
