"""What may lie where a file is expected, and is none that can be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["STRANGE", "put"]


def _missing(path: Path) -> None:
    return


def _file(path: Path) -> Path:
    path.touch()
    return path


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)  # with holes, which take no room


_THERE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "missing": (_missing, "No such file or directory"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "pipe": (os.mkfifo, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "terminal": (lambda path: path.symlink_to("/dev/ptmx"), "not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    "endless": (_endless, "larger than"),
}


def put(strange: str, path: Path) -> str:
    """Put something strange in place of a file; returns the reason for which it cannot be read."""
    make, reason = _THERE[strange]
    path.unlink(missing_ok=True)
    make(path)
    return reason


def _in_folder(strange: str) -> Callable[[Path], tuple[Path, str]]:
    return lambda folder: (folder / "there", put(strange, folder / "there"))


STRANGE: Mapping[str, Callable[[Path], tuple[Path, str]]] = {
    **{strange: _in_folder(strange) for strange in _THERE if strange != "link to nothing"},
    "inside a file": lambda folder: (_file(folder / "file") / "there", "Not a directory"),
    "name too long": lambda folder: (folder / ("n" * 300), "File name too long"),
    "path too long": lambda folder: (folder / "/".join(["n" * 200] * 30), "File name too long"),
    "NUL in the name": lambda folder: (folder / "a\0b", "embedded null"),
    "newline in the name": lambda folder: (folder / "a\nb", "No such file"),
}
"""By name, how to make it in a folder: its path, and the reason for which it cannot be read."""
