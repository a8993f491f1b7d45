"""Tables of a user, read by pandas: the options, files of text, ``.parquet`` files, and data frames."""

from __future__ import annotations

import codecs
import csv
import io
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.utils.checks import Checked, described, nearest, require_fields, require_type, require_whole, with_advice
from hybridnn.utils.files import open_regular
from hybridnn.utils.text import NAMES_SHOWN, alike, column_list, shown_path

if TYPE_CHECKING:
    from pandas import DataFrame

Missing = Literal["error", "drop", "mean"]
Categories = Literal["error", "one-hot"]
Csv = Mapping[str, Any]

LISTS = ("names", "na_values", "true_values", "false_values", "parse_dates")
CSV_KEYS = (
    *("sep", "decimal", "thousands", "comment", "quotechar", "escapechar", "encoding", "header", "skiprows"),
    *("keep_default_na", "dayfirst", "date_format", *LISTS),
)
"""Arguments of `pandas.read_csv` that a table may need; the others belong to the library."""
NOT_PASSED = {"names", "header", "encoding", "parse_dates", "dayfirst", "date_format"}  # handled here

MOST_SKIPPED = 1_000_000  # lines
MOST_COLUMNS = 500_000  # which take half a minute
SAMPLE, SAMPLE_LINES = 1 << 16, 50  # characters and lines from which the separator is found
BLOCK = 1 << 20
FEW = 64  # columns
SEPARATORS = (",", ";", "\t", "|")
NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity)", re.I | re.A)
FIRST_LINE = 'set data.csv.header = "None" if it is data (the columns are then named 0, 1, …), or to 0 if it names them'
PREAMBLE = "; if lines precede the names, set data.csv.skiprows to their number, or data.csv.comment to their sign"
NO_TEXT = "unpack what is compressed, save a sheet or a page as .csv, or state its encoding in data.csv.encoding"


# -- options -----------------------------------------------------------------------------------------------------------


def checked_csv(given: object) -> dict[str, Any]:
    """Arguments for `pandas.read_csv`; `SettingError` for those that it refuses.

    Text separated by commas becomes a list where pandas takes lists, and a header of None the text ``"None"``.
    """
    if not isinstance(given, Mapping):
        raise SettingError("data.csv", given, f"must be a table of keys of pandas.read_csv: {', '.join(CSV_KEYS)}")
    checked = {str(key): _checked(str(key), value) for key, value in given.items()}
    if checked.get("thousands") == ".":
        checked.setdefault("decimal", ",")
    if checked.get("thousands") == checked.get("decimal", "."):
        raise SettingError("data.csv.thousands", checked["thousands"], "must not be the decimal separator")
    return checked


def _checked(key: str, value: Any) -> Any:
    import pandas

    name = f"data.csv.{key}"
    if key not in CSV_KEYS:
        hint = nearest(key, CSV_KEYS) or f"known are {', '.join(CSV_KEYS)}"
        raise SettingError(name, value, hint, f"unknown setting {one_line(name)}; {hint}")
    if key == "header" and value in (None, "None"):
        return "None"  # which TOML can hold
    if key in ("header", "skiprows"):
        return require_whole(name, value, 0, MOST_SKIPPED, "must be a whole number, 0 or more")
    if key in ("keep_default_na", "dayfirst"):
        return require_type(name, value, bool)
    if key in LISTS and not isinstance(value, Mapping):
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        value = [unicodedata.normalize("NFC", str(part).strip()) for part in parts]
    more = {} if key == "parse_dates" else {key: value}  # of columns that this text does not have
    try:
        with suppress(pandas.errors.EmptyDataError, pandas.errors.ParserError, UnicodeError):  # wrong for it alone
            pandas.read_csv(io.BytesIO(b"a\n" * 3), engine="c", **more)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise SettingError(name, value, f"refused by pandas.read_csv: {one_line(str(error))}") from error
    return value


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns in Unicode's form NFC; a text is one name, and not a sequence of letters."""
    return tuple(unicodedata.normalize("NFC", name) for name in ((names,) if isinstance(names, str) else names))


NAMES = Checked(as_names, "a name, or a list of names")


