"""Tests that run only where their marker is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["mark_opt_in"]


def mark_opt_in(config: pytest.Config, items: list[pytest.Item], folder: Path, marker: str, reason: str) -> None:
    """Mark the tests below a folder, and skip them unless the marker expression of the command line names the marker.

    Parameters
    ----------
    reason : str
        Reason of the skip.
    """
    wanted = marker in config.option.markexpr
    for item in items:
        if folder in item.path.parents:
            item.add_marker(marker)
            if not wanted:
                item.add_marker(pytest.mark.skip(reason=reason))
