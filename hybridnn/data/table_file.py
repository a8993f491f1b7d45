"""Tables of a user, read with pandas: ``.csv`` files, whose cells are text, ``.parquet`` files, and data frames."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.utils.files import memory_bytes, open_regular
from hybridnn.utils.text import printable, shown_path

from . import table_hints
from .table_options import NAMES_SHOWN, TableOptions, as_names, column_list, require_names

if TYPE_CHECKING:
    from pandas import DataFrame

LINE_CHARACTERS = 1 << 28  # limit of the header line, enough for ten million columns
SAMPLE_CHARACTERS = 1 << 16  # after the header line, from which the separator is found
SAMPLE_RECORDS = 50
START_BYTES = 64  # from which other kinds of files are seen
BEGINNINGS = {
    rb"\xef\xbb\xbf": "utf-8-sig",
    rb"\xff\xfe|\xfe\xff": "utf-16",
    rb"[^\0]\0[^\0]\0": "utf-16-le",  # without a byte-order mark
    rb"\0[^\0]\0[^\0]": "utf-16-be",
}
"""Patterns of the first bytes of a file, and the encodings that they announce."""

SPLIT_NUMBERS = (
    "the header line is one cell short, and the first cell of every row is left out as a row name; if a number has a "
    "decimal comma, quote it or separate the columns by semicolons"
)
EMPTY_LAST = "the last column has no name and no cells: left out"

Extra = Literal["", "first", "last"]


class Table(NamedTuple):
    """A table that was read."""

    frame: DataFrame  # cells of a file are text
    options: TableOptions  # with the separator and the encoding that were found
    notes: tuple[str, ...] = ()  # what was left out, one line each
    extra: Extra = ""  # which cell of a row has no name, where the header line is one cell shorter
    doubts: tuple[str, ...] = ()  # what may not be as meant, one sentence each


class Known(NamedTuple):
    """What is known of the columns of a table, from that of the training."""

    inputs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # may be absent


def read_table(
    path: Path, options: TableOptions | None = None, extra: Extra | None = None, known: Known | None = None
) -> Table:
    """Read a ``.csv`` or ``.parquet`` file.

    The separator is the usual one which divides all of the first lines into the same number of cells.

    Raises `DataError`: the file cannot be read, is no table, or its columns have no names or equal ones.

    Parameters
    ----------
    extra : {'', 'first', 'last'}, optional
        Which cell of a row has no name where the header line is one cell shorter; by default, decided by the rows.
    known : Known, optional
        Columns of another table that was read with these options. This one may be in UTF-8 all the same, and have
        another separator, by which most of the inputs are found. If lines do not name the columns, the targets may be
        absent.
    """
    called, options, known = shown_path(path), options or TableOptions(), known or Known()
    try:
        with open_regular(path) as file:
            _require_memory(called, file)
            if path.suffix.lower() == ".parquet":
                return Table(_read_parquet(called, file), options)
        if known.inputs and options.encoding != "auto":
            with contextlib.suppress(UnicodeError), open_regular(path) as file:
                return _read_csv(called, file, replace(options, encoding="auto"), extra, known)
        with open_regular(path) as file:
            return _read_csv(called, file, options, extra, known)
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror or one_line(str(error))}") from error
    except UnicodeError as error:
        raise DataError(
            f"{called} {table_hints.encoding_problem(error, options, is_known=bool(known.inputs))}"
        ) from error
    except MemoryError:
        raise DataError(f"{called}: the table does not fit into the memory") from None


def named_frame(frame: DataFrame, called: str) -> DataFrame:
    """A copy of `frame` whose columns have names without surrounding spaces, and an index with names as columns."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    names = as_names([str(name).strip() for name in frame.columns])
    require_names(called, names)
    return frame.set_axis(list(names), axis=1)


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


# -- text of columns ---------------------------------------------------------------------------------------------------


