"""Reading ``weights.npz``: plain float arrays under the names of the parameters."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError

__all__ = ["read_weights"]


def read_weights(path: Path | str) -> dict[str, NDArray[Any]]:
    """Arrays of a weights file by name; nothing is unpickled.

    Raises
    ------
    DataError
        If the file is missing, damaged, or not an ``.npz`` of plain arrays.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:  # not by its path: is_zipfile would call a missing file no zip file
            if not zipfile.is_zipfile(stream):  # numpy.load would take other forms for an .npy file or a pickle
                raise DataError(f"model.init_from = {str(path)!r}: not an .npz file")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"model.init_from = {str(path)!r}: there is no such file") from None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        # RuntimeError: zipfile refuses what is encrypted or compressed in an unknown way.
        raise DataError(f"model.init_from = {str(path)!r}: not a readable .npz file ({error})") from error
