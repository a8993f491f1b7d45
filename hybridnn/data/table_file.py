"""Tables of a user, read by pandas: files of text, ``.parquet`` files, and data frames."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.utils.files import memory_bytes, open_regular
from hybridnn.utils.text import NAMES_SHOWN, column_list, printable, shown_path

from .table_options import Csv, TableOptions, as_names, require_names

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_COLUMNS = 900_000  # for more, pandas takes about a minute
SAMPLE_CHARACTERS, SAMPLE_LINES = 1 << 16, 50  # from which the separator is found
BLOCK_BYTES = 1 << 20
BEGINNINGS = {
    rb"\xef\xbb\xbf": "utf-8-sig",
    rb"\xff\xfe|\xfe\xff": "utf-16",
    rb"[^\0]\0[^\0]\0": "utf-16-le",  # without a byte-order mark
    rb"\0[^\0]\0[^\0]": "utf-16-be",
}
"""Patterns of the first bytes of a file, and the encodings that they announce."""
FOREIGN = {
    rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd": "is compressed: unpack it (gunzip unpacks .gz)",
    rb"PK\x03\x04": "is a zip archive, as .xlsx and .ods files are: unpack it, or save the sheet as .csv",
    rb"\xd0\xcf\x11\xe0": "is a workbook of Excel: save the sheet as .csv",
    rb"PAR1[\0-\x1f]": "is a Parquet file: its name must end in .parquet",
    rb"version https://git-lfs": "is a pointer of Git LFS in place of the file: git lfs pull fetches it",
    rb"(\xef\xbb\xbf)?\s*<(?i:!doctype|html|\?xml|table)": "is a page of HTML or XML: save the table itself as .csv",
}
"""Patterns of the first bytes of files that are no text of columns, and what to do about them."""
SEPARATORS = (",", ";", "\t", "|")
NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
FIRST_LINE = 'set data.csv.header = "None" if it is data (the columns are then named 0, 1, …), or to 0 if it names them'
OURS = {"names", "header", "encoding", "parse_dates", "dayfirst", "date_format"}


class Table(NamedTuple):
    """A table that was read."""

    frame: DataFrame
    options: TableOptions  # with the separator and the encoding that were found
    notes: tuple[str, ...] = ()  # what was left out, one line each
    has_row_names: bool = False  # for which the header line has no name
    raw: Callable[[Collection[str]], DataFrame] | None = None  # reads columns of a file of text again, as text


class Known(NamedTuple):
    """What is known of the columns of a table, from that of the training."""

    inputs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # may be absent
    has_row_names: bool = False


NOTHING = Known()


def read_table(path: Path, options: TableOptions, texts: Collection[str] = (), known: Known = NOTHING) -> Table:
    """Read a file of text or a ``.parquet`` file; the cells of the columns `texts` are text.

    The separator is the usual one that divides the first lines into equal numbers of cells, or by which most of the
    known inputs are found. A file beside that of the training may be in UTF-8 all the same.

    Raises `DataError`: the file cannot be read, is no table, or its columns have no names or equal ones.
    """
    called, given = shown_path(path), options.csv.get("encoding", "utf-8")
    try:
        with open_regular(path) as file:
            if (size := file.seek(0, io.SEEK_END)) > (memory := memory_bytes()):
                raise DataError(f"{called}: the file has {size:,} bytes, and this machine has {memory:,}")
            file.seek(0)
            if path.suffix.lower() == ".parquet":
                return Table(_read_parquet(called, file), options)
            marked = _announced(called, file, given)
        try:
            return _read_text(path, called, options, marked or ("utf-8" if known.inputs else given), texts, known)
        except UnicodeError:
            if marked or given == "utf-8" or not known.inputs:
                raise
        return _read_text(path, called, options, given, texts, known)
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror or one_line(str(error))}") from error
    except UnicodeError as error:
        raise DataError(f"{called} is not a text file in {given.upper()}: {_undecoded(error, known)}") from error
    except MemoryError:
        raise DataError(f"{called}: the table does not fit into the memory") from None


def named_frame(frame: DataFrame, called: str) -> DataFrame:
    """A copy of `frame` whose columns have names without surrounding spaces, and an index with names as columns."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    names = as_names([str(name).strip() for name in frame.columns])
    require_names(called, names)
    return frame.set_axis(list(names), axis=1)


