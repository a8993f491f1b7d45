"""Files that appear whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from hybridnn.errors import EnvironmentProblem
from hybridnn.small_files import shown_path

__all__ = ["discard_partial", "replace_whole", "write_whole"]


def replace_whole(path: Path, fill: Callable[[BinaryIO], object], *, alone: bool = True) -> None:
    """Put a file in place of what there was; a crash or a full disk leaves that as it was.

    Parameters
    ----------
    path : Path
    fill : callable
        Writes into the open file it is given.
    alone : bool
        Whether nobody else writes the same file meanwhile. Then what a killed process left of it is written over.

    Raises
    ------
    OSError
    """
    writer = "" if alone else f".{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
    partial = _partial(path, writer)
    try:
        partial.unlink(missing_ok=True)  # to open what is not a regular file could wait for ever
        with open(partial, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def discard_partial(path: Path) -> None:
    """Remove what a killed process left of a file that nobody else writes, where it may not be written again.

    Raises
    ------
    OSError
    """
    _partial(path).unlink(missing_ok=True)


def _partial(path: Path, writer: str = "") -> Path:
    return path.with_name(f".{path.name}{writer}.partial")


def write_whole(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file as `replace_whole` does, and make its folder.

    Raises
    ------
    EnvironmentProblem
        If that cannot be done.
    """
    whole = content.encode() if isinstance(content, str) else content
    pieces = [whole] if isinstance(whole, bytes) else whole
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, lambda file: file.writelines(pieces))
    except OSError as error:
        raise EnvironmentProblem(f"{shown_path(path)} cannot be written: {error.strerror}") from error
    except ValueError as error:  # NUL in the name
        raise EnvironmentProblem(f"{shown_path(path)} cannot be written: {error}") from error
