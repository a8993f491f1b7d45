"""Reading and writing ``.npz`` files of plain arrays."""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError
from hybridnn.small_files import open_regular

__all__ = ["npz_bytes", "printable", "read_npz"]

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
    called = called or printable(str(path))
    try:
        with open_regular(path) as stream:
            return _read(stream, called)
    except FileNotFoundError:
        raise DataError(f"{called}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{called}: cannot read the file: {error.strerror or error}") from error


def printable(text: str, most: int = 1000) -> str:
    """`text` as it is where it is printable and short, else quoted, with escapes, and cut to `most` characters."""
    return text if text.isprintable() and len(text) <= most else f"{text[:most]!r}{'…' * (len(text) > most)}"


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