@with_advice({"drop": "did you mean drop_columns?", **{key: f"give csv={{{key!r}: …}}" for key in CSV_KEYS}})
@described
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read; the fields are those of ``[data]`` with the same names."""

    csv: Annotated[
        Csv,
        Checked(checked_csv, "a table of keys of pandas.read_csv"),
        "How a file of text is read: keys of pandas.read_csv. By default, the separator is found among comma, "
        "semicolon, tab and vertical bar, the encoding is UTF-8, or UTF-16 where the first bytes are so, and a first "
        "line that seems to hold data is refused. With `header` None, the names are 0, 1 and so on.",
    ] = field(default_factory=dict)
    text_columns: Annotated[
        str | Sequence[str], NAMES, "Columns of text although their cells are numbers, such as postcodes."
    ] = ()
    drop_columns: Annotated[str | Sequence[str], NAMES, "Columns of a table that are left out."] = ()
    missing: Annotated[
        Missing,
        "Missing values of a table. `drop` leaves out their rows, `mean` replaces those of inputs by the mean of the "
        "training samples.",
    ] = "error"
    missing_targets: Annotated[
        Literal["error", "drop"], 'Rows without a target. They are left out by `missing = "drop"` too.'
    ] = "error"
    categories: Annotated[
        Categories, "Input columns of text; one-hot: an input of each value. It is 1 where the column has it, else 0."
    ] = "error"

    def __post_init__(self) -> None:
        require_fields("data", self)


def require_names(called: str, names: Sequence[str], hint: str = "") -> None:
    """Raise DataError for columns without a name, or with equal names."""
    if "" in names:
        raise DataError(f"{called}: column {list(names).index('') + 1} has no name (every column needs one){hint}")
    if doubled := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError(f"{called}: several columns are named {column_list([repr(name) for name in doubled])}{hint}")


def require_columns(called: str, table: Any, wanted: Sequence[str], what: str) -> None:
    """Raise DataError unless the table has all the `wanted` columns."""
    there = set(table.columns)
    if missing := [name for name in wanted if name not in there]:
        which = f"column{'s' if len(missing) > 1 else ''} {column_list([repr(name) for name in missing])}"
        has = f"it has {column_list(list(table.columns))}{alike(missing[0], list(table.columns))}"
        raise DataError(f"{called}: no {which}, {what}; {has}")


# -- files -------------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table that was read."""

    frame: DataFrame
    options: TableOptions  # with the separator that was found
    has_row_names: bool = False  # for which the header line has no name
    raw: Callable[[Iterable[str]], DataFrame] | None = None  # reads columns of a file of text again, as text


def read_table(path: Path, options: TableOptions, targets: Collection[str] = (), like: Any = None) -> Table:
    """Read a file of text or a ``.parquet`` file, like the table of a `TableEncoding`, whose targets may be absent.

    Columns that are not known to hold numbers are read as text, and so are targets. The separator is the usual one that
    divides most of the first lines into as many cells as there are names, or by which most inputs of the encoding are
    found.

    Raises `DataError`: the file cannot be read, is no table, or its columns have no names or equal ones.
    """
    options = like.options if like else options
    texts = {*targets, *options.text_columns, *options.csv.get("parse_dates", ())}
    texts |= {*like.targets, *like.categories, *like.kinds} if like else set()
    called, given = shown_path(path), options.csv.get("encoding", "utf-8")
    try:
        with open_regular(path) as file:
            if path.suffix.lower() == ".parquet":
                return Table(_read_parquet(called, file), options)
            marked = _announced(called, file, given)
        return _Text(path, called, marked or given, options, like).read(texts)
    except UnicodeError as error:
        encoding, what = (marked or given).upper(), one_line(str(error))
        raise DataError(f"{called} is not a text file in {encoding} ({what}): {NO_TEXT}") from error
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror or one_line(str(error))}") from error
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
        frame = pandas.read_parquet(file)
    # pyarrow is missing, or raises what derives from one of the others: types that it does not read, for example.
    except (ImportError, ValueError, OSError, LookupError, TypeError, NotImplementedError) as error:
        raise DataError(f"{called}: pandas cannot read the .parquet file: {one_line(str(error))[:200]}") from error
    return named_frame(frame, called)


