"""Files: reading small ones within limits, parsing JSON and TOML, atomic writing, and ``.npz`` files of arrays.

Everything that is read may be damaged or hostile. Only regular files are opened, sizes are limited before memory is
allocated, and every error is one line that names the file.
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
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, EnvironmentProblem, one_line
from hybridnn.utils.text import printable, shown_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Value = TypeVar("Value")

TOML_BYTES = 64 << 20  # size limit of settings; those of a run on a table of a million columns name them all, in 15 MB
JSON_BYTES = 16 << 20  # size limit of a file that the library writes once: a manifest of some 60,000 arrays
LINE_BYTES = 1 << 20  # size limit of a line in a file of any number of lines
MAX_NESTING = 100  # levels of lists and tables; the parsers and their callers are recursive

MAX_DOTS = 10**7
"""Limit of the sum, over the lines, of the squared number of dots: tomllib is quadratic in the parts of a key."""

INTEGER_LIMIT = 2**63  # integers must be below, as in TOML: many operations fail on larger ones
DEFLATE_RATIO = 1032  # most bytes that one compressed byte expands to


class LargeIntegerError(ValueError):
    """A text of JSON or TOML has an integer beyond `INTEGER_LIMIT`."""


class FileError(DataError):
    """A file does not exist (`is_missing`), cannot be read, or has the wrong content: `reason`, without its name."""

    def __init__(self, path: Path | str, reason: str, *, is_missing: bool = False) -> None:
        self.path = Path(path)
        self.reason = one_line(reason)
        self.is_missing = is_missing
        super().__init__(f"{shown_path(path)}: {self.reason}")


def shipped_folder(name: Literal["datasets", "hpc_jobs"]) -> Path:
    """Folder of data that come with the package: inside it where it is installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


# -- reading ----------------------------------------------------------------------------------------------------------


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file, or a link to one, for reading bytes; never blocks on anything else.

    Raises ``OSError`` if it cannot be opened, or is a folder, a named pipe, a socket or a device.
    """
    try:
        # Opening a named pipe would block, and a terminal could become the controlling one of this process.
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


def read_bytes(path: Path | str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; `FileError` if it cannot be read, or is larger."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            content = file.read(min(limit, size + LINE_BYTES) + 1)  # Python allocates all of it before
            size = len(content)
    if size > limit:
        raise FileError(path, f"cannot be read: larger than {limit:,} bytes")
    return content


def read_text(path: Path | str, limit: int) -> str:
    """The content of a regular file as UTF-8 text; `limit` and errors as for `read_bytes`."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1:,} is {error.object[error.start]:#04x}"
        raise FileError(path, f"is not text in UTF-8: {wrong}; save the file as UTF-8") from None


def read_json(path: Path | str, limit: int = JSON_BYTES) -> Any:
    """The value in a JSON file, by `parse_json`; `limit` and errors as for `read_bytes`."""
    return _parsed(path, "JSON", partial(parse_json, read_bytes(path, limit)))


def read_toml(path: Path | str) -> dict[str, Any]:
    """The tables in a TOML file, by `parse_toml`; errors as for `read_bytes`."""
    text = read_text(path, TOML_BYTES).removeprefix("\ufeff")  # the mark that some editors write
    return _parsed(path, "TOML", partial(parse_toml, text))


def _parsed(path: Path | str, kind: str, parse: Callable[[], Value]) -> Value:
    try:
        return parse()
    except ValueError as error:
        raise FileError(path, f"is not valid {kind}: {error}") from None


def read_lines(path: Path | str) -> Iterator[bytes]:
    """The lines of a regular file of any size, with their ends; `FileError` if it cannot be read.

    A line of more than `LINE_BYTES` is cut and ends the iteration.
    """
    with _opened(path) as file:
        while line := file.readline(LINE_BYTES):
            yield line
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                return


def read_tail(path: Path | str, limit: int = LINE_BYTES) -> bytes:
    """At most the last `limit` bytes of a regular file of any size; errors as for `read_lines`."""
    with _opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
        return file.read(limit)


def folder_names(path: Path) -> list[str]:
    """Sorted names in a folder, none if there is no such folder; `FileError` if it is a file or cannot be read."""
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


