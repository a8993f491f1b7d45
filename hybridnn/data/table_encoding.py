"""Columns of a table as inputs and targets of a network, as they were decided in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.text import NAMES_SHOWN, column_list, counted, printable

from .table_columns import Column, Floats, Kind, label_text, number_block, numbers_of, read_columns
from .table_file import Known, named_frame
from .table_options import TableOptions, as_names, require_columns
from .table_problems import TARGET_ADVICE, not_numbers, other_form, require_no_problem

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

    def describe(self) -> str:
        """What was decided about the columns, as one line."""
        plain = [name for name in self.columns if name not in self.categories]
        kinds = {"number": "numbers", "date": "dates become days since 1970", "truth": "truth values become 0 and 1"}
        found = {text: [n for n in plain if self.kinds.get(n, "number") == kind] for kind, text in kinds.items()}
        found["one input for each value"] = [f"{name} ({len(of):,} values)" for name, of in self.categories.items()]
        found["left out"] = list(self.options.drop_columns)
        means = ["missing values become means"] if self.means else []
        return "; ".join([f"{text}: {column_list(names)}" for text, names in found.items() if names] + means)

    def encode(
        self, table: DataFrame, called: str = "the table", *, targets: str | Sequence[str] | None = None
    ) -> EncodedTable:
        """Encode the samples of a table that has the columns of this encoding, in any order, and others.

        Raises `DataError`, which begins with `called`: a column is missing, or has values that cannot be encoded.

        Parameters
        ----------
        targets : str or sequence of str, optional
            Target columns, in place of `targets`; empty for samples without targets.
        """
        names = self.targets if targets is None else as_names(targets)
        if not all(isinstance(name, str) for name in table.columns):
            table = named_frame(table, called)
        require_columns(called, table, self.columns, "which the inputs need")
        require_columns(called, table, names, "which holds targets")
        return self._without_missing(self._inputs(table, called), self._targets(table, names, called), names, called)

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
        counts = (~np.isnan(rows)).sum(axis=0)
        if not counts.all():
            empty = sorted({self.feature_columns[place] for place in np.flatnonzero(counts == 0)})
            raise DataError(f"{called}: no value in the training samples of {column_list(empty)}: no mean to fill in")
        return replace(self, means=tuple((np.nansum(rows, axis=0) / counts).tolist()))

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

    @property
    def texts(self) -> set[str]:
        """Columns whose cells are read as text: inputs other than numbers, and labels."""
        return {*self.categories, *self.kinds, *(self.targets if self.classes else ())}

    @property
    def known(self) -> Known:
        """What is known of the columns of another file."""
        return Known(self.columns, self.targets, self.has_row_names)

    def _inputs(self, table: DataFrame, called: str) -> Floats:
        """Inputs, shape (rows, features), with NaN for missing values."""
        plain = [name for name in self.columns if name not in self.categories]
        values = self._numbers_of(table, plain, called)
        if self.categories:
            place, parts = {name: number for number, name in enumerate(plain)}, list[Floats]()
            for name in self.columns:
                if name not in self.categories:
                    parts.append(values[:, place[name], None])
                    continue
                codes = self._codes(table, name, self.categories[name], called)[:, None]
                parts.append(np.where(codes == -1, np.nan, codes == np.arange(len(self.categories[name]))))
            values = np.concatenate(parts, axis=1)
        _refuse(np.isinf(values), self.feature_columns, f"{called}: infinite values", "")
        return values

    def _numbers_of(self, table: DataFrame, names: Sequence[str], called: str) -> Floats:
        """Columns of numbers, truth values and dates, shape (rows, columns), with NaN for missing values."""
        places = table.columns.get_indexer(list(names))
        dtypes = np.array([dtype.kind for dtype in table.dtypes], str)[places]
        is_plain = np.isin(dtypes, list("iuf"))
        if self.kinds:
            kinds = np.array([self.kinds.get(name, "number") for name in names], str)
            is_plain = (is_plain & (kinds == "number")) | ((dtypes == "b") & (kinds == "truth"))
        if is_plain.all():
            return number_block(table, places)
        values = np.empty((len(table), len(names)))
        values[:, is_plain] = number_block(table, places[is_plain])
        stated: dict[str, Kind] = {**dict.fromkeys(names, "number"), **self.kinds}
        columns = list(read_columns(table, places[~is_plain], self.options.csv, called, stated))
        csv, odd = self.options.csv, [column for column in columns if column.odd()]
        require_no_problem(called, [other_form(one, csv, is_training=False) or not_numbers(one) for one in odd])
        values[:, ~is_plain] = np.column_stack([column.values for column in columns])
        return values

    def _codes(self, table: DataFrame, name: str, values: Sequence[str], called: str) -> NDArray[np.int64]:
        """The place of each row's value among `values`, -1 for missing values; unknown ones are -2, or refused."""
        column: Column
        csv, place = self.options.csv, np.array([table.columns.get_loc(name)], np.intp)
        (column,) = read_columns(table, place, csv, called, {name: "text"})
        are_numbers = name not in self.categories and not np.isnan(numbers_of(values, csv)).any()
        texts = [label_text(text, csv) if are_numbers else text for text in column.texts]
        known = {value: number for number, value in enumerate(values)}
        found = np.array([*(known.get(text, -2) for text in texts), -1], np.int64)[column.codes]
        unknown = sorted({text for text in texts if text not in known})
        if unknown and not (name in self.categories and self.options.unknown_categories == "zeros"):
            shown = f"{column_list([repr(text) for text in unknown])} ({counted(int((found == -2).sum()), 'row')})"
            how = '; a training with data.unknown_categories = "zeros" allows them' if name in self.categories else ""
            raise DataError(f"{called}: column {name!r} has values that the training data did not have: {shown}{how}")
        return found

    def _targets(self, table: DataFrame, names: Sequence[str], called: str) -> NDArray[Any] | None:
        """Labels, -1 for missing ones, or targets of regression, NaN for missing ones; None without names."""
        if not names:
            return None
        if self.classes:
            if len(names) > 1:
                raise SettingError("data.targets", list(names[:NAMES_SHOWN]), "classification needs one target column")
            return self._codes(table, names[0], self.classes, called)
        targets = self._numbers_of(table, names, called)
        _refuse(np.isinf(targets), names, f"{called}: infinite values", "")
        return targets

    def _without_missing(self, x: Floats, y: NDArray[Any] | None, targets: Sequence[str], called: str) -> EncodedTable:
        """Samples without missing values; those are NaN in inputs and targets, and -1 in labels."""
        in_x, in_y = np.isnan(x), np.zeros((len(x), 0), bool)
        if y is not None:
            in_y = (y < 0)[:, None] if self.classes else np.isnan(y)
        missing = self.options.missing
        left_out = in_y.any(axis=1) & (missing == "drop" or self.options.missing_targets == "drop")
        left_out |= in_x.any(axis=1) & (missing == "drop" and y is not None)
        if left_out.all() and len(x):
            raise DataError(f"{called}: every row has a missing value: none is left")
        if left_out.any():
            kept = ~left_out
            x, in_x, in_y, y = x[kept], in_x[kept], in_y[kept], None if y is None else y[kept]
        if self.means and in_x.any():
            x, in_x = np.where(in_x, self.means, x), np.zeros_like(in_x)
        how = "; the network was trained without such samples"
        how += "; only training and evaluation leave them out" if missing != "error" else ""
        _refuse(
            np.concatenate([in_x, in_y], axis=1),
            [*self.feature_columns, *targets],
            f"{called}: missing values",
            f"; {TARGET_ADVICE}" if in_y.any() else how,
        )
        return EncodedTable(x, y, int(left_out.sum()))


def _refuse(bad: NDArray[np.bool_], columns: Sequence[str], what: str, how: str) -> None:
    """Raise DataError if values are bad, with their columns and the number of rows."""
    if bad.any():
        rows: dict[str, int] = {}
        for name, count in zip(columns, bad.sum(axis=0).tolist(), strict=True):
            rows[name] = max(count, rows.get(name, 0))
        texts = [f"{printable(name, 40)} ({counted(count, 'row')})" for name, count in rows.items() if count]
        more = f" and {len(texts) - NAMES_SHOWN:,} more columns" if len(texts) > NAMES_SHOWN else ""
        first = f"first in row {int(bad.any(axis=1).argmax()) + 1:,}"
        number = f"in {int(bad.any(axis=1).sum()):,} of {len(bad):,} rows"
        raise DataError(f"{what} {number}: {', '.join(texts[:NAMES_SHOWN])}{more}, {first}{how}")