def _read_csv(called: str, file: io.BufferedReader, options: TableOptions, extra: Extra | None, known: Known) -> Table:
    start = file.read(START_BYTES)
    table_hints.require_text(called, start)
    file.seek(0)
    given = "utf-8" if options.encoding == "auto" else options.encoding
    encoding = next((found for pattern, found in BEGINNINGS.items() if re.match(pattern, start, re.S)), given)
    with io.TextIOWrapper(file, encoding=encoding, newline="") as text:
        lines = options.skip_lines
        for _ in range(options.skip_lines):
            text.readline(LINE_CHARACTERS)
        has_header = options.header is True or (options.header == "auto" and not options.names)
        first = _record(called, text) if has_header else ""
        if found := re.fullmatch(r'"?sep=(.)"?\s*', first):  # Excel announces the separator so
            options = replace(options, separator=found[1]) if known.inputs or options.separator == "auto" else options
            lines, first = lines + 1, _record(called, text)
        while has_header and first and (not first.strip() or (options.comment and first.startswith(options.comment))):
            lines, first = lines + 1, _record(called, text)
        sample = _sample(text)
        table_hints.require_no_nul(called, first + sample, lines)
        separator, names, records = _header(called, sample, first, options, known.inputs)
        options = replace(options, separator=separator)
        hint = table_hints.header_hint(first + sample, _records(first + sample, separator), lines) if has_header else ""
        if has_header and not any(names):
            raise DataError(f"{called}: the first line is empty; it must name the columns{hint}")
        is_escaped = table_hints.ESCAPED_MARKS.search(sample) is not None
        hint = hint or (f"; {table_hints.ESCAPED}" if is_escaped else "")
        is_short = bool(records) and len(records[0]) < len(names)
        is_usual = bool(known.inputs) or any(len(record) == len(names) for record in records)
        width = len(names) if is_short and is_usual else None  # the first row lacks its last cells
        table = _read_rows(called, text, options, lines + len(first.splitlines()), width, hint)
    if table is None:
        raise DataError(f"{called}: no line of data after the header line")
    doubts: tuple[str, ...] = (table_hints.ESCAPED,) if is_escaped else ()
    if not has_header:
        frame, notes = _without_header(called, table, options, known)
        return Table(frame, options, notes, doubts=doubts)
    if repeated := table_hints.repeated_header(table, names):
        raise DataError(f"{called}: the header line is repeated in {repeated}: remove it there")
    if table.shape[1] == 1 and (other := table_hints.other_separator(names, records)):
        how = f"if {other!r} separates columns, set data.separator = {other!r}"
        raise DataError(f"{called}: it has one column, {printable(names[0], 80)}; {how}")
    if options.header == "auto" and not {*known.inputs}.intersection(names) and table_hints.are_data(names, records):
        how = "set data.header to false if these are data, and columns get numbered names, or to true if they are names"
        raise DataError(f"{called}: the first line seems to hold data ({column_list(names)}); {how}")
    if options.names:
        empty = [""] if not names[-1] and _is_empty(table, table.shape[1] - 1) else []
        names = [*_given_names(called, len(names) - len(empty), options.names, known), *empty]
    is_title = extra is None and len(names) == 1 and (hint or table_hints.other_header(names, table.shape[1])) != ""
    if len(names) == table.shape[1] - 1 and names[-1] and not is_title:
        extra = _extra_cell(table) if extra is None else extra
        names = {"": names, "first": ["", *names], "last": [*names, ""]}[extra]
    else:
        extra = ""
    doubts += (SPLIT_NUMBERS,) if extra == "first" and separator == "," and _may_be_split(table) else ()
    frame, notes = _with_names(called, table, names, separator, hint)
    other = "; set data.header to false if the first line holds data; data.header = true and data.names name them anew"
    require_names(called, list(frame.columns), hint or other)
    return Table(frame, options, notes, extra, doubts)


def _without_header(
    called: str, table: DataFrame, options: TableOptions, known: Known
) -> tuple[DataFrame, tuple[str, ...]]:
    """The table with the names of `options`, or with numbered ones, and a line if an empty last column is left out."""
    columns, notes = table.shape[1], tuple[str, ...]()
    if 0 < len(options.names) == columns - 1 and _is_empty(table, columns - 1):
        table, columns, notes = table.iloc[:, :-1], columns - 1, (EMPTY_LAST,)
    if options.names:
        names = _given_names(called, columns, options.names, known)
    else:  # the targets of the training may be absent, and the last number higher
        names = _numbered(columns)
        without = [name for name in _numbered(columns + len(known.targets)) if name not in known.targets]
        if len(without) == columns and not {*names}.issuperset(known.inputs):
            names = without
    if options.header == "auto" and table_hints.names_columns(table):
        how = "set data.header to true to replace these names, or to false if it is data"
        raise DataError(f"{called}: the first line seems to name the columns; {how}")
    return _renamed(table, names), notes


def _numbered(columns: int) -> list[str]:
    return [f"column {number + 1}" for number in range(columns)]


def _given_names(called: str, columns: int, names: Sequence[str], known: Known) -> list[str]:
    """`names`, or those but the known targets in a table that lacks these."""
    without = [name for name in names if name not in known.targets]
    found = next((those for those in (list(names), without) if len(those) == columns), None)
    if found is None:
        raise SettingError("data.names", list(names)[:NAMES_SHOWN], f"{called} has {columns} columns")
    return found


def _record(called: str, text: io.TextIOWrapper) -> str:
    """The next record; several lines if a quoted cell contains line breaks."""
    record = ""
    while line := text.readline(LINE_CHARACTERS):
        record += line
        if len(record) >= LINE_CHARACTERS:
            raise DataError(f"{called}, line 1: longer than {LINE_CHARACTERS:,} characters")
        if not _is_open(record):
            break
    return record


def _is_open(record: str) -> bool:
    """Whether a quoted cell goes on in the next line: a quotation mark quotes at the beginning of a cell only."""
    is_open = False
    for mark in re.finditer(r"([\w)\]%'] *)?(\"+)", record):
        if is_open or mark[1] is None:  # two marks in a quoted cell are one letter
            is_open = is_open == (len(mark[2]) % 2 == 0)
    return is_open


