"""Columns of a table as numbers: what each column holds is decided once, from all cells of the training table."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.text import command_argument, counted, printable, to_json

from .rows import Task
from .table_file import NAMES_SHOWN, TableOptions, as_names, column_list, named_frame, require_columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series

EXACT = 2**53  # from here on, float64 does not represent all integers
MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_CLASSES = 50  # different whole numbers that are taken for labels in any table
MOST_ODD = 0.2  # share of the cells of a column of numbers that may be something else, by mistake
MOST_ODD_TARGETS = 0.5
FEW_ROWS = 20  # in a table of fewer rows, all texts may differ and be categories or labels

Floats = NDArray[np.float64]
Kind = Literal["number", "truth", "date", "text"]

PLAIN = re.compile(r"[^0-9eE+\-. \n]")
TRUTH = {"true": 1.0, "false": 0.0}
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?")
OTHER_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*|\d{1,2}[. -]?[A-Za-z]{3,9}[. -]?\d{2,4}")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


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
        whole = rf"(?:[1-9]\d{{0,2}}(?:{group}\d{{3}})+|\d+)" if self.thousands else r"\d+"
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


class EncodedTable(NamedTuple):
    """Samples of a table."""

    x: Floats  # shape (samples, features)
    y: NDArray[Any] | None  # labels, shape (samples,), or targets, shape (samples, targets); None without targets
    dropped: int  # rows that were left out because of missing values


class Problem(NamedTuple):
    """Why a table cannot be used as it is."""

    text: str
    advice: str
    settings: Mapping[str, str | list[str]] = {}  # keys of [data], or with their section, that solve it


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
    def missing(self) -> int:
        """Number of missing cells."""
        return int((self.codes < 0).sum())

    @property
    def values(self) -> Floats:
        """The number of each row, NaN for missing cells, shape (rows,)."""
        return np.append(self.numbers, np.nan)[self.codes]

    def odd(self) -> tuple[int, int, list[str]]:
        """Cells that are no numbers, dates or truth values: how many, the first row, and the different texts."""
        no_number = np.append(np.isnan(self.numbers), False)[self.codes]
        rows = np.flatnonzero(no_number)
        texts = [self.texts[code] for code in dict.fromkeys(self.codes[rows].tolist())]
        return len(rows), int(rows[0]) if len(rows) else -1, texts


@dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table become the inputs and targets of a network; ``table.json`` of a run folder.

    Attributes
    ----------
    columns : tuple of str
        Input columns, in order.
    targets : tuple of str
        Target columns.
    key : str
        A first column that is no input or target and identifies the rows, or an empty text.
    classes : tuple of str
        Names of the classes, label 0 first; empty for regression.
    categories : mapping of str to tuple of str
        Values of each text column among the inputs; every value is one input, in this order.
    kinds : mapping of str to str
        ``"truth"`` for columns of truth values, which become 0 and 1, and ``"date"`` for ISO dates, which become days
        since 1970.
    means : tuple of float
        With ``missing = "mean"``, what replaces missing values, one number per feature.
    options : TableOptions
        How the table was read, with what was found for ``"auto"``; other tables are read in the same way.
    """

    columns: tuple[str, ...]
    targets: tuple[str, ...] = ()
    key: str = ""
    classes: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    means: tuple[float, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)

    @property
    def features(self) -> int:
        """Inputs of the network."""
        return len(self.columns) + sum(len(values) - 1 for values in self.categories.values())

    @property
    def numbers(self) -> Numbers:
        """How the table writes numbers."""
        given = self.options
        return Numbers(
            "." if given.decimal == "auto" else given.decimal,
            "" if given.thousands in ("auto", "none") else given.thousands,
        )

    def encode(
        self, table: DataFrame, called: str = "the table", *, targets: str | Sequence[str] | None = None
    ) -> EncodedTable:
        """Encode the samples of a table that has the columns of this encoding, in any order, and others.

        Raises `DataError`: a column is missing, or has values that cannot be encoded.

        Parameters
        ----------
        called : str
            Beginning of messages.
        targets : str or sequence of str, optional
            Target columns, in place of `targets`; empty for samples without targets.
        """
        names = self.targets if targets is None else as_names(targets)
        if not all(isinstance(name, str) for name in table.columns):
            table = named_frame(table, called)
        require_columns(called, table, self.columns, "which the inputs need")
        require_columns(called, table, names, "which holds targets")
        x = self._inputs(table, called)
        y = self._targets(table, names, called) if names else None
        x, y, dropped = self._without_missing(x, y, names, called)
        return EncodedTable(x, y, dropped)

    def with_means(
        self, table: DataFrame, called: str, training: Callable[[int], NDArray[np.int64]] | None
    ) -> TableEncoding:
        """This encoding with the means of the inputs, if it replaces missing values by them.

        Raises `DataError` if a column has no value at all.

        Parameters
        ----------
        training : callable, optional
            Takes the number of samples and returns the indices of those that means are taken of; by default all.
        """
        if self.options.missing != "mean":
            return self
        x = self._inputs(table, called)
        rows = x if training is None else x[training(len(x))]
        there = ~np.isnan(rows)
        counts = there.sum(axis=0)
        if not counts.all():
            empty = sorted({name for name, count in zip(self._feature_columns(), counts, strict=True) if not count})
            raise DataError(f"{called}: no value in the training samples of {column_list(empty)}: no mean to fill in")
        return replace(self, means=tuple((np.where(there, rows, 0).sum(axis=0) / counts).tolist()))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> TableEncoding:
        """Make from the values of `to_dict`; `DataError` if they are others."""
        from pydantic import TypeAdapter, ValidationError

        from hybridnn.utils.settings_models import first_problem

        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise DataError(f"not the columns of a table: {first_problem(error)}") from error

    def _inputs(self, table: DataFrame, called: str) -> Floats:
        """Inputs, shape (rows, features), with NaN for missing values."""
        plain = [name for name in self.columns if name not in self.categories]
        values = self._numbers_of(table, plain, called)
        if self.categories:
            place = {name: number for number, name in enumerate(plain)}
            parts = [
                self._one_hot(table, name, called) if name in self.categories else values[:, place[name], None]
                for name in self.columns
            ]
            values = np.concatenate(parts, axis=1)
        _require_finite(values, self._feature_columns(), called)
        return values

    def _numbers_of(self, table: DataFrame, names: Sequence[str], called: str) -> Floats:
        """Columns of numbers, truth values and dates, shape (rows, columns), with NaN for missing values."""
        words = self.options.words
        of_cells = {*self.kinds} & {*names}
        if not of_cells and (block := _plain_numbers(table, names, self.numbers, words)) is not None:
            return block
        values = np.empty((len(table), len(names)), order="F")
        problems = []
        for number, name in enumerate(names):
            is_number = name not in of_cells or (self.kinds[name] == "truth" and table[name].dtype.kind == "b")
            if is_number and (one := _plain_numbers(table, [name], self.numbers, words)) is not None:
                values[:, number] = one[:, 0]
                continue
            column = read_column(table[name], words, self.numbers, called, self.kinds.get(name, "number"))
            if column.odd()[0]:
                problems.append(_not_numbers(column))
            values[:, number] = column.values
        require_no_problem(called, problems)
        return values

    def _one_hot(self, table: DataFrame, name: str, called: str) -> Floats:
        """One column per value, NaN where the value is missing."""
        values, unknown = self.categories[name], self.options.unknown_categories
        codes = self._codes(table, name, values, called, unknown_is_zero=unknown == "zeros")
        encoded: Floats = (codes[:, None] == np.arange(len(values))).astype(np.float64)
        encoded[codes == -1] = np.nan
        return encoded

    def _codes(
        self, table: DataFrame, name: str, values: Sequence[str], called: str, *, unknown_is_zero: bool = False
    ) -> NDArray[np.int64]:
        """The place of each row's value among `values`, -1 for missing values; `DataError` for unknown ones, or -2."""
        column = read_column(table[name], self.options.words, self.numbers, called, "text")
        place = {value: number for number, value in enumerate(values)}
        are_numbers = name not in self.categories and all(self.numbers.parse(value) is not None for value in values)
        texts = [_label_text(text, self.numbers) if are_numbers else text for text in column.texts]
        found = np.array([*(place.get(text, -2) for text in texts), -1], np.int64)[column.codes]
        unknown = sorted({text for text in texts if text not in place})
        if unknown and not unknown_is_zero:
            rows = counted(int((found == -2).sum()), "row")
            shown = column_list([repr(text) for text in unknown])
            raise DataError(
                f"{called}: column {name!r} has values that the training data did not have: {shown} ({rows})"
            )
        return found

    def _targets(self, table: DataFrame, names: Sequence[str], called: str) -> NDArray[Any]:
        """Labels, -1 for missing ones, or targets of regression, NaN for missing ones."""
        if self.classes:
            if len(names) > 1:
                raise SettingError("data.targets", list(names[:NAMES_SHOWN]), "classification needs one target column")
            return self._codes(table, names[0], self.classes, called)
        targets = self._numbers_of(table, names, called)
        _require_finite(targets, names, called)
        return targets

    def _feature_columns(self) -> list[str]:
        """The column of every feature."""
        return [name for name in self.columns for _ in self.categories.get(name, ("",))]

    def _without_missing(
        self, x: Floats, y: NDArray[Any] | None, targets: Sequence[str], called: str
    ) -> tuple[Floats, NDArray[Any] | None, int]:
        """Samples without missing values; those are NaN in inputs and targets, and -1 in labels."""
        in_x, in_y = np.isnan(x), np.zeros((len(x), 0), bool)
        if y is not None:
            in_y = (y < 0)[:, None] if self.classes else np.isnan(y)
        drops_x = self.options.missing == "drop" and y is not None
        drops_y = self.options.missing == "drop" or self.options.missing_targets == "drop"
        left_out = in_y.any(axis=1) if drops_y else np.zeros(len(x), bool)
        left_out |= in_x.any(axis=1) & drops_x
        if left_out.all() and len(x):
            raise DataError(f"{called}: every row has a missing value: none is left")
        if left_out.any():
            kept = ~left_out
            x, in_x, in_y, y = x[kept], in_x[kept], in_y[kept], None if y is None else y[kept]
        if self.means and in_x.any():
            x, in_x = np.where(in_x, self.means, x), np.zeros_like(in_x)
        bad = np.concatenate([in_x, in_y], axis=1)
        if bad.any():
            which = _counts([*self._feature_columns(), *targets], bad)
            how = MISSING_ADVICE
            if self.options.missing != "error":
                how = "the run was trained without such samples; only training and evaluation leave them out"
            if in_y.any():
                how = TARGET_ADVICE
            rows = f"in {int(bad.any(axis=1).sum()):,} of {len(bad):,} rows"
            raise DataError(f"{called}: missing values {rows}: {which}; {how}")
        return x, y, int(left_out.sum())


