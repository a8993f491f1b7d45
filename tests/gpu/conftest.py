"""Tests on a real GPU: ``make test-gpu``, or ``pytest -m gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = "gpu" in config.option.markexpr
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not wanted:
                item.add_marker(pytest.mark.skip(reason="needs a GPU and CuPy: make test-gpu"))
