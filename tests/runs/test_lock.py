"""The lock of a run folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from hybridnn.runs.folder import FolderInUse, FolderLock


def test_examining_a_lock_does_not_take_it(tmp_path: Path) -> None:
    assert FolderLock.holder(tmp_path) is None
    with FolderLock.take(tmp_path) as lock:
        assert FolderLock.holder(tmp_path) is not None
        with pytest.raises(FolderInUse) as busy:
            FolderLock.take(tmp_path)
        assert busy.value.holder.startswith(f"process {os.getpid()} on ")
    assert not (tmp_path / ".lock").exists()
    lock.release()  # a second time does nothing


def test_lock_is_taken_while_a_reader_examines_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()
    reader = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    waits: list[float] = []

    def reader_leaves(seconds: float) -> None:
        waits.append(seconds)
        if seconds:
            os.close(reader)

    monkeypatch.setattr(time, "sleep", reader_leaves)
    FolderLock.take(tmp_path).release()
    assert len([seconds for seconds in waits if seconds]) == 1