MISSING_ADVICE = (
    'set data.missing to "drop" to leave out these rows or to "mean" to fill in means, or data.drop_columns to leave '
    "columns out"
)
TARGET_ADVICE = 'only inputs can be filled in; set data.missing_targets to "drop" to leave out these rows'
TEXT_ADVICE = (
    'set data.categories to "one-hot" to make an input of each value, or data.drop_columns to leave the column out'
)


# -- cells -------------------------------------------------------------------------------------------------------------


def is_native(column: Series[Any]) -> bool:
    """Whether a column holds numbers or truth values by its dtype, as in data frames."""
    return column.dtype.kind in "biuf"


def read_column(
    column: Series[Any], words: frozenset[str], numbers: Numbers, called: str, kind: Kind | None = None
) -> Column:
    """The cells of a column as text, and as numbers; its kind, unless given, is decided by all cells.

    Raises `DataError` for cells that are no texts and cannot be compared.
    """
    import pandas

    name = str(column.name)
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
    kind, values = _kind_of(distinct, numbers, kind)
    return Column(name, kind, places, tuple(distinct), values)


def _cell_text(cell: object) -> str:
    """A cell as text; whole numbers have no decimal point, and times are in ISO's form."""
    if isinstance(cell, str):
        text = cell.strip()
        return text if text.isascii() else unicodedata.normalize("NFC", text)
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, datetime) else str(cell).strip()


