"""Fixtures of all tests: the runner of the MPI tests, equal random examples on all ranks, and official data files."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hermetic import isolate, needs_the_machine

pytest_plugins = ["mpi_runner.plugin", "reference.browser", "selection"]

# Without bytecode, each of the hundreds of processes of the tests would compile the whole package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts commands in the background with SIGINT ignored, and their processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ISOLATED = "HYBRIDNN_TEST_FOLDER"
"""Environment variable of the folder that `isolate` uses."""

SHARED_MEMORY = "/dev/shm"
BACKING_FOLDERS = "OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory"
"""Variables of the folder in which Open MPI makes files of shared memory.

Their names contain 16 bits of a hash of the job, so that jobs at the same time may take one another's files; and a job
that is killed leaves them.
"""

OFFICIAL_DATA = Path(__file__).resolve().parents[1] / "shared" / "data"

if find_spec("hypothesis") is not None:  # the tests on a GPU run without hypothesis
    from hypothesis import settings

    # Ranks with different examples would wait for one another; a shared machine has no deadlines.
    settings.register_profile("few", derandomize=True, deadline=None, max_examples=25)
    settings.register_profile("many", derandomize=True, deadline=None, max_examples=500)
    settings.load_profile("few")


def pytest_configure(config: pytest.Config) -> None:
    """Isolate the first process of a run; the processes that it starts inherit its environment."""
    for name in ("COLUMNS", "LINES"):  # readline, which pytest loads, sets them for processes that this one starts
        os.environ.pop(name, None)
        os.unsetenv(name)
    on_nodes = needs_the_machine(config.option.markexpr)  # which have a folder of shared memory of their own
    if ISOLATED not in os.environ and not on_nodes:
        folder = tempfile.mkdtemp(prefix="hybridnn-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        isolate(os.environ, Path(folder))
        os.environ[ISOLATED] = folder
    if os.access(SHARED_MEMORY, os.W_OK) and not on_nodes and not config.getoption("with_mpi", False):
        memory = tempfile.mkdtemp(prefix="hybridnn-tests-", dir=SHARED_MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(memory, ignore_errors=True))
        os.environ |= dict.fromkeys(BACKING_FOLDERS, memory)


@pytest.fixture(scope="session", autouse=True)
def _no_learning_curves() -> Iterator[None]:
    """Disable the learning curve of runs in this process, which would take most of the time of a small run.

    The learning curve has its own tests, and `test_train` starts a run that draws one.
    """
    try:
        from hybridnn.runs import report as run_report
    except ImportError:  # a machine for the tests on a GPU has only few packages
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "draw_learning_curve", lambda *_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Disable `os.fsync`, which no test needs; other tests count its calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Restore the environment after each test: commands that run in this process change it for the ranks they start."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def unpacked(pytestconfig: pytest.Config) -> Path:
    """Return a folder with the official files of airfoil, MNIST and CIFAR-10.

    The folder is kept, because decompressing takes ten seconds; the script writes only missing or damaged files.
    """
    if not (OFFICIAL_DATA / "unpack.py").is_file():
        pytest.skip("needs the official files of airfoil, MNIST and CIFAR-10, which are not part of the checkout")
    folder = pytestconfig.cache.mkdir("official-data")
    with open(folder.parent / "official-data.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may run tests
        subprocess.run([sys.executable, str(OFFICIAL_DATA / "unpack.py"), str(folder)], check=True, capture_output=True)
    return folder