def _read_parquet(called: str, file: io.BufferedReader) -> DataFrame:
    import pandas

    try:
        return named_frame(pandas.read_parquet(file), called)
    except ImportError:
        raise DataError(f"{called}: .parquet files need the package pyarrow: pip install pyarrow") from None
    except (ValueError, OSError, KeyError, TypeError) as error:  # those of pyarrow are of these classes
        raise DataError(f"{called}: is not a readable .parquet file: {one_line(str(error))[:200]}") from error


def _announced(called: str, file: io.BufferedReader, given: str) -> str | None:
    """The encoding that the first bytes announce; `DataError` for another kind of file, and for characters NUL."""
    start = file.read(64)
    for pattern, what in FOREIGN.items():
        if re.match(pattern, start):
            raise DataError(f"{called} {what}")
    found = next((encoding for pattern, encoding in BEGINNINGS.items() if re.match(pattern, start, re.S)), None)
    file.seek(0)
    is_wide = "16" in (found or given) or "32" in (found or given)
    if not is_wide and any(b"\0" in block for block in iter(lambda: file.read(BLOCK_BYTES), b"")):
        how = "it is damaged, or data.csv.encoding must name its encoding, such as utf-16-le"
        raise DataError(f"{called} has the character NUL: {how}")
    return found


def _undecoded(error: UnicodeError, known: Known) -> str:
    """What cannot be decoded, and the encoding that would."""
    if not isinstance(error, UnicodeDecodeError):
        return one_line(str(error))
    before, after = error.object[: error.start], error.object[error.start :]
    shown = (before.rpartition(b"\n")[2][-12:] + after.partition(b"\n")[0][:12]).decode("cp1252", "replace").strip()
    how = "save it as UTF-8 (iconv -f cp1252 -t utf-8)" if known.inputs else 'set data.csv.encoding = "cp1252"'
    remedy = f"; {how} if {shown} is text with the letters of Windows or Latin-1" if shown.isprintable() else ""
    return f"byte {error.object[error.start]:#04x} ({error.reason}){remedy}"


# -- text of columns ---------------------------------------------------------------------------------------------------


def _read_text(
    path: Path, called: str, options: TableOptions, encoding: str, texts: Collection[str], known: Known
) -> Table:
    import pandas

    def read(columns: int, hint: str = "", **more: Any) -> DataFrame:
        with io.TextIOWrapper(open_regular(path), encoding=encoding, newline="") as file:
            return _by_pandas(called, file, given, columns, hint, more)

    with io.TextIOWrapper(open_regular(path), encoding=encoding, newline="") as file:
        lines = _first_lines(file, options.csv)
    given, records = _separated(called, lines, {**options.csv, "encoding": encoding}, known)
    hint = _header_hint(lines, records, given)
    names, has_row_names = _names(called, given, [cells for _, cells in records], known, hint)
    if len(names) > MOST_COLUMNS:
        how = f"are more than {MOST_COLUMNS:,}, which a table may have; store numbers as arrays in an .npz file"
        raise DataError(f"{called}: {len(names):,} columns {how}")

    def raw(wanted: Collection[str]) -> DataFrame:
        places = [n for n, name in enumerate(names) if name in wanted]
        frame = read(len(names), usecols=places, dtype=str, na_filter=False)
        return frame.set_axis([names[place] for place in places], axis=1)

    frame, notes = read(len(names), hint, dtype={n: str for n, name in enumerate(names) if name in texts}), []
    frame.columns = pandas.Index(names, dtype=object)  # `set_axis` would copy a million columns one by one
    if not len(frame):
        raise DataError(f"{called}: no line of data after the header line")
    if len(names) > 2 and not names[-1] and frame.iloc[:, -1].isna().all():
        frame = frame.iloc[:, :-1]
        notes.append("the last column has no name and no cells: left out")
    if len(names) > 1 and not names[0]:
        frame = frame.iloc[:, 1:]
        notes.append("the first column has no name, as that of row names: left out")
    require_names(called, list(frame.columns), hint or f"; {FIRST_LINE}")
    return Table(frame, replace(options, csv=given), tuple(notes), has_row_names, raw)


