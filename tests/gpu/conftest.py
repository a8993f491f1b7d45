"""Tests on a real GPU: ``make test-gpu``, or ``pytest -m gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridnn.errors import EnvironmentProblem
from hybridnn.kernels.cupy_loading import load_cupy

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark where no configuration file does."""
    config.addinivalue_line("markers", "gpu: needs a GPU and CuPy")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    reason = _why_not(config) if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    # To skip them a job of ranks would be started.
    jobs = [item for item in ours if reason and item.get_closest_marker("mpi")]
    if jobs:
        items[:] = [item for item in items if item not in jobs]
        config.hook.pytest_deselected(items=jobs)


def _why_not(config: pytest.Config) -> str:
    """Why none of the tests can run; empty if they can."""
    if "gpu" not in config.option.markexpr:
        return "needs a GPU and CuPy: make test-gpu"
    try:
        load_cupy()
    except EnvironmentProblem as problem:
        return str(problem)
    return ""
