"""Columns of a table as numbers: text as classes or categories, missing values filled in or left out."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_choice
from hybridnn.utils.text import counted, printable

from .rows import Task
from .table_file import NAMES_SHOWN, as_names, column_list, require_columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series

EXACT = 2**53  # from here on, float64 does not represent all integers
MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_CLASSES = 50  # different whole numbers that are taken for labels in any table

Floats = NDArray[np.float64]

Decimal = Literal[".", ","]
Missing = Literal["error", "drop", "mean"]
Categories = Literal["error", "one-hot"]


@dataclass(frozen=True)
class TableOptions:
    """How a table is read; the fields are those of ``[data]`` with the same names.

    Parameters
    ----------
    decimal : {'.', ','}
        Decimal separator of a ``.csv`` file.
    drop_columns : str or sequence of str
        Columns that are left out.
    missing : {'error', 'drop', 'mean'}
        Missing values are refused, or their rows are left out, or those of inputs are replaced by the mean of the
        training samples.
    categories : {'error', 'one-hot'}
        Input columns of text are refused, or become one input per value: 1 where the column has the value, else 0.
    """

    decimal: Decimal = "."
    drop_columns: str | Sequence[str] = ()
    missing: Missing = "error"
    categories: Categories = "error"

    def __post_init__(self) -> None:
        for name, choices in (("decimal", Decimal), ("missing", Missing), ("categories", Categories)):
            require_choice(f"data.{name}", getattr(self, name), get_args(choices))
        object.__setattr__(self, "drop_columns", as_names(self.drop_columns))


class EncodedTable(NamedTuple):
    """Samples of a table."""

    x: Floats  # shape (samples, features)
    y: NDArray[Any] | None  # labels, shape (samples,), or targets, shape (samples, targets); None without targets
    dropped: int  # rows that were left out because of missing values


@dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table become the inputs and targets of a network.

    Attributes
    ----------
    columns : tuple of str
        Input columns, in order.
    targets : tuple of str
        Target columns.
    classes : tuple of str
        Names of the classes, label 0 first; empty for regression.
    categories : mapping of str to tuple of str
        Values of each text column among the inputs; every value is one input, in this order.
    missing : str
        See `TableOptions`.
    means : tuple of float
        With ``missing = "mean"``, what replaces missing values, one number per feature.
    """

    columns: tuple[str, ...]
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Missing = "error"
    means: tuple[float, ...] = ()

    @property
    def features(self) -> int:
        """Inputs of the network."""
        return len(self.columns) + sum(len(values) - 1 for values in self.categories.values())

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
        require_columns(called, table, self.columns, "which the inputs need")
        require_columns(called, table, names, "which holds targets")
        x = self._inputs(table, called)
        y = _encoded_targets(table, names, self.classes, called) if names else None
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
        if self.missing != "mean":
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
        wanted = {*self.columns} - {*self.categories}
        text = [name for name in _text_columns(table) if name in wanted]
        frame, text = _with_numbers(table, text, NAMES_SHOWN + 1)
        if text:
            raise DataError(f"{called}: {_text_problem(frame, text)}; set {_WAYS['text']}")
        if not self.categories:
            x = _matrix(frame, self.columns)
        else:
            parts = [
                _one_hot(frame[name], self.categories[name], f"{called}: column {name!r}")
                if name in self.categories
                else _matrix(frame, [name])
                for name in self.columns
            ]
            x = np.concatenate(parts, axis=1)
        _require_finite(x, self._feature_columns(), called)
        return x

    def _feature_columns(self) -> list[str]:
        """The column of every feature."""
        return [name for name in self.columns for _ in self.categories.get(name, ("",))]

    def _without_missing(
        self, x: Floats, y: NDArray[Any] | None, targets: Sequence[str], called: str
    ) -> tuple[Floats, NDArray[Any] | None, int]:
        """Samples without missing values; those are NaN in inputs and targets, and -1 in labels."""
        in_x = np.isnan(x)
        in_y = np.zeros((len(x), 0), bool)
        if y is not None:
            in_y = (y < 0)[:, None] if self.classes else np.isnan(y)
        bad = in_x.any(axis=1) | in_y.any(axis=1)
        if not bad.any():
            return x, y, 0
        if self.missing != "drop" and in_y.any():
            which = _counts(targets, in_y)
            how = 'only inputs can be filled in; set data.missing to "drop" to leave these rows out'
            raise DataError(f"{called}: missing values in the target {which}: {how}")
        if self.missing == "mean" and self.means:
            return np.where(in_x, self.means, x), y, 0
        if self.missing == "drop" and y is not None:
            if bad.all():
                raise DataError(f"{called}: every row has a missing value: none is left")
            return x[~bad], y[~bad], int(bad.sum())
        which = _counts([*self._feature_columns(), *targets], np.concatenate([in_x, in_y], axis=1))
        rows = f"in {int(bad.sum()):,} of {len(x):,} rows"
        how = _WAYS["missing"]
        if self.missing != "error":
            how = "the run was trained without such samples; only training and evaluation leave them out"
        raise DataError(f"{called}: missing values {rows}: {which}; {how}")


