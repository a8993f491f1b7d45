"""Columns of a table as inputs and targets of a network: the number of every cell, as it was decided in training."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.text import NAMES_SHOWN, column_list, counted, printable

from .table_file import NUMBER, Csv, TableOptions, as_names, named_frame, require_columns

if TYPE_CHECKING:
    from pandas import DataFrame

Floats = NDArray[np.float64]
Kind = Literal["number", "truth", "date", "text"]
Names = Sequence[str]
Texts = Mapping[str, Sequence[str]]
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?")
DAY_FIRST = re.compile(r"^(\d\d?)([./-])(\d\d?)\2(\d{4})\b")  # 31.12.2026
ISO = "ISO8601"  # for pandas, the form of such dates
CELLS_SHOWN = 5  # texts of odd cells in a message
TARGET_ADVICE = 'only inputs can be filled in; set data.missing_targets to "drop" to leave out these rows'


# -- cells -------------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """What was found in a column."""

    name: str
    kind: Kind
    codes: NDArray[np.int64]  # the place of each row's cell in `texts`, -1 for missing cells; shape (rows,)
    texts: tuple[str, ...]  # the different cells, without surrounding spaces
    # the number of each text, a truth value as 0 or 1, a date in days since 1970; NaN for other text; shape (texts,)
    numbers: Floats

    def odd(self) -> list[str]:
        """The different cells that are no numbers, dates or truth values."""
        return [text for text, number in zip(self.texts, self.numbers.tolist(), strict=True) if number != number]

    def rows(self, texts: Sequence[str]) -> NDArray[np.intp]:
        """The rows that hold one of these texts, from 0."""
        wanted = set(texts)
        return np.flatnonzero(np.array([*(text in wanted for text in self.texts), False])[self.codes])

    def odd_cells(self) -> str:
        """For a message, how many cells are no numbers, dates or truth values, and some of them."""
        count, rows = len(self.rows(self.odd())), int((self.codes >= 0).sum())
        what = {"truth": "truth value", "date": "date"}.get(self.kind, "number")
        cells = f"{count:,} of {rows:,} cells are no {what}s" if count < rows else f"no cell is a {what}"
        return f"{printable(self.name, 40)}: {cells} ({self.shown(self.odd())})"

    def shown(self, texts: Sequence[str]) -> str:
        """A few texts, each with its first row, from 1: ``'?' in row 6, 'x' in row 9 and 3 more``."""
        shown = [f"{repr(text)[:40]} in row {self.rows([text])[0] + 1:,}" for text in texts[:CELLS_SHOWN]]
        return ", ".join(shown) + f" and {len(texts) - CELLS_SHOWN:,} more" * (len(texts) > CELLS_SHOWN)


def read_columns(
    table: DataFrame, names: Names, csv: Csv, called: str, kinds: Mapping[str, Kind], targets: Names = ()
) -> tuple[list[str], Floats, dict[str, Column]]:
    """The names and values, shape (rows, columns), of columns that pandas read as numbers, and the other columns.

    `kinds` states what some columns are, and all cells of a column decide of others. Targets are among the others.

    Raises `DataError` for cells that are no texts and cannot be compared.
    """
    import pandas

    places, columns = table.columns.get_indexer(list(names)), dict[str, Column]()
    are_numbers = np.array([dtype.kind in "iuf" for dtype in table.dtypes], bool)[places]
    are_free = [kinds.get(name, "number") == "number" and name not in targets for name in names]
    is_plain = are_numbers & np.array(are_free, bool)
    numbers = table.iloc[:, places[is_plain]].to_numpy(np.float64, na_value=np.nan)
    chosen = table.iloc[:, places[~is_plain]]
    block = chosen.astype(object).to_numpy()
    for place, (name, dtype) in enumerate(chosen.dtypes.items()):
        try:
            codes, found = pandas.factorize(block[:, place])
        except TypeError as error:  # lists, for example
            raise DataError(f"{called}: column {name!r} holds objects that cannot be compared: {error}") from None
        stripped = [_cell_text(cell) for cell in found]
        texts = tuple(dict.fromkeys(filter(None, stripped)))
        place_of = {text: number for number, text in enumerate(texts)} | {"": -1}
        kind = kinds.get(name, "text" if isinstance(dtype, pandas.CategoricalDtype) else None)
        places_of_texts = np.array([*map(place_of.__getitem__, stripped), -1], np.int64)
        kind, values = _decided(name, texts, csv, kind)
        columns[name] = Column(name, kind, places_of_texts[codes], texts, values)
    return list(compress(names, is_plain)), numbers, columns


def _cell_text(cell: object) -> str:
    """A cell as text; whole numbers have no decimal point, and times are in ISO's form."""
    if isinstance(cell, str):
        return unicodedata.normalize("NFC", cell.strip())
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, date) else str(cell).strip()


