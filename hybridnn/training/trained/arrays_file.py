"""Reading and writing ``.npz`` files of plain arrays."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError

__all__ = ["npz_bytes", "read_arrays"]


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` file by name; nothing is unpickled.

    Raises
    ------
    DataError
        If the file is missing, damaged, or not an ``.npz`` of plain arrays.
    """
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(stream):  # numpy.load would take other forms for an .npy file or a pickle
                raise DataError(f"{path} is not an .npz file (numpy.savez writes them)")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        # RuntimeError: zipfile refuses what is encrypted or compressed in an unknown way.
        raise DataError(f"{path} is not a readable .npz file: {error}") from error


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The ``.npz`` file of `arrays`."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