_WAYS = {
    "text": 'data.categories = "one-hot" to make an input of each value, or data.drop_columns to leave columns out',
    "missing": 'set data.missing to "drop" to leave out these rows or to "mean" to fill in means, '
    "or data.drop_columns to leave columns out",
}


def fit_encoding(
    table: DataFrame,
    called: str,
    columns: Sequence[str],
    targets: Sequence[str],
    task: Task | None,
    options: TableOptions,
) -> TableEncoding:
    """Find the encoding of a table, without means; see `TableEncoding.with_means`.

    Parameters
    ----------
    columns, targets : sequence of str
        Input and target columns; they exist.
    task : {'classification', 'regression'}, optional
        By default, one target column of text, truth values or whole numbers holds labels.

    Raises
    ------
    DataError
        If text columns are refused, or a column has too many values to be categories or classes.
    """
    classes = _fit_classes(table, called, targets, task)
    categories: dict[str, tuple[str, ...]] = {}
    if options.categories == "one-hot":
        frame = table[list(columns)]
        for name in _with_numbers(frame, _text_columns(frame))[1]:
            values = _values(frame[name], f"{called}: column {name!r}")
            if len(values) > MOST_CATEGORIES:
                limit = f"more than {MOST_CATEGORIES:,} inputs; data.drop_columns leaves columns out"
                raise DataError(f"{called}: column {name!r} has {len(values):,} different values, {limit}")
            categories[name] = values
    return TableEncoding(tuple(columns), tuple(targets), classes, categories, options.missing)


# -- columns -----------------------------------------------------------------------------------------------------------


def _text_columns(frame: DataFrame) -> list[str]:
    """Columns that do not hold numbers or truth values by their dtype."""
    return [name for name, dtype in zip(frame.columns, frame.dtypes, strict=True) if dtype.kind not in "biuf"]


def _with_numbers(frame: DataFrame, text: Sequence[str], enough: float = math.inf) -> tuple[DataFrame, list[str]]:
    """Convert those of the `text` columns in which all values are numbers; the frame, and the other columns.

    Stops after `enough` other columns.
    """
    found: dict[str, Any] = {}
    others: list[str] = []
    for name in text:
        column = frame[name]
        numbers = _as_numbers(column)
        if numbers.count() == column.count():
            found[name] = numbers
        else:
            others.append(name)
            if len(others) >= enough:
                break
    return (frame.assign(**found) if found else frame), others


def _as_numbers(column: Series[Any]) -> Series[Any]:
    """Numbers in a column of objects or texts as floats, NaN for the rest; NaN for categories, dates and the like."""
    import pandas

    if column.dtype.kind not in "mMc" and not isinstance(column.dtype, pandas.CategoricalDtype):
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # objects of any class
            return pandas.to_numeric(column, errors="coerce").astype(np.float64)
    return pandas.Series(np.nan, column.index, np.float64)


def _matrix(frame: DataFrame, columns: Sequence[str]) -> Floats:
    """Some columns, which hold numbers, shape (rows, columns), with NaN for missing values."""
    if 2 * len(columns) < frame.shape[1] or _text_columns(frame):
        few: Floats = frame[list(columns)].to_numpy(np.float64, na_value=np.nan)
        return few
    # pandas selects columns one by one, and NumPy a million at once.
    values: Floats = frame.to_numpy(np.float64, na_value=np.nan)
    chosen: Floats = np.take(values, frame.columns.get_indexer(list(columns)), axis=1)
    return chosen


def _factorized(column: Series[Any], called: str) -> tuple[NDArray[np.int64], list[str]]:
    """The different values as text without surrounding spaces, and the place of each row's among them, or -1.

    Whole numbers have no decimal point. Two values may have the same text.
    """
    import pandas

    try:
        codes, values = pandas.factorize(column)
    except TypeError as error:  # lists, for example
        raise DataError(f"{called} holds objects that cannot be compared: {error}") from None
    whole = (isinstance(value, float | np.floating) and float(value).is_integer() for value in values)
    texts = [str(int(value) if is_whole else value).strip() for value, is_whole in zip(values, whole, strict=True)]
    return codes.astype(np.int64), texts


def _values(column: Series[Any], called: str) -> tuple[str, ...]:
    """The different values as text, in order; numbers by size."""
    texts = set(_factorized(column, called)[1])
    try:
        return tuple(sorted(texts, key=int))
    except ValueError:
        return tuple(sorted(texts))


