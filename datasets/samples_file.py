"""Samples without targets from a user's file, to predict from."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.npz_files import read_npz

from .arrays import as_rows
from .own_file import _numbers

__all__ = ["load_samples"]


def load_samples(path: str | Path, features: int, targets: Sequence[str] = ()) -> NDArray[Any]:
    """Load the inputs of samples.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with an array ``x``, or with one array of any name, or ``.csv`` with a header line.
    features : int
        Columns that there must be.
    targets : sequence of str
        Columns of a ``.csv`` that are left out where they are there.

    Returns
    -------
    ndarray, shape (samples, features)
        Of real, finite numbers.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the key, or the line and column.
    SettingError
        If the name of the file ends in something else.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise SettingError("samples", str(path), "must end in .npz or .csv")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    samples = _from_csv(path, targets) if path.suffix == ".csv" else _from_npz(path)
    try:
        checked = as_rows(samples, np.zeros(samples.shape[:1]), "regression").x
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if checked.shape[1] != features:
        raise DataError(f"{path}: samples of {checked.shape[1]} features; the network takes {features}")
    return checked


def _from_npz(path: Path) -> NDArray[Any]:
    arrays = read_npz(path)
    if "x" not in arrays and len(arrays) != 1:
        raise DataError(f"{path}: which array holds the samples? Name it x; found {', '.join(arrays) or 'nothing'}")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _from_csv(path: Path, targets: Sequence[str]) -> NDArray[Any]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # -sig: spreadsheets write a byte-order mark
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            _require_header(path, names)
            table, _ = _numbers(path, names, ((reader.line_num, cells) for cells in reader if cells), ())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a text file of comma-separated values: {error}") from error
    return table[:, [column for column, name in enumerate(names) if name not in targets]]


def _require_header(path: Path, names: Sequence[str]) -> None:
    """Refuse a first line of numbers, which would be a sample that nobody predicts."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return
    found = "holds numbers" if numbers else "is empty"
    raise DataError(f"{path}: the first line {found}; it must name the columns")