def _first_lines(file: io.TextIOWrapper, given: Csv) -> list[str]:
    """The first lines, at least three from the header line on."""
    before, size, lines = given.get("skiprows", 0) + (given.get("header") or 0), 0, list[str]()
    while (size <= SAMPLE_CHARACTERS or len(lines) < before + 3) and len(lines) < before + SAMPLE_LINES:
        lines.append(file.readline())
        size += len(lines[-1])
        if not lines[-1]:
            break
    return lines


def _header_of(given: Csv) -> int | None:
    """The record that names the columns, from 0, as pandas decides it."""
    header: int | None = given.get("header", None if "names" in given else 0)
    return header


def _records(lines: Sequence[str], given: Csv, separator: str) -> list[tuple[int, list[str]]]:
    """The records of lines that are not blank, each with the lines before it."""
    comment, skipped, found = given.get("comment"), given.get("skiprows", 0), list[tuple[int, list[str]]]()
    lines = [line.partition(comment)[0] if comment else line for line in lines[skipped:]]
    if separator == r"\s+":
        lines, separator = [" ".join(line.split()) for line in lines], " "
    form = {key: given[key] for key in ("quotechar", "escapechar") if key in given}
    reader, before = csv.reader(lines, delimiter=separator, skipinitialspace=True, **form), 0
    for record in reader:
        if any(cell.strip() for cell in record):
            found.append((skipped + before, [cell.strip() for cell in record]))
        before = reader.line_num
    return found