def _codes(column: Series[Any], values: Sequence[str], called: str) -> NDArray[np.int64]:
    """The place of each row's value among `values`, -1 for missing ones; `DataError` if one is not among them."""
    codes, texts = _factorized(column, called)
    place = {value: number for number, value in enumerate(values)}
    found = np.array([*(place.get(text, -2) for text in texts), -1], np.int64)[codes]
    unknown = sorted({text for text in texts if text not in place})
    if unknown:
        rows = counted(int((found == -2).sum()), "row")
        shown = column_list([repr(text) for text in unknown])
        raise DataError(f"{called} has values that the training data did not have: {shown} ({rows})")
    return found


def _one_hot(column: Series[Any], values: Sequence[str], called: str) -> Floats:
    """One column per value, NaN where the value is missing."""
    codes = _codes(column, values, called)
    encoded: Floats = (codes[:, None] == np.arange(len(values))).astype(np.float64)
    encoded[codes == -1] = np.nan
    return encoded


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


def _text_problem(frame: DataFrame, text: Sequence[str]) -> str:
    """Text columns with the number of rows that hold text, and an example, for a message."""
    shown, hints = [], []
    for name in text[:NAMES_SHOWN]:
        column = frame[name]
        is_text = (_as_numbers(column).isna() & column.notna()).to_numpy()
        row = int(is_text.argmax())
        example = str(column.iloc[row])
        hints += [hint for form, hint in _FORMS_OF_NUMBERS if re.fullmatch(form, example)][:1]
        rows = counted(int(is_text.sum()), "row")
        shown.append(f"{printable(name, 40)} ({rows}, {printable(repr(example), 40)} in row {row + 1:,})")
    more = " and more columns" if len(text) > NAMES_SHOWN else ""
    return f"text in {', '.join(shown)}{more}{''.join(f'; {hint}' for hint in dict.fromkeys(hints))}"


_FORMS_OF_NUMBERS = (
    (r"[+-]?\d+,\d+", 'decimal commas are read with data.decimal = ","'),
    (r"[+-]?\d{1,3}([.,' ]\d{3})+([.,]\d+)?", "numbers must have no separators of thousands"),
)


# -- targets -----------------------------------------------------------------------------------------------------------


def _fit_classes(table: DataFrame, called: str, targets: Sequence[str], task: Task | None) -> tuple[str, ...]:
    """Names of the classes; empty for regression."""
    frame, text = _with_numbers(table[list(targets)], _text_columns(table[list(targets)]))
    if task == "regression" or (task is None and len(targets) > 1):
        if text:
            raise DataError(f"{called}: regression needs numbers as targets; {_text_problem(frame, text)}")
        return ()
    if len(targets) > 1:
        raise DataError(f"{called}: classification needs one target column, not {len(targets)}")
    name, about = targets[0], f"{called}: column {targets[0]!r}"
    numbers = np.empty(0) if text else _matrix(frame, targets)[:, 0]
    there = numbers[~np.isnan(numbers)]
    broken = there[there != np.rint(there)]
    if broken.size or table[name].dtype.kind == "f":
        # pandas makes whole numbers floats where values are missing
        if task is None and (broken.size or there.size == numbers.size):
            return ()
        if broken.size:
            raise DataError(f"{about} holds {broken[0]:g}: classification needs labels")
    if there.size and np.abs(there).max() >= EXACT:
        raise DataError(f"{about} has the label {there[np.abs(there).argmax()]:.0f}, too large")
    values = _values(table[name], about)
    if task is None and there.size and len(values) > max(FEW_CLASSES, there.size // 4):
        how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
        raise DataError(f"{about} has {len(values):,} different whole numbers in {there.size:,} rows: {how}")
    if len(values) < 2:
        only = f"all labels are {column_list(values)}" if values else "has no label"
        raise DataError(f"{about}: {only}: classification needs at least 2 classes")
    return values


def _encoded_targets(table: DataFrame, names: Sequence[str], classes: Sequence[str], called: str) -> NDArray[Any]:
    """Labels, -1 for missing ones, or targets of regression, NaN for missing ones."""
    if classes:
        if len(names) > 1:
            raise SettingError("data.targets", list(names[:NAMES_SHOWN]), "classification needs one target column")
        return _codes(table[names[0]], classes, f"{called}: column {names[0]!r}")
    frame, text = _with_numbers(table[list(names)], _text_columns(table[list(names)]))
    if text:
        raise DataError(f"{called}: regression needs numbers as targets; {_text_problem(frame, text)}")
    targets = _matrix(frame, names)
    _require_finite(targets, names, called)
    return targets
