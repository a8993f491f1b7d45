"""Reader of `.csv` tables with named columns."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError
from hybridnn.utils.files import open_regular
from hybridnn.utils.text import printable, shown_path

__all__ = ["NAMES_SHOWN", "column_list", "input_columns", "read_columns"]

LINE_CHARACTERS = 1 << 28
"""Limit of characters per line, enough for ten million columns."""

NAMES_SHOWN = 12
"""Limit of column names in a message."""

PANDAS_INDEX = "pandas writes its index so; df.to_csv(file, index=False) leaves it out"


def read_columns(
    path: Path, choose: Callable[[list[str]], Sequence[str]], labels: Sequence[str] = ()
) -> tuple[NDArray[np.float64], bool]:
    """Read columns of a ``.csv`` file with a header line.

    Parameters
    ----------
    choose : callable
        Takes the names of all columns, which are unique, and returns those to read; cells of other columns are not
        checked.
    labels : sequence of str
        Columns that are checked for decimal points.

    Returns
    -------
    values : ndarray, shape (samples, columns)
        In the order of the chosen names; finite.
    integers : bool
        Whether all cells of `labels` are integers without decimal points.

    Raises
    ------
    DataError
        If the file cannot be used; the message names the file, and the line and column.
    """
    called = shown_path(path)
    try:
        # utf-8-sig: spreadsheets write a byte-order mark
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_lines(called, file))
            names = [name.strip() for name in next(reader, [])]
            _require_names(called, names)
            rows = ((reader.line_num, cells) for cells in reader if cells)
            return _numbers(called, names, rows, choose(names), labels)
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{called} is not a text file of comma-separated values: {error}") from error
    except MemoryError:
        raise DataError(f"{called}: the table does not fit into the memory") from None


def column_list(names: Sequence[str]) -> str:
    """Names of columns for a message, at most `NAMES_SHOWN` of them."""
    shown = ", ".join(printable(name, 40) for name in names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def input_columns(path: Path, names: Sequence[str], targets: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Input columns: those of `inputs`, in their order; if empty, all of `names` but `targets`.

    Raises
    ------
    DataError
        If one of `inputs` is not among `names`.
    """
    there, left_out = set(names), set(targets)
    missing = [repr(name) for name in inputs if name not in there]
    if missing:
        which = f"column{'s' if len(missing) > 1 else ''} {column_list(missing)}"
        raise DataError(f"{shown_path(path)}: no {which}, which the inputs need; it has {column_list(names)}")
    return list(inputs) or [name for name in names if name not in left_out]


def _lines(called: str, file: io.TextIOWrapper) -> Iterator[str]:
    """Lines of a file; an error if one is longer than `LINE_CHARACTERS`."""
    number = 0
    while line := file.readline(LINE_CHARACTERS):
        number += 1
        if len(line) == LINE_CHARACTERS:
            raise DataError(f"{called}, line {number}: longer than {LINE_CHARACTERS:,} characters")
        yield line


def _require_names(called: str, names: Sequence[str]) -> None:
    """Raise DataError for columns without a name, or with equal names."""
    if len(names) > 1 and "" in names:
        column = names.index("")
        why = PANDAS_INDEX if column == 0 else "every column needs one"
        raise DataError(f"{called}: column {column + 1} of the header line has no name ({why})")
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        quoted = column_list([repr(name) for name in doubled])
        raise DataError(f"{called}: the header line names {quoted} more than once")


def _numbers(
    called: str,
    names: Sequence[str],
    rows: Iterable[tuple[int, list[str]]],
    chosen: Sequence[str],
    labels: Sequence[str],
) -> tuple[NDArray[np.float64], bool]:
    """Values of the chosen columns, and whether every cell of `labels` is an integer."""
    place = {name: column for column, name in enumerate(names)}
    columns, label_columns = [place[name] for name in chosen], [place[name] for name in labels]
    values, samples, integers = array("d"), 0, True
    for line, cells in rows:
        if len(cells) != len(names):
            raise DataError(f"{called}, line {line}: {len(cells)} cells, the header line has {len(names)}")
        row = _finite([cells[column] for column in columns])
        if row is None:
            bad = next(column for column in columns if _finite([cells[column]]) is None)
            cell = repr(cells[bad]) if len(cells[bad]) <= 40 else f"{cells[bad][:40]!r}…"
            raise DataError(f"{called}, line {line}, column {names[bad]!r}: {cell} is not a finite number")
        values.extend(row)
        integers = integers and all(cells[column].strip().lstrip("+-").isdecimal() for column in label_columns)
        samples += 1
    if not samples:
        raise DataError(f"{called}: no line of data after the header line")
    return np.array(values).reshape(samples, len(columns)), integers


def _finite(cells: Sequence[str]) -> list[float] | None:
    """Values of `cells`, or None if one is not a finite number."""
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None