def _kind_of(texts: Sequence[str], numbers: Numbers, kind: Kind | None) -> tuple[Kind, Floats]:
    """What texts are, and the number of each, NaN where it has none."""
    readers: dict[Kind, Callable[[str], float | None]] = {
        "number": numbers.parse,
        "truth": lambda text: TRUTH.get(text.casefold()),
        "date": _days,
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


def _days(text: str) -> float | None:
    """Days since 1970 of an ISO date, with or without a time."""
    if not DATE.fullmatch(text):
        return None
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace("Z", "+00:00")))
        return ((time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - EPOCH).total_seconds() / 86400
    return None


def _label_text(text: str, numbers: Numbers) -> str:
    """A label as text: a whole number with decimals has none."""
    if numbers.decimal in text and (value := numbers.parse(text)) is not None and value.is_integer():
        return str(int(value))
    return text


def _plain_numbers(table: DataFrame, names: Sequence[str], numbers: Numbers, words: frozenset[str]) -> Floats | None:
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
    """As `_plain_numbers`, but for the words."""
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
        if not PLAIN.search("\n".join(cells.ravel())):
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


def _require_finite(values: Floats, columns: Sequence[str], called: str) -> None:
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(f"{called}: infinite values: {_counts(columns, infinite)}")


def _counts(columns: Sequence[str], bad: NDArray[np.bool_]) -> str:
    """Columns with the number of rows that are bad, for a message."""
    rows: dict[str, int] = {}
    for name, count in zip(columns, bad.sum(axis=0).tolist(), strict=True):
        if count:
            rows[name] = max(count, rows.get(name, 0))
    first = int(bad.any(axis=1).argmax()) + 1
    texts = [f"{printable(name, 40)} ({counted(count, 'row')})" for name, count in list(rows.items())[:NAMES_SHOWN]]
    more = f" and {len(rows) - NAMES_SHOWN:,} more columns" if len(rows) > NAMES_SHOWN else ""
    return f"{', '.join(texts)}{more}, first in row {first:,}"


# -- problems ----------------------------------------------------------------------------------------------------------


def require_no_problem(called: str, problems: Sequence[Problem], hint: str = "") -> None:
    """Raise one `DataError` of all problems, with the settings that solve them."""
    if not problems:
        return
    if len(problems) == 1:
        raise DataError(f"{called}: {problems[0].text}; {problems[0].advice}")
    shown = [f"({number}) {problem.text}" for number, problem in enumerate(problems[:NAMES_SHOWN], 1)]
    more = f" and {len(problems) - NAMES_SHOWN:,} more" if len(problems) > NAMES_SHOWN else ""
    advice = options_text(settings_of(problems))
    ways = f"; what may solve them: {advice[:500]}" if advice else ""
    raise DataError(f"{called}: {len(problems)} problems: {', '.join(shown)}{more}{ways}{hint}")


def settings_of(problems: Sequence[Problem]) -> dict[str, str | list[str]]:
    """The settings that solve problems; lists of several problems are joined."""
    found: dict[str, str | list[str]] = {}
    for problem in problems:
        for key, value in problem.settings.items():
            before = found.get(key, [])
            found[key] = [*before, *value] if isinstance(value, list) and isinstance(before, list) else value
    return found


def options_text(settings: Mapping[str, str | list[str]]) -> str:
    """Settings of ``[data]`` as options of a command."""
    texts = {
        key if "." in key else f"data.{key}": value if isinstance(value, str) else _list_text(value)
        for key, value in settings.items()
    }
    return " ".join(f"--set {command_argument(f'{key}={text}')}" for key, text in texts.items())


def _list_text(values: Sequence[str]) -> str:
    is_simple = not any("," in value or value != value.strip() for value in values)
    return ",".join(values) if is_simple else to_json(list(values))


def column_problem(column: Column, options: TableOptions) -> Problem | None:
    """Why an input column cannot be used with these options, or None."""
    if column.kind == "text":
        problem = _text_column(column, is_stated=column.name in options.text_columns)
        if options.categories != "one-hot" or problem.settings != USUAL_TEXT:
            return problem
    if column.missing and options.missing == "error":
        row = int((column.codes < 0).argmax()) + 1
        shown = (
            f"missing values in {printable(column.name, 40)} ({counted(column.missing, 'row')}, first in row {row:,})"
        )
        return Problem(shown, MISSING_ADVICE, {"missing": "mean"})
    return None


def _is_mostly_numbers(column: Column, odd: float = MOST_ODD) -> bool:
    """Whether a column of text is one of numbers but for a share `odd` of its cells; leading zeros are of codes."""
    if any(re.match(r"0\d", text) for text in column.texts):
        return False
    return column.odd()[0] <= odd * (len(column.codes) - column.missing)


def _not_numbers(column: Column) -> Problem:
    """Some cells of a column of numbers are none."""
    count, row, texts = column.odd()
    rows, name = len(column.codes) - column.missing, printable(column.name, 40)
    cells = f"{count:,} of {rows:,} cells are no numbers" if count < rows else "no cell is a number"
    shown = f"{name}: {cells} ({printable(repr(texts[0]), 40)} in row {row + 1:,})"
    if advice := _sign_advice(texts):
        return Problem(shown, advice)
    if not _is_mostly_numbers(column, MOST_ODD_TARGETS):
        return Problem(shown, "the column must hold numbers")
    if len(texts) > 5 or any(letter.isdigit() for text in texts for letter in text):
        return Problem(shown, "correct these cells, or add the column to data.text_columns if it holds codes")
    words = column_list([repr(text) for text in texts])
    how = f"if {words} stands for a missing value, add it to data.missing_words, and set data.missing; "
    how += "if the column holds codes, add it to data.text_columns"
    return Problem(shown, how, {"missing_words": texts, "missing": "mean"})


def _sign_advice(texts: Sequence[str]) -> str:
    """What to do about signs in cells that are numbers but for them, or an empty text."""
    for signs, advice in _SIGNS.items():
        signed = [text for text in texts if any(sign in text for sign in signs)]
        bare = [text.translate(dict.fromkeys(map(ord, signs))).strip() for text in signed]
        forms = Numbers(), Numbers(".", ","), Numbers(",", ".")
        if 2 * sum(any(form.parse(text) is not None for form in forms) for text in bare) >= len(texts):
            return advice
    if any("," in text and Numbers(",").pattern.fullmatch(text) for text in texts):
        return 'numbers with decimal commas are read with data.decimal = ",", and then all must have them'
    return ""


_SIGNS = {
    "%\u2030": "numbers must have no percent signs: remove them from the column",
    "$\u20ac\u00a3\u00a5": "numbers must have no currency signs: remove them from the column",
    " \u00a0\u202f": 'a number must have no spaces; set data.thousands = " " if they separate thousands',
    "'": 'a number must have no apostrophes; set data.thousands = "\'" if they separate thousands',
}


USUAL_TEXT = {"categories": "one-hot"}


def _text_column(column: Column, *, is_stated: bool) -> Problem:
    """What to do about a column of text; codes, ids and the like only if `data.text_columns` has it."""
    if not is_stated and _is_mostly_numbers(column):
        return _not_numbers(column)
    rows, texts = len(column.codes) - column.missing, column.texts
    count, first, odd = column.odd()
    if not count:  # codes, such as postcodes
        count, first, odd = rows, int((column.codes >= 0).argmax()), list(texts)
    example = f"{printable(repr(odd[0]), 40)} in row {first + 1:,}"
    shown = f"text in {printable(column.name, 40)} ({counted(count, 'row')}, {example})"
    drop = {"drop_columns": [column.name]}
    if not is_stated and (advice := _sign_advice(odd)):
        return Problem(shown, advice)
    if not is_stated and all(OTHER_DATE.fullmatch(text) for text in texts):
        return Problem(shown, "dates must be written as 2020-12-31, or left out with data.drop_columns", drop)
    if len(texts) > MOST_CATEGORIES or (not is_stated and _are_too_many(len(texts), rows)):
        why = f"{len(texts):,} different values in {rows:,} rows, as of an id"
        how = "leave it out with data.drop_columns"
        how += "" if is_stated else ", or add it to data.text_columns to make an input of each value"
        return Problem(f"{shown[:-1]}, {why})", how, drop)
    return Problem(shown, TEXT_ADVICE, USUAL_TEXT)


# -- fitting -----------------------------------------------------------------------------------------------------------


class Examination(NamedTuple):
    """What a table holds: its columns that are not numbers alone, and why it cannot be used.

    Attributes
    ----------
    columns : dict of str to Column
        Columns that were read cell by cell; the others are numbers without missing values.
    """

    encoding: TableEncoding
    columns: dict[str, Column]
    problems: list[Problem]
    frame: DataFrame  # the table with its columns of numbers as floats


def examine(
    table: DataFrame,
    called: str,
    columns: Sequence[str],
    targets: Sequence[str],
    task: Task | None,
    options: TableOptions,
) -> Examination:
    """Decide what every column of a table is; means are left to `TableEncoding.with_means`.

    Parameters
    ----------
    columns, targets : sequence of str
        Input and target columns; they exist. Without targets only the inputs are examined.
    task : {'classification', 'regression'}, optional
        By default, one target column of text, truth values or whole numbers holds labels.
    """
    words = options.words
    require_columns(called, table, options.text_columns, "which data.text_columns names")
    plain, unread = _plain_parts(table, [*columns, *(targets if len(targets) > 1 else ())], options)
    unread += [name for name in targets if name not in unread]
    unread += [name for name in columns if name in options.text_columns and name not in unread]
    given: dict[str, Kind] = dict.fromkeys(options.text_columns, "text")
    raw = {name: read_column(table[name], words, Numbers(), called, given.get(name)) for name in unread}
    if any(re.search(r"\d,\d", text) for column in raw.values() for text in column.texts):  # points may be of thousands
        others = [name for name in columns if name not in raw and not is_native(table[name])]
        raw |= {name: read_column(table[name], words, Numbers(), called) for name in others}
    numbers, ambiguous = decide_numbers((text for column in raw.values() for text in column.texts), options)
    found = raw
    if numbers != Numbers():
        found = {name: read_column(table[name], words, numbers, called, given.get(name)) for name in raw}
    problems = []
    if ambiguous:
        how = 'set data.thousands = "," if the comma separates thousands'
        problems.append(Problem(f"{ambiguous!r} may be read in two ways", how, {"thousands": ","}))
    inputs = [found[name] for name in columns if name in found]
    problems += [problem for column in inputs if (problem := column_problem(column, options))]
    known = replace(options, decimal=numbers.decimal, thousands=numbers.thousands or "none")  # type: ignore[arg-type]
    kinds = {name: column.kind for name, column in found.items() if column.kind in ("truth", "date")}
    inputs_wanted = {*columns}
    dtypes = zip(table.columns, table.dtypes, strict=True)
    kinds |= dict.fromkeys((name for name, dtype in dtypes if dtype.kind == "b" and name in inputs_wanted), "truth")
    categories = {column.name: _sorted(column.texts) for column in inputs if column.kind == "text"}
    encoding = TableEncoding(
        tuple(columns), tuple(targets), _key(table, columns, targets), (), categories, kinds, options=known
    )
    of_numbers = {column.name: column.values for column in inputs if column.kind == "number"}
    if numbers == Numbers():
        of_numbers |= {name: block[:, n] for names, block in plain for n, name in enumerate(names) if name not in found}
    floats = {name: of_numbers[name] for name in columns if name in of_numbers and name not in kinds}
    frame = _with_floats(table, floats)
    if not targets:
        return Examination(encoding, found, problems, frame)
    classes, more = _fit_classes([found[name] for name in targets], table, task, encoding)
    return Examination(replace(encoding, classes=classes), found, problems + more, frame)


def _key(table: DataFrame, columns: Sequence[str], targets: Sequence[str]) -> str:
    first = str(table.columns[0])
    return first if first not in {*columns, *targets} and table[first].is_unique else ""


def _with_floats(table: DataFrame, columns: Mapping[str, Floats]) -> DataFrame:
    """The table with some columns replaced, which come first."""
    import pandas

    values = np.column_stack(list(columns.values())) if columns else np.empty((len(table), 0))
    floats = pandas.DataFrame(values, table.index, pandas.Index(list(columns), dtype=object))
    return pandas.concat([floats, table.loc[:, ~table.columns.isin(list(columns))]], axis=1)


Parts = list[tuple[Sequence[str], Floats]]
"""Names of columns, and their numbers, shape (rows, columns)."""


def _plain_parts(table: DataFrame, names: Sequence[str], options: TableOptions) -> tuple[Parts, list[str]]:
    """The columns that are numbers alone, and the names of the others, found by halving."""
    plain = Numbers() if options.decimal in ("auto", ".") else Numbers(options.decimal)
    values = _plain_numbers(table, names, plain, options.words) if names else None
    if values is not None and not np.isnan(values).any():
        return [(names, values)], []
    if len(names) <= 1:
        return [], list(names)
    half = len(names) // 2
    few = table[list(names)] if 2 * len(names) <= table.shape[1] else table
    first, second = _plain_parts(few, names[:half], options), _plain_parts(few, names[half:], options)
    return first[0] + second[0], first[1] + second[1]


def _sorted(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts in order; whole numbers by size."""
    distinct = set(texts)
    try:
        return tuple(sorted(distinct, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(distinct))


def _fit_classes(
    targets: Sequence[Column], table: DataFrame, task: Task | None, encoding: TableEncoding
) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of the classes, empty for regression, and what is wrong with the targets."""
    options, problems = encoding.options, []
    for column in targets:
        if column.missing and options.missing != "drop" and options.missing_targets != "drop":
            row = int((column.codes < 0).argmax()) + 1
            rows = f"{counted(column.missing, 'row')}, first in row {row:,}"
            problems.append(
                Problem(
                    f"missing values in the target {printable(column.name, 40)} ({rows})",
                    _target_advice(column, table),
                    {"missing_targets": "drop"},
                )
            )
    if task == "regression" or (task is None and len(targets) > 1):
        text = [column for column in targets if column.odd()[0] and column.kind == "text"]
        return (), problems + [_regression_problem(column) for column in text]
    if len(targets) > 1:
        return (), [
            *problems,
            Problem(f"classification needs one target column, not {len(targets)}", "give one name in data.targets"),
        ]
    column = targets[0]
    if task is None and (column.kind == "date" or (column.kind == "number" and _has_decimals(column, table, encoding))):
        return (), problems
    is_number = column.kind == "number"
    classes = _sorted(_label_text(text, encoding.numbers) if is_number else text for text in column.texts)
    problem = _label_problem(column, classes, task, options)
    return classes, [*problems, problem] if problem else problems


def _target_advice(column: Column, table: DataFrame) -> str:
    """What to do about missing targets: words such as None may be a class."""
    cells = {str(cell).strip() for cell in table[column.name][column.codes < 0] if isinstance(cell, str)} - {""}
    if cells and column.kind == "text":
        word = sorted(cells)[0]
        return f'if {word!r} is a class, set data.missing_words = "not {word}"; else {TARGET_ADVICE}'
    return TARGET_ADVICE


def _has_decimals(column: Column, table: DataFrame, encoding: TableEncoding) -> bool:
    """Whether numbers have decimals or separators of thousands, as those of a regression."""
    thousands = encoding.numbers.thousands
    if (column.numbers != np.rint(column.numbers)).any() or (thousands and any(thousands in t for t in column.texts)):
        return True
    series = table[column.name]
    if is_native(series):  # pandas makes whole numbers floats where values are missing
        return series.dtype.kind == "f" and not column.missing
    return any(encoding.numbers.decimal in text or "e" in text.casefold() for text in column.texts)


def _regression_problem(column: Column) -> Problem:
    problem = _not_numbers(column)
    return problem._replace(text=f"regression needs numbers as targets; {problem.text}")


def _are_too_many(classes: int, rows: int) -> bool:
    """Whether most values of a target differ."""
    return rows >= FEW_ROWS and classes > rows // 2


def _label_problem(column: Column, classes: Sequence[str], task: Task | None, options: TableOptions) -> Problem | None:
    """Why a column cannot hold labels."""
    name, rows = f"column {column.name!r}", len(column.codes) - column.missing
    is_free = column.kind == "text" and task is None and column.name not in options.text_columns
    if is_free and (_is_mostly_numbers(column, MOST_ODD_TARGETS) or _sign_advice(column.texts)):
        problem = _not_numbers(column)
        return problem._replace(settings={**problem.settings, "missing_targets": "drop"} if problem.settings else {})
    if column.kind == "number":
        broken = column.numbers[column.numbers != np.rint(column.numbers)]
        if broken.size:
            return Problem(f"{name} holds {broken[0]:g}", "classification needs labels")
        largest = column.numbers[np.abs(column.numbers).argmax()] if column.numbers.size else 0
        if abs(largest) >= EXACT:
            return Problem(f"{name} has the label {largest:.0f}", "it is too large")
        if task is None and (len(classes) > max(FEW_CLASSES, rows // 4) or _are_too_many(len(classes), rows)):
            how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
            shown = f"{name} has {len(classes):,} different whole numbers in {rows:,} rows"
            return Problem(shown, how, {"model.loss": "mse"})
    elif task is None and _are_too_many(len(classes), rows):
        how = "a class needs several rows; name another column, or set model.loss to cross_entropy if these are labels"
        return Problem(f"{name} has {len(classes):,} different texts in {rows:,} rows", how)
    if len(classes) < 2:
        only = f"all labels are {column_list(classes)}" if classes else "has no label"
        return Problem(f"{name}: {only}", "classification needs at least 2 classes")
    return None
