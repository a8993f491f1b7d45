"""Tests on a real GPU: ``make test-gpu``, or ``pytest -m gpu``."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from hybridnn.comm.launcher import RankLauncher
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_loading import load_cupy
from mpi_runner.outer import NO_JOB

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark if no configuration file does."""
    config.addinivalue_line("markers", "gpu: needs a GPU and CuPy")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if HERE in item.path.parents]
    reason = _skip_reason(config) if gpu_items else ""
    is_rank = config.getoption("--with-mpi", False)
    no_ranks = _no_ranks_reason() if gpu_items and not reason and not is_rank else ""
    for item in gpu_items:
        item.add_marker(pytest.mark.gpu)
        why = reason or (no_ranks if item.get_closest_marker("mpi") else "")
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
            item.stash[NO_JOB] = why


def _skip_reason(config: pytest.Config) -> str:
    """Reason for skipping the tests; empty if they can run."""
    if "gpu" not in config.option.markexpr:
        return "needs a GPU and CuPy: make test-gpu"
    try:
        load_cupy()
    except EnvironmentProblem as problem:
        return str(problem)
    return ""


def _no_ranks_reason() -> str:
    """Reason for skipping the tests of several ranks; empty if they can run."""
    if find_spec("pytest_mpi") is None:
        return "needs pytest-mpi"
    try:
        RankLauncher.find(os.environ)
    except EnvironmentProblem as problem:
        return str(problem)
    return ""
