"""Tests on a real GPU: ``make test-gpu``, or ``pytest -m gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridnn.errors import EnvironmentProblem
from hybridnn.kernels.cupy_loading import load_cupy

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark if no configuration file does."""
    config.addinivalue_line("markers", "gpu: needs a GPU and CuPy")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if HERE in item.path.parents]
    reason = _skip_reason(config) if gpu_items else ""
    for item in gpu_items:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    # Skipping them would start a job of ranks.
    jobs = [item for item in gpu_items if reason and item.get_closest_marker("mpi")]
    if jobs:
        items[:] = [item for item in items if item not in jobs]
        config.hook.pytest_deselected(items=jobs)


def _skip_reason(config: pytest.Config) -> str:
    """Reason for skipping the tests; empty if they can run."""
    if "gpu" not in config.option.markexpr:
        return "needs a GPU and CuPy: make test-gpu"
    try:
        load_cupy()
    except EnvironmentProblem as problem:
        return str(problem)
    return ""
