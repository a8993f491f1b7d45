"""Small files that the library reads: regular files only, of limited size, as bytes, text, JSON or TOML.

Everything that can be wrong with such a file is one `FileError`, whose message is one line that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from hybridnn.errors import DataError, one_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "JSON_BYTES",
    "TOML_BYTES",
    "FileError",
    "folder_names",
    "open_regular",
    "parse_json",
    "parse_toml",
    "read_bytes",
    "read_json",
    "read_lines",
    "read_tail",
    "read_text",
    "read_toml",
    "shown_path",
]

TOML_BYTES = 64 << 20
"""Most bytes of settings; those of a run on a table of a million columns name them all, in 15 MB."""

JSON_BYTES = 16 << 20
"""Most bytes of a file that the library writes once: a manifest of some 60,000 arrays."""

LINE_BYTES = 1 << 20
"""Most bytes of one line of a file that may have any number of them."""

MOST_NESTED = 100
"""Levels of lists and tables; the parsers and everything that walks through their results are recursive."""

MOST_DOTS = 10**7
"""Sum over the lines of the square of their dots: tomllib takes quadratic time for keys of many parts."""

WORD = 2**63
"""Integers from here on are refused, as TOML has it: they are no counts, and many operations fail on them."""

Content = TypeVar("Content", str, bytes)
Parsed = TypeVar("Parsed")


class FileError(DataError):
    """A file cannot be read, or is not what it should be.

    Parameters
    ----------
    path : Path or str
    reason : str
        What is wrong, without the name of the file.
    is_missing : bool
        Whether there is no such file.
    """

    def __init__(self, path: Path | str, reason: str, *, is_missing: bool = False) -> None:
        self.path = Path(path)
        self.reason = one_line(reason)
        self.is_missing = is_missing
        super().__init__(f"{shown_path(path)}: {self.reason}")


def shown_path(path: Path | str) -> str:
    """The name of a file as text for one line of a message."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file, or a link to one, to read its bytes; returns at once for whatever else is there.

    Raises
    ------
    OSError
        If it cannot be opened, or is a folder, a named pipe, a socket or a device.
    """
    try:
        # Opening a named pipe would wait for its writer, and a terminal could become that of this process.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # NUL in the name
        raise OSError(errno.EINVAL, str(error)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bytes(path: Path | str, most: int) -> bytes:
    """The content of a regular file.

    Parameters
    ----------
    path : Path or str
    most : int
        Bytes that it may have.

    Raises
    ------
    FileError
        If it cannot be read, or has more.
    """
    with _opened(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found <= most:
            content = file.read(most + 1)
            found = len(content)
    if found > most:
        raise FileError(path, f"cannot be read: larger than {most:,} bytes")
    return content


def read_text(path: Path | str, most: int) -> str:
    """The content of a regular file as text in UTF-8; parameters and errors as for `read_bytes`."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not text in UTF-8: {error}") from None


def read_json(path: Path | str, most: int = JSON_BYTES, *, finite: bool = True) -> Any:
    """The value that a JSON file holds, as `parse_json` reads it; other parameters and errors as for `read_bytes`."""
    return _parsed(path, "JSON", partial(parse_json, finite=finite), read_bytes(path, most))


def read_toml(path: Path | str) -> dict[str, Any]:
    """The tables that a TOML file holds, as `parse_toml` reads it; errors as for `read_bytes`."""
    return _parsed(path, "TOML", parse_toml, read_text(path, TOML_BYTES))


def read_lines(path: Path | str) -> Iterator[bytes]:
    """The lines of a regular file of any size, with their ends; one that is too long is cut, and is the last.

    Raises
    ------
    FileError
        If it cannot be read.
    """
    with _opened(path) as file:
        while line := file.readline(LINE_BYTES):
            yield line
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                return


def read_tail(path: Path | str, most: int = LINE_BYTES) -> bytes:
    """The last bytes of a regular file of any size, at most so many; errors as for `read_lines`."""
    with _opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """The value that JSON text holds.

    Parameters
    ----------
    text : str or bytes
    finite : bool
        Whether numbers must be finite. Else infinities and NaN are read, in the form in which Python writes them.

    Raises
    ------
    ValueError
        If it is not JSON, is nested too deep, or has a number that is not allowed or an integer of more than 64 bits.
    """
    value = from_json(text, allow_inf_nan=not finite)
    _require_plain(value, finite=finite)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables that TOML text holds; infinities and NaN are values of it. Errors as for `parse_json`."""
    if sum(line.count(".") ** 2 for line in text.split("\n")) > MOST_DOTS:
        raise ValueError("a line with too many dots")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    _require_plain(values, finite=False)
    return values


def folder_names(path: Path) -> list[str]:
    """Names in a folder, sorted; none where there is no such folder.

    Raises
    ------
    FileError
        If it is not a folder or cannot be read.
    """
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise FileError(path, f"cannot be read: {_reason_of(error)}") from error


@contextlib.contextmanager
def _opened(path: Path | str) -> Iterator[BufferedReader]:
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        reason = f"cannot be read: {_reason_of(error)}"
        raise FileError(path, reason, is_missing=isinstance(error, FileNotFoundError)) from error


def _reason_of(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _parsed(path: Path | str, language: str, parse: Callable[[Content], Parsed], content: Content) -> Parsed:
    try:
        return parse(content)
    except ValueError as error:
        raise FileError(path, f"is not valid {language}: {error}") from None


def _require_plain(value: Any, *, finite: bool) -> None:
    """Refuse what many operations on nested lists and tables fail on, level by level."""
    level, depth = [value], 0
    while level:
        if depth > MOST_NESTED:
            raise ValueError(f"nested more than {MOST_NESTED} deep")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, int) and not -WORD <= item < WORD:
                raise ValueError("an integer of more than 64 bits")
            elif finite and isinstance(item, float) and not isfinite(item):
                raise ValueError("a number that is not finite")
        level, depth = inner, depth + 1
