"""Small files that the library reads: regular files only, of limited size, as bytes, text, JSON or TOML.

Everything that can be wrong with such a file is one `FileError`, whose message is one line that names the file.

Files that appear whole or not at all, whatever ends the process that writes them.

Reading and writing ``.npz`` files of plain arrays.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import socket
import stat
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import BufferedReader
from math import isfinite
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from hybridnn.errors import DataError, EnvironmentProblem, one_line
from hybridnn.utils.text import printable, shown_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def replace_atomically(path: Path, fill: Callable[[BinaryIO], object], *, exclusive: bool = True) -> None:
    """Put a file in place of what there was; a crash or a full disk leaves that as it was.

    Parameters
    ----------
    path : Path
    fill : callable
        Writes into the open file it is given.
    exclusive : bool
        Whether nobody else writes the same file meanwhile. Then what a killed process left of it is written over.

    Raises
    ------
    OSError
    """
    writer = "" if exclusive else f".{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
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


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file as `replace_atomically` does, and make its folder.

    Raises
    ------
    EnvironmentProblem
        If that cannot be done.
    """
    whole = content.encode() if isinstance(content, str) else content
    pieces = [whole] if isinstance(whole, bytes) else whole
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, lambda file: file.writelines(pieces))
    except OSError as error:
        raise EnvironmentProblem(f"{shown_path(path)} cannot be written: {error.strerror}") from error
    except ValueError as error:  # NUL in the name
        raise EnvironmentProblem(f"{shown_path(path)} cannot be written: {error}") from error


DEFLATE_RATIO = 1032
"""Bytes that one compressed byte can stand for, at most."""


def read_npz(path: Path | str, called: str | None = None) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` file by name; nothing is unpickled.

    The sizes that the file claims are compared with those of its members and of the memory before any array is
    allocated.

    Parameters
    ----------
    path : Path or str
    called : str, optional
        What to call the file in errors; by default its path.

    Raises
    ------
    DataError
        If the file is missing, damaged, larger than the memory, or not an ``.npz`` of plain arrays.
    """
    called = called or shown_path(path)
    try:
        with open_regular(path) as stream:
            return _read(stream, called)
    except FileNotFoundError:
        raise DataError(f"{called}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{called}: cannot read the file: {error.strerror or error}") from error


def _read(stream: BinaryIO, called: str) -> dict[str, NDArray[Any]]:
    key = "the file"
    try:
        if not zipfile.is_zipfile(stream):  # numpy.load would take other forms for an .npy file or a pickle
            raise DataError(f"{called}: not an .npz file (numpy.savez writes them)")
        arrays, size = {}, os.fstat(stream.fileno()).st_size
        with warnings.catch_warnings(), zipfile.ZipFile(stream) as archive:
            warnings.simplefilter("ignore")  # of headers written by Python 2, and strange ones
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            for key, member in members.items():  # noqa: B007 - named where it is refused
                with archive.open(member) as file:
                    _require_claim(file, member, size)
            total, memory = sum(member.file_size for member in members.values()), _memory_bytes()
            if total > memory:
                key = "the file"
                raise ValueError(f"its arrays take {total:,} bytes, and this machine has {memory:,}")
            for key, member in members.items():
                with archive.open(member) as file:
                    arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
        return arrays
    except DataError:
        raise
    except Exception as error:  # zipfile and NumPy promise nothing of what damaged bytes raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{called}: cannot read {printable(key, 80)}: {reason[:200]}") from error


def _require_claim(file: IO[bytes], member: zipfile.ZipInfo, size: int) -> None:
    """Refuse an array whose header does not agree with what its member can hold, in an archive of `size` bytes.

    Raises
    ------
    ValueError
    """
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others have no limit of expansion
        raise ValueError(f"compressed by method {member.compress_type}; numpy.savez_compressed uses 8")
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"array format {version[0]}.{version[1]} is not that of plain arrays")
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    claimed = math.prod(shape) * dtype.itemsize
    ratio = DEFLATE_RATIO if member.compress_type == zipfile.ZIP_DEFLATED else 1
    held = min(member.file_size, ratio * min(member.compress_size, size)) - file.tell()
    if min(shape, default=0) < 0 or claimed != held:
        raise ValueError(f"its header claims shape {shape} of {dtype}, {claimed:,} bytes; the file holds {held:,}")


def _memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The ``.npz`` file of `arrays`."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