def _announced(called: str, file: io.BufferedReader, given: str) -> str | None:
    """The encoding that the first bytes announce; `DataError` for characters NUL, at which pandas would end a cell."""
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    start = file.read(3)
    found = next((encoding for mark, encoding in marks.items() if start.startswith(mark)), None)
    file.seek(0)
    if not re.search("16|32", found or given) and any(b"\0" in block for block in iter(lambda: file.read(BLOCK), b"")):
        raise DataError(f"{called} has the character NUL, which no text has: {NO_TEXT}")
    return found


class _Text:
    """A file of text, and the arguments of pandas for it, with what is found in its first lines."""

    def __init__(self, path: Path, called: str, encoding: str, options: TableOptions, like: Any) -> None:
        self.path, self.called, self.encoding, self.options, self.like = path, called, encoding, options, like
        self.known_inputs, self.csv = set() if like is None else {*like.columns}, dict(options.csv)
        header = options.csv.get("header", "None" if "names" in options.csv else 0)
        self.header: int | None = None if header == "None" else header
        skipped, lines = options.csv.get("skiprows", 0), list[str]()
        before = skipped + (self.header or 0)
        with self.opened() as file:  # at least three lines from the header line on
            while len(lines) < before + 3 or (len(lines) < before + SAMPLE_LINES and sum(map(len, lines)) < SAMPLE):
                lines.append(file.readline())
        self.lines = lines[skipped:]
        self.names, self.has_row_names = self.columns(*self.separated())

    def opened(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(open_regular(self.path), encoding=self.encoding, newline="")

    def read(self, texts: Collection[str]) -> Table:
        """The table, without a column of row names and an empty last one."""
        import pandas

        places = [n for n, name in enumerate(self.names) if name in texts]
        is_wide = len(places) < FEW < len(self.names) / FEW  # types by name would make a Series of each column
        frame = self.by_pandas(**({} if is_wide else {"dtype": dict.fromkeys(places, str)}))
        for place, cells in self.by_pandas(usecols=places, dtype=str).items() if is_wide and places else ():
            frame.isetitem(place, cells)
        left_out = [n for n, name in enumerate(self.names) if not name and (n == 0 or frame[n].isna().all())]
        kept = [name for n, name in enumerate(self.names) if n not in left_out]
        require_names(self.called, kept, f"; {FIRST_LINE}{PREAMBLE}")
        frame = frame.drop(columns=left_out) if left_out else frame
        frame.columns = pandas.Index(kept, dtype=object)  # `set_axis` would copy a million columns one by one
        return Table(frame, replace(self.options, csv=self.csv), self.has_row_names, self.raw)

    def raw(self, wanted: Iterable[str]) -> DataFrame:
        """Some columns, with every cell as the text that it is."""
        chosen = set(wanted)
        places = [n for n, name in enumerate(self.names) if name in chosen]
        frame = self.by_pandas(usecols=places, dtype=str, na_filter=False)
        return frame.set_axis([self.names[place] for place in places], axis=1)

    def split(self, separator: str) -> list[list[str]]:
        """The records of the first lines that are not blank."""
        form = {key: self.csv[key] for key in ("quotechar", "escapechar") if key in self.csv}
        comment = self.csv.get("comment")
        lines = [line.partition(comment)[0] if comment else line for line in self.lines]
        if separator == r"\s+":
            lines, separator = [" ".join(line.split()) for line in lines], " "
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, **form)
        return [cells for record in reader if (cells := [cell.strip() for cell in record]) not in ([], [""])]

    def separated(self) -> list[list[str]]:
        """Find the separator, and return the names, which a file without header line does not have, and first rows."""
        own, inputs, found = self.csv.get("sep"), self.known_inputs, dict[str, list[list[str]]]()
        for separator in dict.fromkeys([*filter(None, [own]), *(SEPARATORS if inputs or not own else ())]):
            with suppress(csv.Error):  # a line without this separator may be too long for a cell
                records = self.split(separator)
                found[separator] = [[], *records] if self.header is None else records[self.header :] or [[]]
        if not found:
            how = f"a cell has more than {csv.field_size_limit():,} characters"
            raise DataError(f"{self.called} is not a text file of columns: {how}")

        def fits(separator: str) -> tuple[int, ...]:
            names, *rows = found[separator]
            sizes = Counter(map(len, rows))
            columns = len(names) or max(sizes, key=lambda size: sizes[size], default=0)
            is_own = separator == own and max(sizes, default=0) >= min(2, len(inputs))
            fitting = sum(times for size, times in sizes.items() if size > 1 and size - columns in (0, 1))
            return len(inputs.intersection(as_names(names))), is_own, fitting, columns

        self.csv["sep"] = max(found, key=fits)
        return found[self.csv["sep"]]

    def columns(self, names: list[str], *rows: list[str]) -> tuple[list[str], bool]:
        """The names of all columns, empty for those without, and whether rows begin with a name of their own."""
        if not rows:
            raise DataError(f"{self.called}: no line of data after the header line")
        width, names = len(rows[0]), list(as_names(names))
        if self.header is None:
            self.csv.setdefault("names", [str(number) for number in range(width)])
            return self.given_names(width), False
        if "header" not in self.csv and self.known_inputs.isdisjoint(names) and _are_data(names, rows):
            seen = f"the first line seems to hold data ({column_list(names)})"
            raise DataError(f"{self.called}: {seen}; {FIRST_LINE}")
        if "names" in self.csv:
            names = self.given_names(len(names))
        if width == len(names) + 1 > 2 and names[-1]:
            is_empty = not any(row[len(names) :] not in ([], [""]) for row in rows)  # pandas leaves such a column out
            differ = len({row[0] for row in rows}) == len(rows) > 1
            if self.like.has_row_names if self.like else differ and not is_empty:
                return ["", *names], True
            width -= is_empty
        if width > len(names):
            which = f"(its columns are separated by {self.csv['sep']!r}){PREAMBLE}"
            raise DataError(f"{self.called}: the first row has {width} cells, the header line has {len(names)} {which}")
        return names, False

    def given_names(self, columns: int) -> list[str]:
        """The names that are stated, or those but the known targets in a table that lacks these."""
        names, targets = self.csv["names"], self.like.targets if self.like else ()
        for those in (list(names), [name for name in names if name not in targets]):
            if len(those) == columns:
                return those
        raise SettingError("data.csv.names", list(names)[:NAMES_SHOWN], f"{self.called} has {columns} columns")

    def by_pandas(self, **more: Any) -> DataFrame:
        """The rows, with columns 0, 1, …; later rows than the first may lack their last cells."""
        import pandas

        if (columns := len(self.names)) > MOST_COLUMNS:
            how = f"are more than {MOST_COLUMNS:,}, which a table may have; store numbers as arrays in an .npz file"
            raise DataError(f"{self.called}: {columns:,} columns {how}")
        options = {key: value for key, value in self.csv.items() if key not in NOT_PASSED} | more
        options |= {} if pandas.__version__ >= "3.1" else {"float_precision": "round_trip"}  # now the default
        options |= {"header": self.header, "names": range(columns), "index_col": False, "skipinitialspace": True}
        try:
            with warnings.catch_warnings(), self.opened() as file:
                warnings.simplefilter("error", pandas.errors.ParserWarning)
                return pandas.read_csv(file, low_memory=False, **options)
        except UnicodeError:
            raise
        except (ValueError, OverflowError, pandas.errors.ParserWarning) as error:
            text = one_line(str(error)).rpartition("C error: ")[2][:200]
            raise DataError(f"{self.called} is not a text file of columns: {text}{PREAMBLE}") from error


def _are_data(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header line seems to hold data: at least half are numbers or cells of their column, and not one word.

    Numbers that count the columns are names, and so are those after a first cell above row names.
    """
    numbers = {n: float(text) for n, name in enumerate(names) if NUMBER.fullmatch(text := name.replace(",", "."))}
    in_order = sorted(numbers.values())
    is_count = len(numbers) > 1 and in_order == [in_order[0] + place for place in range(len(numbers))]
    if is_count or (len(names) > 1 and not names[0]):
        return False
    repeated = {n for n, name in enumerate(names) if name and any(row[n : n + 1] == [name] for row in rows)}
    return 2 * len(repeated.union(numbers)) >= len(names) and (bool(numbers) or len(repeated) > 1)