def _sample(text: io.TextIOWrapper) -> str:
    """The next lines, which are read again afterwards."""
    position = text.tell()
    sample = text.read(SAMPLE_CHARACTERS)
    text.seek(position)
    return sample[: sample.rfind("\n") + 1] if len(sample) == SAMPLE_CHARACTERS else sample


def _header(
    called: str, sample: str, first: str, options: TableOptions, inputs: Sequence[str]
) -> tuple[str, list[str], list[list[str]]]:
    """The separator, the names in the header line `first`, and the first of the records in the lines that follow."""
    if options.comment:
        sample = re.sub(f"^{re.escape(options.comment)}.*\n?", "", sample, flags=re.MULTILINE)
    found: dict[str, tuple[list[str], list[list[str]]]] = {}
    separators = {options.separator: None} if options.separator != "auto" else {}
    if not separators or (inputs and (first or len(inputs) > 1)):
        separators |= dict.fromkeys(table_hints.SEPARATORS)
    for separator in separators:
        try:
            names = as_names([name.strip() for _, record in _records(first, separator)[:1] for name in record])
            found[separator] = list(names), [record for _, record in _records(sample, separator)]
        except csv.Error as error:
            problem = error
    if not found:
        raise DataError(f"{called} is not a text file of columns: {problem}") from problem

    def fits(separator: str) -> tuple[float, ...]:
        header, records = found[separator]
        if inputs and (shared := {*inputs}.intersection(header)):
            return len(shared), 0
        sizes = Counter(len(record) for record in records)
        size, times = max(sizes.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        is_own = separator == options.separator and max(sizes, default=0) > 1
        is_table = size > 1 and times == len(records) and (not first or len(header) in (size, size - 1))
        return 0, is_own, is_table, size > 1 and times / len(records), len(header) or size

    separator = max(found, key=fits)
    return separator, *found[separator]


def _records(text: str, separator: str) -> list[tuple[int, list[str]]]:
    """Some of the first records of a text that are not blank, each with the lines before it; the last may be cut."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    records: list[tuple[int, list[str]]] = []
    line = 0
    for record in reader:
        if any(cell.strip() for cell in record):
            records.append((line, record))
        line = reader.line_num
        if len(records) >= SAMPLE_RECORDS:
            break
    return records


def _read_rows(
    called: str, text: io.TextIOWrapper, options: TableOptions, header_lines: int, width: int | None, hint: str
) -> DataFrame | None:
    """The rows after the header line as text, with columns 0, 1, …; None if there are none.

    There are `width` columns, by default as many as the first row has cells. Later rows may lack their last cells.
    """
    import pandas

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(
                text,
                header=None,
                names=None if width is None else range(width),
                index_col=False,
                sep=r"\s+" if options.separator == " " else options.separator,
                dtype=object,
                keep_default_na=False,
                na_filter=False,
                skipinitialspace=True,
                comment=options.comment or None,
            )
    except pandas.errors.EmptyDataError:
        return None
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, pandas.errors.ParserWarning) as error:
        raise DataError(f"{called}{table_hints.parser_problem(str(error), header_lines)}{hint}") from error


def _with_names(
    called: str, table: DataFrame, names: list[str], separator: str, hint: str
) -> tuple[DataFrame, tuple[str, ...]]:
    """The table with its names, without a column of row names or empty last column, and a line about each of these."""
    columns, notes = table.shape[1], list[str]()
    if len(names) != columns:
        which = f"its columns are separated by {separator!r}){table_hints.other_header(names, columns) or hint}"
        raise DataError(f"{called}: the first row has {columns} cells, the header line has {len(names)} ({which}")
    left_out = []
    if columns > 1 and not names[0]:
        left_out.append(0)
        notes.append("the first column has no name, as that of row names: left out")
    if columns > 2 and not names[-1] and _is_empty(table, columns - 1):
        left_out.append(columns - 1)
        notes.append(EMPTY_LAST)
    frame = _renamed(table, names)
    return (frame.iloc[:, [i for i in range(columns) if i not in left_out]] if left_out else frame), tuple(notes)


def _extra_cell(table: DataFrame) -> Extra:
    """The cell of each row without a name: the last, if it is empty, or the first, if R has written row names."""
    if _is_empty(table, table.shape[1] - 1):
        return "last"
    return "first" if table[0].is_unique and len(table) > 1 else ""


def _may_be_split(table: DataFrame) -> bool:
    """Whether the first cells may be those of numbers with decimal commas: whole numbers that do not count from 1."""
    cells = table[0].str.strip()
    is_count = bool((cells == [str(number + 1) for number in range(len(cells))]).all())
    return not is_count and bool(cells.str.fullmatch(r"[+-]?\d+").all())


def _is_empty(table: DataFrame, column: int) -> bool:
    return bool((table.iloc[:, column].fillna("").str.strip() == "").all())


def _renamed(table: DataFrame, names: Sequence[str]) -> DataFrame:
    import pandas

    table.columns = pandas.Index(list(names), dtype=object)  # `set_axis` would copy a million columns one by one
    return table