def _separated(
    called: str, lines: Sequence[str], given: dict[str, Any], known: Known
) -> tuple[dict[str, Any], list[tuple[int, list[str]]]]:
    """Arguments of pandas with the separator that was found, and the first records."""
    skipped, header, found = given.get("skiprows", 0), _header_of(given), {}
    if stated := re.fullmatch(r'"?sep=(.)"?\s*', "".join(lines[skipped : skipped + 1])):  # as Excel writes
        given = {**given, "skiprows": skipped + 1, "sep": stated[1]}
    own = [given["sep"]] if "sep" in given else []
    others = SEPARATORS if not own or (known.inputs and (header is not None or len(known.inputs) > 1)) else ()
    for separator in dict.fromkeys([*own, *others]):
        try:
            found[separator] = _records(lines, given, separator)
        except csv.Error as error:
            problem = error
    if not found:
        raise DataError(f"{called} is not a text file of columns: {problem}") from problem

    def fits(separator: str) -> tuple[float, ...]:
        records = [cells for _, cells in found[separator]]
        names = records[header] if header in range(len(records)) else []
        sizes = Counter(map(len, records[(header or 0) + bool(names) :]))
        size, times = max(sizes.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        is_table = size > 1 and times == sum(sizes.values()) and (not names or len(names) in (size, size - 1))
        is_own = separator in own and max(sizes, default=0) > 1
        return (
            len({*known.inputs}.intersection(as_names(names))),
            is_own,
            is_table,
            size > 1 and times,
            len(names) or size,
        )

    separator = max(found, key=fits)
    return given | {"sep": separator}, found[separator]


def _names(called: str, given: Csv, records: Sequence[list[str]], known: Known, hint: str) -> tuple[list[str], bool]:
    """The names of all columns, empty for those without, and whether rows begin with a name of their own."""
    header = _header_of(given)
    names = list(as_names(records[header])) if header in range(len(records)) else []
    rows = records[0 if header is None else header + 1 :]
    if header is not None and not any(names):
        raise DataError(f"{called}: the first line is empty; it must name the columns{hint}")
    if not rows:
        raise DataError(f"{called}: no line of data after the header line")
    width = len(rows[0])
    if header is None:
        return _given_names(called, width, given.get("names") or [str(n) for n in range(width)], known), False
    if len(names) == width == 1 < len(names[0].split()) == len(rows[0][0].split()):
        how = r"if spaces separate columns, set data.csv.sep = '\s+'"
        raise DataError(f"{called}: it has one column, {printable(names[0], 80)}; {how}")
    if (
        2 * sum(re.fullmatch("'.*'", cell) is not None for cell in (*names, *rows[0])) >= width
        and "quotechar" not in given
    ):
        raise DataError(f'{called}: names or cells are in single quotation marks: set data.csv.quotechar = "\'"')
    if "header" not in given and not {*known.inputs}.intersection(names) and _are_data(names, rows):
        raise DataError(f"{called}: the first line seems to hold data ({column_list(names)}); {FIRST_LINE}")
    if "names" in given:
        names = _given_names(called, len(names), given["names"], known)
    is_longer = width == len(names) + 1 and names[-1] != "" and bool(known.inputs or not (len(names) == 1 or hint))
    if is_longer and not known.has_row_names and not any("".join(row[len(names) :]) for row in rows):
        return [*names, ""], False  # the rows end with separators
    if is_longer and (known.has_row_names if known.inputs else len({row[0] for row in rows}) == len(rows) > 1):
        return ["", *names], True
    if width > len(names) or (width < len(names) and not known.inputs and len(names) not in map(len, rows)):
        which = f"(its columns are separated by {given['sep']!r}){hint}"
        raise DataError(f"{called}: the first row has {width} cells, the header line has {len(names)} {which}")
    return names, False


def _given_names(called: str, columns: int, names: Sequence[str], known: Known) -> list[str]:
    """`names`, or those but the known targets in a table that lacks these; numbers go on."""
    if list(names) == [str(n) for n in range(columns)] and not {*names}.issuperset(known.inputs):
        names = [str(number) for number in range(columns + len(known.targets))]
    for those in (list(names), [name for name in names if name not in known.targets]):
        if len(those) == columns:
            return those
    raise SettingError("data.csv.names", list(names)[:NAMES_SHOWN], f"{called} has {columns} columns")


def _are_data(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header line seems to hold data: half are numbers, or two are numbers or cells of their column.

    Numbers that count the columns are names, and so are those after a first cell above row names.
    """
    numbers = sorted(float(name.replace(",", ".")) for name in names if NUMBER.fullmatch(name))
    is_count = len(numbers) > 1 and numbers == [numbers[0] + number for number in range(len(numbers))]
    if is_count or (len(names) > 1 and not names[0]):
        return False
    words = [(n, name) for n, name in enumerate(names) if name and not NUMBER.fullmatch(name)]
    repeated = sum(any(row[n : n + 1] == [name] for row in rows) for n, name in words)
    return 2 * len(numbers) >= len(names) or (repeated > 0 and repeated + len(numbers) > 1)


def _header_hint(lines: Sequence[str], records: Sequence[tuple[int, list[str]]], given: Csv) -> str:
    """The advice to leave out the first lines, if a later one has a name for every column; empty without."""
    sizes = Counter(len(cells) for _, cells in records)
    size = max(sizes, key=lambda size: (sizes[size], size), default=0)
    are_names = (len(cells) == size > 1 and all(cells) and not _are_data(cells, []) for _, cells in records[:20])
    place, header = next((n for n, is_named in enumerate(are_names) if is_named), 0), _header_of(given)
    if header is None or place <= header:
        return ""
    line = records[place][0]
    marks = {text.strip()[0] for text in lines[:line] if text.strip()}
    if len(marks) == 1 and marks <= {"#", "%"} and marks.isdisjoint("".join(lines[line:])):
        return f'; if lines that begin with {min(marks)} are comments, set data.csv.comment = "{min(marks)}"'
    return f"; if line {line + 1} names the columns, set data.csv.skiprows = {line}"


def _by_pandas(
    called: str, file: io.TextIOWrapper, given: Csv, columns: int, hint: str, more: dict[str, Any]
) -> DataFrame:
    """The rows of a file, with columns 0, 1, …; later rows than the first may lack their last cells."""
    import pandas

    options = {key: value for key, value in given.items() if key not in OURS} | more
    options |= {} if pandas.__version__ >= "3.1" else {"float_precision": "round_trip"}  # now the default
    options |= {"header": _header_of(given), "names": range(columns), "index_col": False, "skipinitialspace": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(file, low_memory=False, **options)
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, pandas.errors.ParserWarning) as error:
        text = f" is not a text file of columns: {one_line(str(error))[:200]}"
        if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            escape = (
                "" if "escapechar" in given else r"; if \" stands for a quotation mark, set data.csv.escapechar = '\'"
            )
            text = f", line {found[2]}: {found[3]} cells, the first row has {found[1]}{escape}"
        elif found := re.search(r"EOF inside string starting at row (\d+)", str(error)):
            text = f", row {found[1]}: a quotation mark is not closed"
        raise DataError(f"{called}{text}{hint}") from error
