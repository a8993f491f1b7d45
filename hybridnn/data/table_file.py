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

from .table_options import NAMES_SHOWN, TableOptions, as_names, column_list, require_names

if TYPE_CHECKING:
    from pandas import DataFrame

SEPARATORS = (",", ";", "\t", "|")
LINE_CHARACTERS = 1 << 28  # limit of the header line, enough for ten million columns
SAMPLE_CHARACTERS = 1 << 16  # after the header line, from which the separator is found
SAMPLE_RECORDS = 50
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

    The separator is that of `SEPARATORS` which divides all of the first lines into the same number of cells.

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
        raise DataError(f"{called} {_encoding_problem(error, options, is_known=bool(known.inputs))}") from error
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
    start = file.read(4)
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
        while has_header and options.comment and first.startswith(options.comment):
            lines, first = lines + 1, _record(called, text)
        separator, names, records = _header(called, text, first, options, known.inputs)
        options = replace(options, separator=separator)
        if has_header and not any(names):
            raise DataError(f"{called}: the first line is empty; it must name the columns")
        hint = _header_hint([names, *records]) if has_header else ""
        is_short = bool(records) and len(records[0]) < len(names)
        is_usual = bool(known.inputs) or any(len(record) == len(names) for record in records)
        width = len(names) if is_short and is_usual else None  # the first row lacks its last cells
        table = _read_rows(called, text, options, lines + len(first.splitlines()), width, hint)
    if table is None:
        raise DataError(f"{called}: no line of data after the header line")
    if not has_header:
        return Table(_without_header(called, table, options, known), options)
    if table.shape[1] == 1 and (other := _other_separator(names, records)):
        how = f"if {other!r} separates columns, set data.separator = {other!r}"
        raise DataError(f"{called}: it has one column, {printable(names[0], 80)}; {how}")
    if options.header == "auto" and not {*known.inputs}.intersection(names) and _are_data(names, records):
        how = "set data.header to false if these are data, and columns get numbered names, or to true if they are names"
        raise DataError(f"{called}: the first line seems to hold data ({column_list(names)}); {how}")
    if options.names:
        names = _given_names(called, len(names), options.names, known)
    if len(names) == table.shape[1] - 1 and names[-1]:
        extra = _extra_cell(table) if extra is None else extra
        names = {"": names, "first": ["", *names], "last": [*names, ""]}[extra]
    else:
        extra = ""
    doubts = (SPLIT_NUMBERS,) if extra == "first" and separator == "," and _may_be_split(table) else ()
    frame, notes = _with_names(called, table, names, separator, hint)
    other = "; set data.header to false if the first line holds data; data.header = true and data.names name them anew"
    require_names(called, list(frame.columns), hint or other)
    return Table(frame, options, notes, extra, doubts)


def _without_header(called: str, table: DataFrame, options: TableOptions, known: Known) -> DataFrame:
    """The table with the names of `options`, or with numbered ones."""
    columns = table.shape[1]
    if options.names:
        names = _given_names(called, columns, options.names, known)
    else:  # the targets of the training may be absent, and the last number higher
        names = _numbered(columns)
        without = [name for name in _numbered(columns + len(known.targets)) if name not in known.targets]
        if len(without) == columns and not {*names}.issuperset(known.inputs):
            names = without
    if options.header == "auto" and _names_columns(table):
        how = "set data.header to true to replace these names, or to false if it is data"
        raise DataError(f"{called}: the first line seems to name the columns; {how}")
    return _renamed(table, names)


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


def _header(
    called: str, text: io.TextIOWrapper, first: str, options: TableOptions, inputs: Sequence[str]
) -> tuple[str, list[str], list[list[str]]]:
    """The separator, the names in the header line `first`, and the first of the records that follow."""
    position = text.tell()
    sample = text.read(SAMPLE_CHARACTERS)
    text.seek(position)
    if len(sample) == SAMPLE_CHARACTERS:
        sample = sample[: sample.rfind("\n") + 1]
    if options.comment:
        sample = re.sub(f"^{re.escape(options.comment)}.*\n?", "", sample, flags=re.MULTILINE)
    found: dict[str, tuple[list[str], list[list[str]]]] = {}
    separators = {options.separator: None} if options.separator != "auto" else {}
    if not separators or (inputs and first):
        separators |= dict.fromkeys(SEPARATORS)
    for separator in separators:
        try:
            names = as_names([name.strip() for name in next(iter(_records(first, separator)), [])])
            found[separator] = list(names), _records(sample, separator)
        except csv.Error as error:
            problem = error
    if not found:
        raise DataError(f"{called} is not a text file of columns: {problem}") from problem

    def fits(separator: str) -> tuple[bool, int]:
        header, records = found[separator]
        if inputs:
            return True, len({*inputs}.intersection(header))
        sizes = {len(record) for record in records}
        size = max(sizes, default=0)
        return len(sizes) == 1 and size > 1 and (not first or len(header) in (size, size - 1)), len(header) or size

    separator = max(found, key=fits)
    return separator, *found[separator]


