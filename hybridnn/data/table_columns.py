"""Cells of a column of a table: their texts, what they are, and the number of each."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError

from .table_options import Dates, TableOptions

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats = NDArray[np.float64]
Kind = Literal["number", "truth", "date", "text"]
PLAIN = b"0eE+-. \n"
"""The letters of plain numbers, with 0 for any digit."""
ZEROS = bytes.maketrans(b"123456789", b"000000000")
TRUTH = {"true": 1.0, "false": 0.0}
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?")
YEAR_LAST = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:,? (\d{1,2})(:\d\d(?::\d\d)?))?")
ANY_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*|\d{1,2}[. -]?[A-Za-z]{3,9}[. -]?\d{2,4}")
TOTAL = re.compile(r"(grand |sub)?total|sum|summe|gesamt|insgesamt|mean|average|mittelwert", re.I)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EXACT = 2**53  # from here on, float64 does not represent all integers


@dataclass(frozen=True)
class Numbers:
    """How numbers are written.

    Parameters
    ----------
    decimal : str
        Decimal separator.
    thousands : str
        Separator of thousands, or an empty text.
    """

    decimal: str = "."
    thousands: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What a number looks like; the sign may be Unicode's minus."""
        point, group = re.escape(self.decimal), re.escape(self.thousands).replace(r"\ ", "[ \u00a0\u202f]")
        groups = rf"[1-9]\d{{0,2}}(?:{group}\d{{3}})+"
        if self.thousands == ",":  # and as in India: 1,00,000
            groups += r"|[1-9]\d?(?:,\d\d)+,\d{3}"
        whole = rf"(?:{groups}|\d+)" if self.thousands else r"\d+"
        return re.compile(
            rf"[+\-\u2212]?(?:(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?|inf|infinity)", re.I | re.A
        )

    def parse(self, text: str) -> float | None:
        """The number, or None for other text."""
        if not self.pattern.fullmatch(text):
            return None
        for sign in (self.thousands, "\u00a0\u202f" if self.thousands == " " else ""):
            for letter in sign:
                text = text.replace(letter, "")
        return float(text.replace(self.decimal, ".").replace("\u2212", "-"))


def decide_numbers(texts: Iterable[str], options: TableOptions) -> tuple[Numbers, str]:
    """How the cells of a table write numbers, and one cell that may be read in two ways, or an empty text.

    The form in which most cells are numbers; without a difference, decimal points.
    """
    decimals = [".", ","] if options.decimal == "auto" else [options.decimal]
    groups = {"auto": ["", ",", "."], "none": [""]}.get(options.thousands, [options.thousands])
    forms = [Numbers(decimal, group) for decimal in decimals for group in groups if decimal != group]
    unsure = [text for text in texts if re.search(r"\d[.,]\d", text)]
    scores = [sum(form.pattern.fullmatch(text) is not None for text in unsure) for form in forms]
    best = [form for form, score in zip(forms, scores, strict=True) if score == max(scores)]
    is_unsure = len({form.decimal for form in best}) > 1 and best[0].thousands == ","
    grouped = [text for text in unsure if Numbers(".", ",").pattern.fullmatch(text) and "," in text]
    if best[0].decimal == "," and options.decimal == options.thousands == "auto":
        # a few other cells among those that look like thousands
        is_unsure = 0 < 10 * (sum("," in text for text in unsure) - len(grouped)) < len(grouped)
    return best[0], next(iter(grouped), "") if is_unsure else ""


GROUPED = Numbers(",", ".").pattern


def thousands_with_points(texts: Iterable[str], shortest: int) -> str:
    """A cell of a column of numbers whose points, all before three digits, may separate thousands, or an empty text.

    Some numbers have no points, and these have at least `shortest` and at most three digits.
    """
    found = ["", ""]
    for text in texts:
        has_point, digits = "." in text, len(text.lstrip("+-\u2212"))
        if not (GROUPED.fullmatch(text) if has_point else shortest <= digits <= 3):
            return ""
        found[has_point] = found[has_point] or text
    return found[True] if all(found) else ""


class Column(NamedTuple):
    """What was found in a column.

    Attributes
    ----------
    codes : ndarray of int64, shape (rows,)
        The place of each row's cell in `texts`, -1 for missing cells.
    texts : tuple of str
        The different cells, without surrounding spaces.
    numbers : ndarray of float64, shape (texts,)
        The number of each text, a truth value as 0 or 1, a date in days since 1970; NaN for other text.
    """

    name: str
    kind: Kind
    codes: NDArray[np.int64]
    texts: tuple[str, ...]
    numbers: Floats
    missing_words: tuple[str, ...] = ()  # other than empty cells, as they are written

    @property
    def missing(self) -> int:
        """Number of missing cells."""
        return int((self.codes < 0).sum())

    @property
    def values(self) -> Floats:
        """The number of each row, NaN for missing cells, shape (rows,)."""
        return np.append(self.numbers, np.nan)[self.codes]

    def odd(self) -> list[str]:
        """The different cells that are no numbers, dates or truth values."""
        return [text for text, number in zip(self.texts, self.numbers.tolist(), strict=True) if number != number]

    def rows(self, texts: Sequence[str]) -> NDArray[np.intp]:
        """The rows that hold one of these texts, from 0."""
        wanted = set(texts)
        return np.flatnonzero(np.array([*(text in wanted for text in self.texts), False])[self.codes])


def is_native(dtype: Any) -> bool:
    """Whether the dtype of a column is of numbers or truth values, as in data frames."""
    return bool(dtype.kind in "biuf")


