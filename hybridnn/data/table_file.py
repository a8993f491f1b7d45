"""Tables of a user, read with pandas: ``.csv`` and ``.parquet`` files, and data frames."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridnn.errors import DataError, one_line
from hybridnn.utils.files import memory_bytes, open_regular
from hybridnn.utils.text import command_argument, printable, shown_path

if TYPE_CHECKING:
    from pandas import DataFrame

NAMES_SHOWN = 12  # limit of column names in a message
SEPARATORS = (",", ";", "\t")
LINE_CHARACTERS = 1 << 28  # limit of the header line, enough for ten million columns
PANDAS_INDEX = "pandas writes its index so; df.to_csv(file, index=False) leaves it out"


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns; a text is one name, and not a sequence of letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def column_list(names: Sequence[str]) -> str:
    """Names of columns for a message, at most `NAMES_SHOWN` of them."""
    shown = ", ".join(printable(name, 40) for name in names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def read_table(path: Path, decimal: str = ".") -> DataFrame:
    """Read a ``.csv`` or ``.parquet`` file.

    A ``.csv`` file is UTF-8 text with a header line; the separator is the one of comma, semicolon and tab that divides
    the header line into the most names.

    Raises `DataError`: the file cannot be read, is no table, or its columns have no names or equal ones.

    Parameters
    ----------
    decimal : str
        Decimal separator of a ``.csv`` file, ``"."`` or ``","``.
    """
    called = shown_path(path)
    try:
        with open_regular(path) as file:
            _require_memory(called, file)
            table = _read_parquet(called, file) if path.suffix == ".parquet" else _read_csv(called, file, decimal)
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror or one_line(str(error))}") from error
    except UnicodeDecodeError as error:
        problem = f"byte {error.object[error.start]:#04x} ({error.reason})"
        remedy = f"iconv -f latin1 -t utf-8 {command_argument(path)} > NEW.csv converts one in Latin-1"
        raise DataError(f"{called} is not a text file in UTF-8: {problem}; {remedy}") from error
    except MemoryError:
        raise DataError(f"{called}: the table does not fit into the memory") from None
    return table


def named_frame(frame: DataFrame, called: str) -> DataFrame:
    """A copy of `frame` whose columns have names without surrounding spaces, and an index with names as columns."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    names = [str(name).strip() for name in frame.columns]
    _require_names(called, names)
    return frame.set_axis(names, axis=1)


def _require_memory(called: str, file: io.BufferedReader) -> None:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size > (memory := memory_bytes()):
        raise DataError(f"{called}: the file has {size:,} bytes, and this machine has {memory:,}")


def _read_parquet(called: str, file: io.BufferedReader) -> DataFrame:
    import pandas

    try:
        return named_frame(pandas.read_parquet(file), called)
    except ImportError:
        raise DataError(f"{called}: .parquet files need the package pyarrow: pip install pyarrow") from None
    except (ValueError, OSError, KeyError, TypeError) as error:  # those of pyarrow are of these classes
        raise DataError(f"{called}: is not a readable .parquet file: {one_line(str(error))[:200]}") from error


def _read_csv(called: str, file: io.BufferedReader, decimal: str) -> DataFrame:
    import pandas

    # utf-8-sig: spreadsheets write a byte-order mark
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        header = _header_record(called, text)
        try:
            separator, cells = _divided(header)
        except csv.Error as error:
            raise DataError(f"{called} is not a text file of columns: {error}") from error
        names = [name.strip() for name in cells]
        if not any(names):
            raise DataError(f"{called}: the first line is empty; it must name the columns")
        _require_names(called, names)
        table = _read_rows(called, text, separator, decimal, len(header.splitlines()))
    if table is None:
        raise DataError(f"{called}: no line of data after the header line")
    if table.shape[1] != len(names):
        which = f"its columns are separated by {separator!r}"
        raise DataError(
            f"{called}: the first row has {table.shape[1]} cells, the header line has {len(names)} ({which})"
        )
    table.columns = pandas.Index(names, dtype=object)  # `set_axis` would copy a million columns one by one
    return table


def _header_record(called: str, text: io.TextIOWrapper) -> str:
    """The header line; several lines if a quoted name contains line breaks."""
    header = ""
    while line := text.readline(LINE_CHARACTERS):
        header += line
        if len(header) >= LINE_CHARACTERS:
            raise DataError(f"{called}, line 1: longer than {LINE_CHARACTERS:,} characters")
        if header.count('"') % 2 == 0:
            break
    return header


def _divided(record: str) -> tuple[str, list[str]]:
    """The separator that divides `record` into the most cells, and these; ``csv.Error`` if none divides it."""
    found: dict[str, list[str]] = {}
    for separator in SEPARATORS:
        try:
            found[separator] = next(csv.reader(io.StringIO(record, newline=""), delimiter=separator), [])
        except csv.Error as error:
            problem = error
    if not found:
        raise problem
    return max(found.items(), key=lambda item: len(item[1]))


def _read_rows(
    called: str, text: io.TextIOWrapper, separator: str, decimal: str, header_lines: int
) -> DataFrame | None:
    """The rows after the header line, with columns 0, 1, …; None if there are none."""
    import pandas

    # Before pandas 3.1 the last bit of a number could be wrong by default; since then the option is deprecated.
    exact = {"float_precision": "round_trip"} if tuple(map(int, pandas.__version__.split(".")[:2])) < (3, 1) else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(
                text,
                header=None,
                sep=separator,
                decimal=decimal,
                skipinitialspace=True,
                low_memory=False,
                **exact,
            )
    except pandas.errors.EmptyDataError:
        return None
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, pandas.errors.ParserWarning) as error:
        raise DataError(f"{called}{_parser_problem(str(error), header_lines)}") from error


def _parser_problem(message: str, header_lines: int) -> str:
    """What is wrong with a table in which pandas found an error."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message):
        expected, line, cells = (int(number) for number in found.groups())
        return f", line {line + header_lines}: {cells} cells, the first row has {expected}"
    if found := re.search(r"EOF inside string starting at row (\d+)", message):
        return f", row {int(found[1]) + 1}: a quotation mark is not closed"
    if "out of memory" in message:
        return ": the table does not fit into the memory"
    return f" is not a text file of columns: {one_line(message)[:200]}"


def _require_names(called: str, names: Sequence[str]) -> None:
    """Raise DataError for columns without a name, or with equal names."""
    if len(names) > 1 and "" in names:
        column = names.index("")
        why = PANDAS_INDEX if column == 0 else "every column needs one"
        raise DataError(f"{called}: column {column + 1} has no name ({why})")
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        quoted = column_list([repr(name) for name in doubled])
        raise DataError(f"{called}: several columns are named {quoted}")


def require_columns(called: str, table: Any, wanted: Sequence[str], what: str) -> None:
    """Raise DataError unless the table has all the `wanted` columns."""
    there = set(table.columns)
    missing = [repr(name) for name in wanted if name not in there]
    if missing:
        which = f"column{'s' if len(missing) > 1 else ''} {column_list(missing)}"
        raise DataError(f"{called}: no {which}, {what}; it has {column_list(list(table.columns))}")
