"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.files import replace_atomically, write_atomically
from mpi_runner.slowness import deadline

KILLED = """
import os, signal, sys
from pathlib import Path
from hybridnn.utils.files import replace_atomically
def fill(file):
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
replace_atomically(Path(sys.argv[1]), fill)
"""


def test_what_is_written_replaces_what_there_was_and_makes_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, "ä")
    assert path.read_bytes() == "ä".encode()
    write_atomically(path, [b"one", b"two"])
    assert path.read_bytes() == b"onetwo"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("exclusive", [True, False])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, exclusive: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_atomically(path, fill, exclusive=exclusive)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_process_left_is_gone_after_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=deadline(60))
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    write_atomically(path, "new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["file"])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"file/inside cannot be written: (File exists|Not a directory)"):
        write_atomically(tmp_path / "file" / "inside", "text")
