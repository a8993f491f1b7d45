"""Tests on a real GPU: ``make test-gpu``, or ``pytest -m gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = "gpu" in config.option.markexpr
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if not wanted:
            item.add_marker(pytest.mark.skip(reason="needs a GPU and CuPy: make test-gpu"))
    # To skip them a job of ranks would be started.
    jobs = [item for item in ours if not wanted and item.get_closest_marker("mpi")]
    if jobs:
        items[:] = [item for item in items if item not in jobs]
        config.hook.pytest_deselected(items=jobs)