def read_column(
    column: Series[Any], options: TableOptions, numbers: Numbers, called: str, kind: Kind | None = None
) -> Column:
    """The cells of a column as text, and as numbers; its kind, unless given, is decided by all cells.

    Raises `DataError` for cells that are no texts and cannot be compared.
    """
    import pandas

    name, words = str(column.name), options.words
    try:
        codes, cells = pandas.factorize(column)
    except TypeError as error:  # lists, for example
        raise DataError(f"{called}: column {name!r} holds objects that cannot be compared: {error}") from None
    texts = [_cell_text(cell) for cell in cells]
    distinct = [text for text in dict.fromkeys(texts) if text not in words]
    if kind != "text" and (missing := _numbers_among(words, numbers)):
        distinct = [text for text in distinct if numbers.parse(text) not in missing]
    place = {text: number for number, text in enumerate(distinct)}
    places = np.array([*(place.get(text, -1) for text in texts), -1], np.int64)[codes]
    if kind is None and isinstance(column.dtype, pandas.CategoricalDtype):
        kind = "text"
    kind, values = _kind_of(distinct, numbers, options.dates, kind)
    absent = tuple(text for text in dict.fromkeys(texts) if text and text not in place)
    return Column(name, kind, places, tuple(distinct), values, absent)


def _cell_text(cell: object) -> str:
    """A cell as text; whole numbers have no decimal point, and times are in ISO's form."""
    if isinstance(cell, str):
        text = cell.strip()
        return text if text.isascii() else unicodedata.normalize("NFC", text)
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, datetime) else str(cell).strip()


def _kind_of(texts: Sequence[str], numbers: Numbers, dates: Dates, kind: Kind | None) -> tuple[Kind, Floats]:
    """What texts are, and the number of each, NaN where it has none."""
    readers: dict[Kind, Callable[[str], float | None]] = {
        "number": numbers.parse,
        "truth": lambda text: TRUTH.get(text.casefold()),
        "date": partial(days_of, dates=dates),
    }
    for name, read in readers.items():
        if kind in (None, name):
            found = [read(text) for text in texts]
            values = np.array([np.nan if value is None else value for value in found], np.float64)
            if kind == name or not np.isnan(values).any():
                return name, values
            if name == "number":
                as_numbers = values
    return "text", as_numbers if kind is None else np.full(len(texts), np.nan)


def days_of(text: str, dates: Dates) -> float | None:
    """Days since 1970 of a date, with or without a time; None for other text."""
    if dates != "iso" and (found := YEAR_LAST.fullmatch(text)):
        day, _, month, year, hour, minutes = found.groups()
        if dates == "month-first":
            day, month = month, day
        text = f"{year}-{month:0>2}-{day:0>2}" + (f"T{hour:0>2}{minutes}" if hour else "")
    if not DATE.fullmatch(text):
        return None
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace("Z", "+00:00")))
        return ((time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - EPOCH).total_seconds() / 86400
    return None


def odd_dates(texts: Sequence[str], dates: Dates) -> list[str]:
    """The texts that are no dates, if most look like dates in any form; else none."""
    if 2 * sum(ANY_DATE.fullmatch(text) is not None for text in texts) <= len(texts):
        return []
    return [text for text in texts if days_of(text, dates) is None]


def label_text(text: str, numbers: Numbers) -> str:
    """A label as text: a whole number with decimals has none."""
    if numbers.decimal in text and (value := numbers.parse(text)) is not None and value.is_integer():
        return str(int(value))
    return text


def plain_numbers(table: DataFrame, names: Sequence[str], numbers: Numbers, words: frozenset[str]) -> Floats | None:
    """Some columns, shape (rows, columns), if all are numbers by dtype, or texts of plain numbers; else None.

    Numbers that `words` call missing are NaN.
    """
    found = _as_floats(table, names, numbers)
    if found is not None:
        for value in _numbers_among(words, numbers):
            found = np.where(found == value, np.nan, found)
    return found


def _numbers_among(words: frozenset[str], numbers: Numbers) -> list[float]:
    """The words that are numbers, such as ``-999``."""
    return [value for value in map(numbers.parse, words) if value is not None]


def _as_floats(table: DataFrame, names: Sequence[str], numbers: Numbers) -> Floats | None:
    """As `plain_numbers`, but for the words."""
    dtypes = table.dtypes.to_numpy()
    kinds = {dtype.kind for dtype in dtypes}
    if len(kinds) > 1:
        kinds = {dtype.kind for dtype in dtypes[table.columns.get_indexer(list(names))]}
        table = table[list(names)]
    if kinds <= set("biuf"):
        return _matrix(table, names, np.float64)
    if kinds != {"O"} or numbers != Numbers():
        return None
    cells = _matrix(table, names, object)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        text = ("\n" + "\n".join(cells.ravel().tolist())).encode("ascii").translate(ZEROS)
        if b"\n00" not in text and not text.translate(None, PLAIN):  # leading zeros are of codes
            found: Floats = cells.astype(np.float64)
            return found
    return None


def _matrix(frame: DataFrame, columns: Sequence[str], dtype: Any) -> NDArray[Any]:
    """Some columns, shape (rows, columns), with NaN for the missing values of columns of numbers."""
    options = {} if dtype is object else {"na_value": np.nan}
    if 2 * len(columns) < frame.shape[1]:
        few: NDArray[Any] = frame[list(columns)].to_numpy(dtype, **options)
        return few
    # pandas selects columns one by one, and NumPy a million at once.
    values: NDArray[Any] = frame.to_numpy(dtype, **options)
    chosen: NDArray[Any] = np.take(values, frame.columns.get_indexer(list(columns)), axis=1)
    return chosen