def _decided(name: str, texts: Sequence[str], csv: Csv, kind: Kind | None) -> tuple[Kind, Floats]:
    """What texts are, unless `kind` states it, and the number of each, NaN where it has none."""
    words = dict.fromkeys(["false", "False", "FALSE", *csv.get("false_values", ())], 0.0)
    words |= dict.fromkeys(["true", "True", "TRUE", *csv.get("true_values", ())], 1.0)
    readings: dict[Kind, Floats] = {
        "number": numbers_of(texts, csv),
        "truth": np.array([words.get(text, np.nan) for text in texts], np.float64),
        "date": _days_of(name, texts, csv),
    }
    for other, numbers in readings.items():
        if kind == other or (kind is None and texts and not np.isnan(numbers).any()):
            return other, numbers
    return "text", readings["number"]


def numbers_of(texts: Sequence[str], csv: Csv) -> Floats:
    """The number of each text, NaN for other text; as by pandas, but the minus may be Unicode's, and spaces wide."""
    groups = csv.get("thousands", "").replace(" ", " \u00a0\u202f")
    plain = str.maketrans({".": "?", **dict.fromkeys(groups, ""), csv.get("decimal", "."): ".", "\u2212": "-"})
    cells = [text.translate(plain) for text in texts]
    return np.array([float(cell) if NUMBER.fullmatch(cell) else np.nan for cell in cells], np.float64)


def _days_of(name: str, texts: Sequence[str], csv: Csv) -> Floats:
    """Days since 1970 of the dates of a column, with or without a time; NaN for text of another form."""
    import pandas

    form = csv.get("date_format", ISO)
    form = form.get(name, ISO) if isinstance(form, Mapping) else form
    if form == ISO and csv.get("dayfirst", False):
        texts = [DAY_FIRST.sub(lambda day: f"{day[4]}-{day[3]:0>2}-{day[1]:0>2}", text) for text in texts]
    cells = [text if form != ISO or ISO_DATE.fullmatch(text) else None for text in texts]
    if not any(cells):
        return np.full(len(texts), np.nan)
    times = pandas.to_datetime(pandas.Series(cells), format=form, errors="coerce", utc=True).dt.as_unit("us")
    return np.where(times.isna(), np.nan, times.astype("int64") / 86_400e6)


# -- columns of the training -------------------------------------------------------------------------------------------


class EncodedTable(NamedTuple):
    """Samples of a table."""

    x: Floats  # shape (samples, features)
    y: NDArray[Any] | None  # labels, shape (samples,), or targets, shape (samples, targets); None without targets


@dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table become the inputs and targets of a network; ``table.json`` of a run folder.

    Attributes
    ----------
    columns, targets : tuple of str
        Input columns, in order, and target columns.
    key : str
        A first column that identifies the rows, or an empty text.
    classes : tuple of str
        Names of the classes, label 0 first; empty for regression.
    categories : mapping of str to tuple of str
        Values of each text column among the inputs; every value is one input, in this order.
    kinds : mapping of str to str
        ``"truth"`` for columns of truth values, which become 0 and 1, and ``"date"`` for dates, which become days
        since 1970.
    means : tuple of float
        With ``missing = "mean"``, what replaces missing values, one number per feature.
    options : TableOptions
        How the table was read, with what was found; other tables are read in the same way.
    has_row_names : bool
        Whether rows began with a name of their own, for which the header line has none.
    """

    columns: tuple[str, ...]
    targets: tuple[str, ...] = ()
    key: str = ""
    classes: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    means: tuple[float, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    has_row_names: bool = False

    @property
    def features(self) -> int:
        """Inputs of the network."""
        return len(self.columns) + sum(len(values) - 1 for values in self.categories.values())

    @property
    def feature_columns(self) -> list[str]:
        """The column of every feature."""
        return [name for name in self.columns for _ in self.categories.get(name, ("",))]

    def encode(
        self, table: DataFrame, called: str = "the table", *, targets: str | Sequence[str] | None = None
    ) -> EncodedTable:
        """Encode the samples of a table that has the columns of this encoding, in any order, and others.

        `targets` are columns in place of its own; empty for samples without targets.

        Raises `DataError`, which begins with `called`: a column is missing, or has values that cannot be encoded.
        """
        names = self.targets if targets is None else as_names(targets)
        if not all(isinstance(name, str) for name in table.columns):
            table = named_frame(table, called)
        require_columns(called, table, self.columns, "which the inputs need")
        require_columns(called, table, names, "which holds targets")
        if self.classes and len(names) > 1:
            raise SettingError("data.targets", list(names[:NAMES_SHOWN]), "classification needs one target column")
        x, columns = self._values(table, self.columns, self.categories, called), [*self.feature_columns, *names]
        labels = dict.fromkeys(names, self.classes) if self.classes else {}
        y = self._values(table, names, labels, called, one_hot=False)
        _refuse(np.concatenate([np.isinf(x), np.isinf(y)], axis=1), columns, f"{called}: infinite values")
        in_x, in_y, missing = np.isnan(x), np.isnan(y), self.options.missing
        left_out = in_y.any(axis=1) & ("drop" in (missing, self.options.missing_targets))
        left_out |= in_x.any(axis=1) & (missing == "drop" and bool(names))
        if left_out.any():
            x, y, in_x, in_y = (part[~left_out] for part in (x, y, in_x, in_y))
        if self.means:
            x, in_x = np.where(in_x, self.means, x), np.zeros_like(in_x)
        how = f"; {TARGET_ADVICE if in_y.any() else 'the network was trained without such samples'}"
        _refuse(np.concatenate([in_x, in_y], axis=1), columns, f"{called}: missing values", how)
        return EncodedTable(x, None if not names else y[:, 0].astype(np.int64) if self.classes else y)

    def with_means(
        self, table: DataFrame, called: str, training: Callable[[int], NDArray[np.int64]] | None
    ) -> TableEncoding:
        """This encoding with the means of the inputs, if it replaces missing values by them.

        They are those of the samples whose indices `training` returns for the number of samples; by default of all.
        Raises `DataError` if a column has no value at all.
        """
        if self.options.missing != "mean":
            return self
        x = self._values(table, self.columns, self.categories, called)
        rows = x if training is None else x[training(len(x))]
        counts = (~np.isnan(rows)).sum(axis=0)
        if not counts.all():
            empty = sorted({self.feature_columns[place] for place in np.flatnonzero(counts == 0)})
            raise DataError(f"{called}: no value in the training samples of {column_list(empty)}: no mean to fill in")
        return replace(self, means=tuple((np.nansum(rows, axis=0) / counts).tolist()))

    @classmethod
    def from_dict(cls, values: Any) -> TableEncoding:
        """Make from the values of its fields, as JSON has them; `DataError` if they are others."""
        from pydantic import TypeAdapter, ValidationError

        from hybridnn.utils.settings_models import first_problem

        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise DataError(f"not the columns of a table: {first_problem(error)}") from error

    def _values(self, table: DataFrame, names: Names, texts: Texts, called: str, *, one_hot: bool = True) -> Floats:
        """Columns as numbers, shape (rows, features), NaN for missing values; `texts` are the values of those of text.

        The number of such a value is its place, if there is not an input of each of them.
        """
        kinds: dict[str, Kind] = {**dict.fromkeys(names, "number"), **self.kinds, **dict.fromkeys(texts, "text")}
        plain, numbers, others = read_columns(table, names, self.options.csv, called, kinds)
        if odd := [column.odd_cells() for name, column in others.items() if name not in texts and column.odd()]:
            raise DataError(f"{called}: {'; '.join(odd[:NAMES_SHOWN])}")
        parts: dict[str, Floats] = dict(zip(plain, numbers.T[..., None], strict=True))
        for name, column in others.items():
            known = texts.get(name, ())
            values = _places(column, known, called) if name in texts else column.numbers
            part = np.append(values, np.nan)[column.codes][:, None]
            is_one_hot = one_hot and name in texts
            parts[name] = np.where(np.isnan(part), np.nan, part == np.arange(len(known))) if is_one_hot else part
        return np.concatenate([np.empty((len(table), 0)), *(parts[name] for name in names)], axis=1)


def _places(column: Column, values: Sequence[str], called: str) -> Floats:
    """The place of each text of a column among `values`."""
    known = {value: float(number) for number, value in enumerate(values)}
    if unknown := sorted(text for text in column.texts if text not in known):
        shown = f"{column_list([repr(text) for text in unknown])} ({counted(len(column.rows(unknown)), 'row')})"
        raise DataError(f"{called}: column {column.name!r} has values that the training data did not have: {shown}")
    return np.array([known[text] for text in column.texts], np.float64)


def _refuse(bad: NDArray[np.bool_], columns: Sequence[str], what: str, how: str = "") -> None:
    """Raise DataError if values are bad, with the number of rows and the columns."""
    if bad.any():
        names = list(dict.fromkeys(columns[place] for place in np.flatnonzero(bad.any(axis=0)).tolist()))
        rows = np.flatnonzero(bad.any(axis=1))
        where = f"in {len(rows):,} of {len(bad):,} rows, first in row {rows[0] + 1:,}"
        raise DataError(f"{what} {where}: {column_list(names)}{how}")
