"""Samples without targets from a user's file, to predict from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.files import read_npz
from hybridnn.utils.text import shown_path

from .arrays import as_rows
from .own_file import require_readable
from .table_file import column_list, input_columns, read_columns

__all__ = ["InputSamples", "load_samples"]


@dataclass(frozen=True)
class InputSamples:
    """Samples to predict from.

    Attributes
    ----------
    x : ndarray, shape (samples, features)
        Real, finite numbers.
    ignored : tuple of str
        Columns of the file that are neither inputs nor targets.
    """

    x: NDArray[Any]
    ignored: tuple[str, ...] = ()


def load_samples(
    path: str | Path, features: int, targets: Sequence[str] = (), inputs: Sequence[str] = ()
) -> InputSamples:
    """Load the inputs of samples.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with an array ``x``, or with one array of any name, or ``.csv`` with a header line.
    features : int
        Columns that there must be.
    targets : sequence of str
        Columns of a ``.csv`` that are left out where they are there.
    inputs : sequence of str
        Names of the columns to take of a ``.csv``, in this order, wherever they are in the file; without any, all
        that are no targets, by position.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the file and the key, or the line and column.
    SettingError
        If the name of the file ends in something else.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise SettingError("samples", str(path), "must end in .npz or .csv")
    require_readable(path, shown_path(path))
    samples = _from_csv(path, targets, inputs) if path.suffix == ".csv" else InputSamples(_from_npz(path))
    try:
        checked = as_rows(samples.x, np.zeros(samples.x.shape[:1]), "regression").x
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if checked.shape[1] != features:
        raise DataError(f"{path}: samples of {checked.shape[1]} features; the network takes {features}")
    return InputSamples(checked, samples.ignored)


def _from_npz(path: Path) -> NDArray[Any]:
    arrays = read_npz(path)
    if "x" not in arrays and len(arrays) != 1:
        found = column_list(list(arrays)) if arrays else "nothing"
        raise DataError(f"{path}: which array holds the samples? Name it x; found {found}")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _from_csv(path: Path, targets: Sequence[str], inputs: Sequence[str]) -> InputSamples:
    ignored: list[str] = []

    def choose(names: list[str]) -> list[str]:
        if not set(names) & set(inputs):
            _require_header(path, names)
        chosen = input_columns(path, names, targets, inputs)
        used = {*chosen, *targets}
        ignored.extend(name for name in names if name not in used)
        return chosen

    table, _ = read_columns(path, choose)
    return InputSamples(table, tuple(ignored))


def _require_header(path: Path, names: Sequence[str]) -> None:
    """Refuse a first line of numbers, which is a sample rather than the names of the columns."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return
    found = "holds numbers" if numbers else "is empty"
    raise DataError(f"{path}: the first line {found}; it must name the columns")
