"""The folder of tests of malformed files."""

from pathlib import Path

import pytest

from reference.readers import FOLDER


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which becomes the current one."""
    (tmp_path / FOLDER).mkdir()
    monkeypatch.chdir(tmp_path / FOLDER)
    return tmp_path / FOLDER
