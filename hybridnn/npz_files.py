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
from hybridnn.small_files import open_regular

__all__ = ["npz_bytes", "read_npz"]


def read_npz(path: Path | str, called: str | None = None) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` file by name; nothing is unpickled.

    Parameters
    ----------
    path : Path or str
    called : str, optional
        What to call the file in errors; by default its path.

    Raises
    ------
    DataError
        If the file is missing, damaged, or not an ``.npz`` of plain arrays.
    """
    called, key = called or str(path), ""
    arrays = {}
    try:
        with open_regular(path) as stream:  # not by its path: is_zipfile would call a missing file no zip file
            if not zipfile.is_zipfile(stream):  # numpy.load would take other forms for an .npy file or a pickle
                raise DataError(f"{called}: not an .npz file (numpy.savez writes them)")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as file:
                for key in file.files:
                    arrays[key] = file[key]
    except FileNotFoundError:
        raise DataError(f"{called}: there is no such file") from None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        # RuntimeError: zipfile refuses what is encrypted or compressed in an unknown way.
        raise DataError(f"{called}: cannot read {key or 'the file'}: {error}") from error
    return arrays


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The ``.npz`` file of `arrays`."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()