def _records(text: str, separator: str) -> list[list[str]]:
    """Some of the first records of a text that are not blank; the last one may be cut."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    records: list[list[str]] = []
    for record in reader:
        if any(cell.strip() for cell in record):
            records.append(record)
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
        raise DataError(f"{called}{_parser_problem(str(error), header_lines)}{hint}") from error


def _with_names(
    called: str, table: DataFrame, names: list[str], separator: str, hint: str
) -> tuple[DataFrame, tuple[str, ...]]:
    """The table with its names, without a column of row names or empty last column, and a line about each of these."""
    columns, notes = table.shape[1], list[str]()
    if len(names) != columns:
        which = f"its columns are separated by {separator!r}"
        raise DataError(
            f"{called}: the first row has {columns} cells, the header line has {len(names)} ({which}){hint}"
        )
    left_out = []
    if columns > 1 and not names[0]:
        left_out.append(0)
        notes.append("the first column has no name, as that of row names: left out")
    if columns > 2 and not names[-1] and _is_empty(table, columns - 1):
        left_out.append(columns - 1)
        notes.append("the last column has no name and no cells: left out")
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


def _are_data(names: Sequence[str], records: Sequence[Sequence[str]] = ()) -> bool:
    """Whether the header line seems to hold data: numbers that do not count the columns, or cells that others repeat.

    Half of the line are numbers, or of numbers and words that are cells of the `records` in the same column too, there
    are two.
    """
    if len(names) > 1 and not names[0]:  # above row names
        return False
    number = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
    numbers = [float(text) for text in (name.replace(",", ".") for name in names) if number.fullmatch(text)]
    is_count = len(numbers) > 1 and sorted(numbers) == [min(numbers) + number for number in range(len(numbers))]
    if 2 * len(numbers) >= len(names) > 0 or is_count:
        return not is_count
    words = [(i, name) for i, name in enumerate(names) if name and not number.fullmatch(name.replace(",", "."))]
    repeated = sum(any(record[i : i + 1] == [name] for record in records) for i, name in words)
    return repeated > 0 and repeated + len(numbers) > 1


def _other_separator(names: Sequence[str], records: Sequence[Sequence[str]]) -> str:
    """A separator that would divide the one column of a table, or an empty text."""
    for separator in (" ", ":"):
        sizes = {len(text.replace(separator, " ").split()) for text in [*names, *(record[0] for record in records)]}
        if any(separator in name for name in names) and len(sizes) == 1 and sizes != {1}:
            return separator
    return ""


def _names_columns(table: DataFrame) -> bool:
    """Whether the first row has no number, and a column below it nothing else."""
    number = r"[+-]?[\d.,]+"
    first, rest = table.iloc[0].astype(str), table.iloc[1:50].astype(str)
    is_text = not first.str.fullmatch(number).any()
    return is_text and len(rest) > 0 and any(rest[name].str.fullmatch(number).all() for name in rest)


def _header_hint(records: Sequence[Sequence[str]]) -> str:
    """The advice to skip lines, if a later one has a name for every column."""
    sizes = Counter(len(record) for record in records)
    size = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for number, record in enumerate(records[:20]):
        if len(record) == size > 1 and all(cell.strip() for cell in record) and not _are_data(record):
            return f"; if line {number + 1} names the columns, set data.skip_lines = {number}" if number else ""
    return ""


def _encoding_problem(error: UnicodeError, options: TableOptions, *, is_known: bool) -> str:
    """What cannot be decoded, and the encoding that would; `is_known`: the settings are those of a run."""
    tried = "UTF-8" if options.encoding in ("auto", "utf-8", "utf-8-sig") else options.encoding
    if not isinstance(error, UnicodeDecodeError):
        return f"is not a text file in {tried}: {one_line(str(error))}"
    before, after = error.object[: error.start], error.object[error.start :]
    word = before.rpartition(b"\n")[2][-12:] + after.partition(b"\n")[0][:12]
    shown = word.decode("cp1252", "replace").strip()
    problem = f"byte {error.object[error.start]:#04x} ({error.reason})"
    how = 'set data.encoding = "cp1252"' if not is_known else "save it as UTF-8 (iconv -f cp1252 -t utf-8)"
    remedy = f"; {how} if {shown} is text with the letters of Windows or Latin-1"
    return f"is not a text file in {tried}: {problem}{remedy if shown.isprintable() else ''}"


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