# -- JSON and TOML ----------------------------------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises ``ValueError`` if it is not JSON, is nested too deep, or has a number that is not finite or an integer of
    more than 64 bits.
    """
    from pydantic_core import from_json  # only here: a training that reads no JSON does not load it

    value = from_json(text, allow_inf_nan=False)
    _check_values(value, finite=True)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text, in which infinities and NaN are allowed. Errors as for `parse_json`."""
    if sum(line.count(".") ** 2 for line in text.split("\n")) > MAX_DOTS:
        raise ValueError("a line with too many dots")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    _check_values(values, finite=False)
    return values


def _check_values(value: Any, *, finite: bool) -> None:
    """Refuse deep nesting, large integers and, if `finite`, infinities and NaN; level by level, without recursion."""
    level, depth = [value], 0
    while level:
        if depth > MAX_NESTING:
            raise ValueError(f"nested more than {MAX_NESTING} deep")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, int) and not -INTEGER_LIMIT <= item < INTEGER_LIMIT:
                raise LargeIntegerError(f"an integer of more than 64 bits; the largest is {INTEGER_LIMIT - 1:,}")
            elif finite and isinstance(item, float) and not math.isfinite(item):
                raise ValueError("a number that is not finite")
        level, depth = inner, depth + 1


# -- atomic writing ---------------------------------------------------------------------------------------------------


def replace_atomically(path: Path, fill: Callable[[BinaryIO], object], *, exclusive: bool = True) -> None:
    """Replace a file by a new one; a crash or a full disk leaves the old one unchanged. Raises ``OSError``.

    `fill` writes the content into the open file. If no other process or thread writes the same file at the same time,
    it is `exclusive`, and the partial file of a killed process is overwritten.
    """
    writer = "" if exclusive else f".{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}"
    partial_file = _partial_path(path, writer)
    try:
        partial_file.unlink(missing_ok=True)  # opening one that is not a regular file could block
        with open(partial_file, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial_file, path)
    finally:
        partial_file.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file by `replace_atomically`, and create its folder; `EnvironmentProblem` if that fails."""
    if isinstance(content, str):
        content = content.encode()
    pieces = [content] if isinstance(content, bytes) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, lambda file: file.writelines(pieces))
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise EnvironmentProblem(f"{shown_path(path)} cannot be written: {_reason_of(error)}") from error


def discard_partial(path: Path) -> None:
    """Remove the partial file of a killed process, for a file that may never be written again."""
    _partial_path(path).unlink(missing_ok=True)


def _partial_path(path: Path, writer: str = "") -> Path:
    return path.with_name(f".{path.name}{writer}.partial")


# -- .npz -------------------------------------------------------------------------------------------------------------


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The ``.npz`` file of `arrays`."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_npz(path: Path | str) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` file by name, without pickles.

    The sizes that the headers claim are compared with those of the members and of the memory before any array is
    allocated.

    Raises `DataError` if the file is missing, damaged, larger than the memory, or not an ``.npz`` of plain arrays.
    """
    key = "the file"
    with _opened(path) as stream:
        try:
            if not zipfile.is_zipfile(stream):  # numpy.load would accept an .npy file or a pickle
                raise DataError(f"{shown_path(path)}: not an .npz file (numpy.savez writes them)")
            arrays, size = {}, os.fstat(stream.fileno()).st_size
            with warnings.catch_warnings(), zipfile.ZipFile(stream) as archive:
                warnings.simplefilter("ignore")  # about headers of Python 2, and unusual ones
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                for key, member in members.items():  # noqa: B007 - for the error message
                    with archive.open(member) as file:
                        _check_header(file, member, size)
                key, memory = "the file", memory_bytes()
                if (total := sum(member.file_size for member in members.values())) > memory:
                    raise ValueError(f"its arrays take {total:,} bytes, and this machine has {memory:,}")
                for key, member in members.items():
                    with archive.open(member) as file:
                        arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
            return arrays
        except DataError:
            raise
        except Exception as error:  # zipfile and NumPy raise many kinds of errors on damaged bytes
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"{shown_path(path)}: cannot read {printable(key, 80)}: {reason[:200]}") from error


def _check_header(file: IO[bytes], member: zipfile.ZipInfo, size: int) -> None:
    """Refuse an array whose header does not fit the size of its member, in an archive of `size` bytes."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # unlimited expansion
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


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
