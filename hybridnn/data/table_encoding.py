"""Columns of a table as inputs and targets of a network, as they were decided in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.text import counted, printable

from .table_columns import Floats, Kind, Numbers, label_text, plain_numbers, read_column
from .table_file import Extra, named_frame
from .table_options import NAMES_SHOWN, TableOptions, as_names, column_list, require_columns
from .table_problems import TARGET_ADVICE, not_numbers, require_no_problem

if TYPE_CHECKING:
    from pandas import DataFrame


class EncodedTable(NamedTuple):
    """Samples of a table."""

    x: Floats  # shape (samples, features)
    y: NDArray[Any] | None  # labels, shape (samples,), or targets, shape (samples, targets); None without targets
    dropped: int  # rows that were left out because of missing values


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
        ``"truth"`` for columns of truth values, which become 0 and 1, and ``"date"`` for dates, which become days
        since 1970.
    means : tuple of float
        With ``missing = "mean"``, what replaces missing values, one number per feature.
    options : TableOptions
        How the table was read, with what was found for ``"auto"``; other tables are read in the same way.
    extra : {'', 'first', 'last'}
        Which cell of a row had no name because the header line was one cell shorter.
    """

    columns: tuple[str, ...]
    targets: tuple[str, ...] = ()
    key: str = ""
    classes: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    means: tuple[float, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    extra: Extra = ""

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

    def describe(self) -> str:
        """What was decided about the columns, as one line."""
        numbers = [name for name in self.columns if name not in self.categories and name not in self.kinds]
        notes = [f"numbers: {column_list(numbers)}"] if numbers else []
        notes += ["numbers have decimal commas"] if self.numbers.decimal == "," else []
        notes += [f"{self.numbers.thousands!r} separates thousands"] if self.numbers.thousands else []
        for kind, text in (("date", "dates become days since 1970"), ("truth", "truth values become 0 and 1")):
            names = [name for name, of in self.kinds.items() if of == kind and name not in self.targets]
            notes += [f"{text}: {column_list(names)}"] if names else []
        values = [f"{name} ({len(texts):,} values)" for name, texts in self.categories.items()]
        notes += [f"one input for each value: {column_list(values)}"] if values else []
        notes += ["missing values become means"] if self.means else []
        notes += [f"left out: {column_list(self.options.drop_columns)}"] if self.options.drop_columns else []
        return "; ".join(notes)

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
            empty = sorted({name for name, count in zip(self.feature_columns, counts, strict=True) if not count})
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
        _require_finite(values, self.feature_columns, called)
        return values

    def _numbers_of(self, table: DataFrame, names: Sequence[str], called: str) -> Floats:
        """Columns of numbers, truth values and dates, shape (rows, columns), with NaN for missing values."""
        words = self.options.words
        of_cells = {*self.kinds} & {*names}
        if not of_cells and (block := plain_numbers(table, names, self.numbers, words)) is not None:
            return block
        values = np.empty((len(table), len(names)), order="F")
        problems = []
        for number, name in enumerate(names):
            is_number = name not in of_cells or (self.kinds[name] == "truth" and table[name].dtype.kind == "b")
            if is_number and (one := plain_numbers(table, [name], self.numbers, words)) is not None:
                values[:, number] = one[:, 0]
                continue
            column = read_column(table[name], self.options, self.numbers, called, self.kinds.get(name, "number"))
            if column.odd():
                problems.append(not_numbers(column))
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
        column = read_column(table[name], self.options, self.numbers, called, "text")
        place = {value: number for number, value in enumerate(values)}
        are_numbers = name not in self.categories and all(self.numbers.parse(value) is not None for value in values)
        texts = [label_text(text, self.numbers) if are_numbers else text for text in column.texts]
        found = np.array([*(place.get(text, -2) for text in texts), -1], np.int64)[column.codes]
        unknown = sorted({text for text in texts if text not in place})
        if unknown and not unknown_is_zero:
            rows = counted(int((found == -2).sum()), "row")
            shown = column_list([repr(text) for text in unknown])
            how = '; a training with data.unknown_categories = "zeros" allows them' if name in self.categories else ""
            raise DataError(
                f"{called}: column {name!r} has values that the training data did not have: {shown} ({rows}){how}"
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

    @property
    def feature_columns(self) -> list[str]:
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
            which = _counts([*self.feature_columns, *targets], bad)
            how = "the network was trained without such samples"
            if self.options.missing != "error":
                how += "; only training and evaluation leave them out"
            if in_y.any():
                how = TARGET_ADVICE
            rows = f"in {int(bad.any(axis=1).sum()):,} of {len(bad):,} rows"
            raise DataError(f"{called}: missing values {rows}: {which}; {how}")
        return x, y, int(left_out.sum())


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
