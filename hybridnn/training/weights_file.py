"""Reading ``weights.npz``: plain float arrays under the names of the parameters."""

from __future__ import annotations

import zipfile
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
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"model.init_from = {str(path)!r}: not an .npz file")
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"model.init_from = {str(path)!r}: there is no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"model.init_from = {str(path)!r}: not a readable .npz file ({error})") from error
