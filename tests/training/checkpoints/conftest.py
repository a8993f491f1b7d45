"""What all tests of checkpoints share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test can cut the power; that `os.fsync` is called where it must be is tested by counting."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
