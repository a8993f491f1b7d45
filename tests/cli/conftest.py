"""The command line run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridnn.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_hybridnn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run ``hybridnn`` in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run_arguments(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return run_arguments
