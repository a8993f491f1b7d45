"""What in a table can be used, and is probably not as meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.utils.text import counted

from .table_columns import EXACT, TOTAL, is_native
from .table_options import column_list

if TYPE_CHECKING:
    from pandas import DataFrame

    from .table_columns import Column, Floats
    from .table_encoding import TableEncoding

COMPACT_DATES = (19000101, 21001231)
SENTINELS = np.array([sign * (10.0**digits - 1) for digits in range(2, 7) for sign in (1, -1)] + [999.9, -999.9])
"""Numbers such as 99 and -999, which stand for missing values in many tables."""
FAR = 3.0  # times the range of the other values, from which on a sentinel is far from them
FEW_ROWS = 5
ID_NAME = re.compile(r"(.*[\W_])?(id|nr|no|key|number)[\W_]?", re.I)
ID_SUFFIX = re.compile(r".*[a-z]I[dD]")
MANY_CLASSES = 15  # different whole numbers that are taken for labels without a doubt
FEW_ROWS_PER_CLASS = 10
CODES_ADVICE = "data.text_columns makes an input of each value, and data.drop_columns leaves them out"


def doubts(
    frame: DataFrame, table: DataFrame, columns: Sequence[Column], encoding: TableEncoding, *, is_stated: bool
) -> Iterator[str]:
    """Sentences about the columns of a table, without its name.

    Parameters
    ----------
    frame, table : DataFrame
        The table with its columns of numbers as floats, and as it was read.
    columns : sequence of Column
        Input and target columns that were read cell by cell.
    is_stated : bool
        Whether the task was stated.
    """
    is_number = [dtype.kind in "iuf" for dtype in frame.dtypes]
    inputs = set(encoding.columns)  # faster than `Index.isin` where there are many
    numbers = frame.loc[:, [number and name in inputs for name, number in zip(frame.columns, is_number, strict=True)]]
    names = list(numbers.columns)
    of_targets = [column for column in columns if column.name in encoding.targets and column.kind == "number"]
    if names and len(frame):
        values = numbers.to_numpy(np.float64)
        least, most = np.fmin.reduce(values), np.fmax.reduce(values)
        yield from _compact_dates(names, values, least, most)
        yield from _sentinels(names, values, least, most)
        yield from _long_numbers([names[n] for n in np.flatnonzero((most >= EXACT) | (least <= -EXACT))], table)
        if encoding.columns[0] in names:
            yield from _row_numbers(encoding.columns[0], values[:, names.index(encoding.columns[0])])
    yield from _total_row(frame.loc[:, [dtype.kind == "O" for dtype in frame.dtypes]])
    if not encoding.classes:
        for column in of_targets:
            values = column.values[:, None]
            yield from _sentinels([column.name], values, np.fmin.reduce(values), np.fmax.reduce(values))
    coded = [column.name for column in columns if column.name in names and _has_leading_zeros(column)]
    if coded:
        yield f"numbers with leading zeros, as codes have: {column_list(coded)}; {CODES_ADVICE}"
    yield from _labels(encoding, [] if is_stated else of_targets)


def is_identifier(name: str, values: Floats) -> bool:
    """Whether numbers seem to identify the rows: they count from 0 or 1, or all differ and the name says so."""
    if len(values) < FEW_ROWS or (values != np.rint(values)).any() or len(np.unique(values)) < len(values):
        return False
    has_name = ID_NAME.fullmatch(name) or ID_SUFFIX.fullmatch(name)
    return bool(has_name) or (values[0] in (0, 1) and bool((np.diff(values) == 1).all()))


def _row_numbers(name: str, values: Floats) -> Iterator[str]:
    if is_identifier(name, values):
        what = "counts the rows" if (np.diff(values) == 1).all() else "has another whole number in every row"
        yield f"{name} {what}; if it only identifies them, leave it out with data.drop_columns"


def _long_numbers(names: Sequence[str], table: DataFrame) -> Iterator[str]:
    def is_long(name: str) -> bool:
        column = table[name]
        return (
            column.dtype.kind in "iu"
            if is_native(column.dtype)
            else bool(column.astype(str).str.strip().str.fullmatch(r"[+-]?\d{16,}").any())
        )

    if found := [name for name in names if is_long(name)]:
        yield f"whole numbers of so many digits that some are lost, as ids have: {column_list(found)}; {CODES_ADVICE}"


def _total_row(texts: DataFrame) -> Iterator[str]:
    for name in texts.columns if len(texts) >= FEW_ROWS else ():
        last = str(texts[name].iloc[-1]).strip()
        if TOTAL.fullmatch(last) and (texts[name] == texts[name].iloc[-1]).sum() == 1:
            yield f"the last row has {last!r} as {name}; if it sums up the others, remove it from the file"


def _compact_dates(names: Sequence[str], values: Floats, least: Floats, most: Floats) -> Iterator[str]:
    import pandas

    is_near = (least >= COMPACT_DATES[0]) & (most <= COMPACT_DATES[1])
    found = []
    for number in np.flatnonzero(is_near).tolist():
        texts = [f"{value:.0f}" for value in values[:, number] if not np.isnan(value)]
        if pandas.to_datetime(pandas.Series(texts), format="%Y%m%d", errors="coerce").notna().all():
            found.append(names[number])
    if found:
        yield f"read as numbers, but may be dates: {column_list(found)}; dates are written as 2020-12-31"


def _sentinels(names: Sequence[str], values: Floats, least: Floats, most: Floats) -> Iterator[str]:
    for number in np.flatnonzero(np.isin(least, SENTINELS) | np.isin(most, SENTINELS)).tolist():
        column = values[:, number]
        for sentinel in (least[number], most[number]):
            others = column[(column != sentinel) & ~np.isin(column, SENTINELS) & ~np.isnan(column)]
            if sentinel not in SENTINELS or len(np.unique(others)) < 2:
                continue
            distance = max(others.min() - sentinel, sentinel - others.max())
            if distance > FAR * np.ptp(others):
                rows = counted(int((column == sentinel).sum()), "row")
                yield (
                    f"{names[number]}: {sentinel:g} ({rows}) is far from all other values; if it stands for a missing "
                    f"value, set data.missing_words = {sentinel:g} and data.missing"
                )


def _has_leading_zeros(column: Column) -> bool:
    return column.kind == "number" and any(text[:1] == "0" and text[1:2].isdigit() for text in column.texts)


def _labels(encoding: TableEncoding, targets: Sequence[Column]) -> Iterator[str]:
    name = encoding.targets[0] if encoding.targets else ""
    folded: dict[str, str] = {}
    for label in encoding.classes:
        other = folded.setdefault(label.casefold(), label)
        if other != label:
            yield f"{name}: {other!r} and {label!r} are two classes, and differ by capitals only"
            break
    classes, rows = len(encoding.classes), len(targets[0].codes) if targets else 0
    if targets and classes > MANY_CLASSES and classes * FEW_ROWS_PER_CLASS > rows:
        yield f"{name}: {classes} whole numbers are taken for classes; set model.loss to mse for a regression"
