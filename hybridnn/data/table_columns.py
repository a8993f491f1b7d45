"""Cells of a column of a table: their texts, what they are, and the number of each."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError

from .table_options import Csv

if TYPE_CHECKING:
    from pandas import DataFrame

Floats = NDArray[np.float64]
Kind = Literal["number", "truth", "date", "text"]
Reader = Callable[[Sequence[str], Csv], Floats]
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?")
ISO = "ISO8601"  # for pandas, the form of such dates
WIDE = 1000  # columns from which pandas selects columns more slowly than NumPy


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


def number_block(table: DataFrame, places: NDArray[np.intp]) -> Floats:
    """The columns of numbers at these places, shape (rows, columns), with NaN for missing values."""
    if len(places) < WIDE:
        block: Floats = table.iloc[:, places].to_numpy(np.float64, na_value=np.nan)
        return block
    everything = table.to_numpy(np.float64 if len(places) == table.shape[1] else object, na_value=np.nan)
    return np.take(everything, places, axis=1).astype(np.float64, copy=False)


def read_columns(
    table: DataFrame, places: NDArray[np.intp], csv: Csv, called: str, kinds: Mapping[str, Kind]
) -> Iterator[Column]:
    """The columns at these places; `kinds` states what some are, and all cells of a column decide of others.

    Raises `DataError` for cells that are no texts and cannot be compared.
    """
    import pandas

    chosen = table.iloc[:, places]
    block = chosen.astype(object).to_numpy(copy=True)
    block[chosen.isna().to_numpy(bool)] = None
    for place, (name, dtype) in enumerate(zip(chosen.columns, chosen.dtypes, strict=True)):
        cells = block[:, place].tolist()
        try:
            found = {cell: "" if cell is None else _cell_text(cell) for cell in dict.fromkeys(cells)}
        except TypeError as error:  # lists, for example
            raise DataError(f"{called}: column {name!r} holds objects that cannot be compared: {error}") from None
        texts = tuple(dict.fromkeys(filter(None, found.values())))
        number = dict(zip(texts, range(len(texts)), strict=True))
        codes = {cell: number.get(text, -1) for cell, text in found.items()}
        kind = kinds.get(name, "text" if isinstance(dtype, pandas.CategoricalDtype) else None)
        kind, numbers = _decided(name, texts, csv, kind)
        yield Column(name, kind, np.fromiter(map(codes.__getitem__, cells), np.int64, len(cells)), texts, numbers)


def _cell_text(cell: object) -> str:
    """A cell as text; whole numbers have no decimal point, and times are in ISO's form."""
    if isinstance(cell, str):
        return unicodedata.normalize("NFC", cell.strip())
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, date) else str(cell).strip()


def _decided(name: str, texts: tuple[str, ...], csv: Csv, kind: Kind | None) -> tuple[Kind, Floats]:
    """What texts are, unless `kind` states it, and the number of each, NaN where it has none."""
    readers: dict[Kind, Callable[[Sequence[str], Csv], Floats]] = {
        "number": numbers_of,
        "truth": _truths_of,
        "date": partial(_days_of, name),
    }
    found: dict[Kind, Floats] = {}
    for other in readers if kind is None else readers.keys() & {kind}:
        found[other] = readers[other](texts, csv)
        if kind or (texts and not np.isnan(found[other]).any()):
            return other, found[other]
    return "text", found.get("number", np.full(len(texts), np.nan))


@lru_cache(maxsize=64)
def number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """What a number looks like; the sign may be Unicode's minus, and groups have three digits, or two as in India."""
    point, group = re.escape(decimal), "[ \u00a0\u202f]" if thousands == " " else re.escape(thousands)
    groups = rf"[1-9]\d{{0,2}}(?:{group}\d{{3}})+|[1-9]\d?(?:{group}\d\d)+{group}\d{{3}}|" if thousands else ""
    plain = rf"(?:(?:{groups}\d+)(?:{point}\d*)?|{point}\d+)(?:e[+-]?\d+)?"
    return re.compile(rf"[+\-\u2212]?(?:{plain}|inf|infinity)", re.I | re.A)


def numbers_of(texts: Sequence[str], csv: Csv) -> Floats:
    """The number of each text, NaN for other text."""
    decimal, thousands = csv.get("decimal", "."), csv.get("thousands", "")
    pattern, groups = number_pattern(decimal, thousands), " \u00a0\u202f" if thousands == " " else thousands
    plain = str.maketrans({**dict.fromkeys(groups, ""), decimal: ".", "\u2212": "-"})
    return np.array([float(text.translate(plain)) if pattern.fullmatch(text) else np.nan for text in texts], np.float64)


def has_decimals(texts: Sequence[str], csv: Csv) -> bool:
    """Whether numbers have decimals, exponents or separators of thousands, as those of a regression."""
    return any(
        sign in text.casefold() for text in texts for sign in {csv.get("decimal", "."), csv.get("thousands", "e"), "e"}
    )


def label_text(text: str, csv: Csv) -> str:
    """A label as text: a whole number with decimals has none."""
    number = numbers_of([text], csv)[0]
    return str(int(number)) if csv.get("decimal", ".") in text and number.is_integer() else text


def _truths_of(texts: Sequence[str], csv: Csv) -> Floats:
    words = {word: 0.0 for word in ("false", "False", "FALSE", *csv.get("false_values", ()))}
    words |= {word: 1.0 for word in ("true", "True", "TRUE", *csv.get("true_values", ()))}
    return np.array([words.get(text, np.nan) for text in texts], np.float64)


def _days_of(name: str, texts: Sequence[str], csv: Csv) -> Floats:
    """Days since 1970 of the dates of a column, with or without a time; NaN for text of another form."""
    import pandas

    form = csv.get("date_format", ISO)
    form = form.get(name, ISO) if isinstance(form, Mapping) else form
    cells = [text if form != ISO or ISO_DATE.fullmatch(text) else None for text in texts]
    if not any(cells):
        return np.full(len(texts), np.nan)
    times = pandas.to_datetime(pandas.Series(cells), format=form, errors="coerce", utc=True).dt.as_unit("us")
    return np.where(times.isna(), np.nan, times.astype("int64") / 86_400e6)


def with_date_formats(table: DataFrame, csv: Csv) -> Csv:
    """`csv` with the form of the dates of each column of ``parse_dates``, as pandas guesses it from the first date."""
    from pandas.tseries.api import guess_datetime_format

    given, forms = csv.get("date_format", {}), dict[str, str]()
    for name in csv.get("parse_dates", ()) if isinstance(given, Mapping) else ():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a month above 12 beside `dayfirst`
            cells = [str(cell).strip() for cell in table[name].dropna()[:WIDE]]
            found = (
                ISO if ISO_DATE.fullmatch(cell) else guess_datetime_format(cell, csv.get("dayfirst", False))
                for cell in cells
            )
            forms[name] = next(filter(None, found), ISO)
    return {**csv, "date_format": {**forms, **given}} if forms else csv
