"""What each column of a training table holds: decided once, from all of its cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hybridnn.utils.text import counted, printable

from .rows import Task
from .table_columns import (
    EXACT,
    GROUPED,
    Column,
    Floats,
    Kind,
    Numbers,
    decide_numbers,
    is_native,
    label_text,
    odd_dates,
    plain_numbers,
    read_column,
    thousands_with_points,
)
from .table_doubts import FEW_ROWS, doubts, is_identifier
from .table_encoding import TableEncoding
from .table_options import TableOptions, column_list, require_columns
from .table_problems import (
    TARGET_ADVICE,
    Problem,
    are_too_many,
    column_problems,
    infinite_values,
    is_mostly_numbers,
    not_dates,
    not_numbers,
    second_header,
    sign_advice,
    words_advice,
)

if TYPE_CHECKING:
    from pandas import DataFrame

FEW_CLASSES = 50  # different whole numbers that are taken for labels in any table


Parts = list[tuple[Sequence[str], Floats]]
"""Names of columns, and their numbers, shape (rows, columns)."""


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
    doubts: list[str]  # what may not be as meant
    frame: DataFrame  # the table with its columns of numbers as floats
    has_task: bool  # whether the targets, if there are any, can be those of the task


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
    require_columns(called, table, options.text_columns, "which data.text_columns names")
    found, plain, numbers, (ambiguous, unlikely) = _read(table, called, columns, targets, options)
    problems, are_points_unlikely = [], options.separator in ("auto", ",")  # which would separate columns too
    if ambiguous or (unlikely and not are_points_unlikely):
        problems.append(_two_readings(ambiguous or unlikely, options, is_sure=bool(ambiguous)))
    inputs = [found[name] for name in columns if name in found]
    if header := second_header([*inputs, *(found[name] for name in targets)]):
        problems.append(header)
    else:
        problems += [problem for column in inputs for problem in column_problems(column, options)]
    known = replace(options, decimal=numbers.decimal, thousands=numbers.thousands or "none")  # type: ignore[arg-type]
    kinds = {name: column.kind for name, column in found.items() if column.kind in ("truth", "date")}
    truths = {name for name, dtype in zip(table.columns, table.dtypes, strict=True) if dtype.kind == "b"}
    kinds |= dict.fromkeys(truths & {*columns}, "truth")
    categories = {column.name: _sorted(column.texts) for column in inputs if column.kind == "text"}
    of_numbers = {column.name: column.values for column in inputs if column.kind == "number"}
    if numbers == Numbers():
        of_numbers |= {name: block[:, n] for names, block in plain for n, name in enumerate(names) if name not in found}
    floats = {name: of_numbers[name] for name in columns if name in of_numbers and name not in kinds}
    key = _key(table, {*columns, *targets}, floats)
    encoding = TableEncoding(tuple(columns), tuple(targets), key, (), categories, kinds, options=known)
    frame, has_task, doubted = _with_floats(table, floats), bool(targets), list[str]()
    if targets:
        of_targets = [found[name] for name in targets]
        gaps, doubted = list(_target_gaps(of_targets, options)), list(_dropped_classes(of_targets, options))
        classes, wrong = _fit_classes(of_targets, table, task, encoding)
        encoding, problems = replace(encoding, classes=classes), problems + gaps + wrong
        has_task = not wrong and all(gap.settings for gap in gaps)
    doubted += doubts(frame, table, list(found.values()), encoding, is_stated=task is not None)
    if unlikely and are_points_unlikely and len(table) >= FEW_ROWS:
        how = 'set data.thousands = "." if it separates thousands'
        doubted.append(f"every point stands before three digits, as in {unlikely!r}; {how}")
    if numbers == Numbers(",", ".") and options.decimal == options.thousands == "auto" and len(table) >= FEW_ROWS:
        doubted += _doubted_points(found.values())
    return Examination(encoding, found, problems, doubted, frame, has_task)


def _doubted_points(columns: Iterable[Column]) -> Iterator[str]:
    """Columns of which every cell has one point, before three digits, in a table with decimal commas."""
    for column in columns:
        if column.kind == "number" and all(text.count(".") == 1 and "," not in text for text in column.texts):
            text, number = column.texts[0], column.numbers[0]
            what = f"{printable(column.name, 40)}: every cell has a point before three digits, and {text!r} is read as"
            yield f"{what} {number:.0f}, as other numbers have commas; write a comma if the point is a decimal point"


def _read(
    table: DataFrame, called: str, columns: Sequence[str], targets: Sequence[str], options: TableOptions
) -> tuple[dict[str, Column], Parts, Numbers, tuple[str, str]]:
    """Columns that were read cell by cell, the others, how numbers are written, and cells that have two readings.

    Of the latter, the first is to be asked about, and the second is a decimal number in all likelihood.
    """
    plain, unread = _plain_parts(table, [*columns, *(targets if len(targets) > 1 else ())], options)
    stated = [name for name in columns if name in options.text_columns]
    given: dict[str, Kind] = dict.fromkeys(options.text_columns, "text")

    def read(names: Iterable[str], numbers: Numbers) -> dict[str, Column]:
        return {name: read_column(table[name], options, numbers, called, given.get(name)) for name in names}

    raw = read(dict.fromkeys([*unread, *targets, *stated]), Numbers())
    if any(re.search(r"\d,\d", text) for column in raw.values() for text in column.texts):  # points may be of thousands
        raw |= read((name for name in columns if name not in raw and not is_native(table[name].dtype)), Numbers())
    numbers, comma = decide_numbers((text for column in raw.values() for text in column.texts), options)
    ambiguous = comma, ""
    if numbers == Numbers() and options.decimal == options.thousands == "auto":
        ambiguous = _ambiguous_points(table, raw, plain)
    return raw if numbers == Numbers() else read(raw, numbers), plain, numbers, ambiguous


def _ambiguous_points(table: DataFrame, raw: Mapping[str, Column], plain: Parts) -> tuple[str, str]:
    """Numbers whose point may separate thousands, or empty texts: one beside numbers without points, and any other.

    Another point that is decimal speaks against both, unless all numbers of the column without a point have three
    digits.
    """
    texts = [column.texts for column in raw.values() if column.kind == "number"]
    in_texts = set(table.columns[[not is_native(dtype) for dtype in table.dtypes]])
    is_decimal = False
    mixed: list[str] = []
    others: list[str] = []
    few = ((names[i : i + 64], block[:, i : i + 64]) for names, block in plain for i in range(0, len(names), 64))
    for names, block in few:  # copies of all columns at a time would take much memory
        is_text = [name in in_texts for name in names]
        size = np.abs(block[:, is_text])
        size[~np.isfinite(size)] = 0.5
        is_whole, in_thousands = size == np.rint(size), 1000 * size
        is_possible = is_whole | ((size > 1) & (size < 1000) & (np.abs(in_thousands - np.rint(in_thousands)) < 1e-6))
        is_decimal = is_decimal or not is_possible.all()
        has_points = ~is_whole.all(axis=0) & is_possible.all(axis=0)
        mixed += compress(compress(names, is_text), has_points & is_whole.any(axis=0))
        others += compress(compress(names, is_text), has_points & ~is_whole.any(axis=0))

    def cells_of(names: Iterable[str]) -> Iterator[Sequence[str]]:
        return ([cell.strip() for cell in table[name].to_numpy()] for name in names)

    with_points = (text for cells in chain(texts, cells_of([*others, *mixed])) for text in cells if "." in text)
    first = "" if is_decimal else next(with_points, "")
    is_decimal = is_decimal or not all(map(GROUPED.fullmatch, filter(None, chain([first], with_points))))
    found = (thousands_with_points(cells, 3 if is_decimal else 1) for cells in chain(texts, cells_of(mixed)))
    return next(filter(None, found), ""), "" if is_decimal else first


def _two_readings(number: str, options: TableOptions, *, is_sure: bool) -> Problem:
    """The problem of a number whose comma or point may separate thousands; `is_sure`: a point probably does."""
    if "," in number:
        how = 'set data.thousands = "," if it separates thousands, or data.decimal = "," if it is a decimal comma'
        settings = {} if options.separator in (";", "\t") else {"thousands": ","}
    else:
        how = 'set data.thousands = "." if the point separates thousands, or "none" if it is a decimal point'
        settings = {"thousands": "."} if is_sure else {}
    return Problem(f"{number!r} may be read in two ways", how, settings)


def _key(table: DataFrame, used: set[str], numbers: Mapping[str, Floats]) -> str:
    """The first column, if it seems to identify the rows: without use and with different cells, or an input of ids."""
    first = str(table.columns[0])
    if first in numbers:
        is_long = len(table) >= FEW_ROWS and np.abs(numbers[first]).max() >= EXACT
        is_key = is_long or is_identifier(first, numbers[first])
        return first if is_key and table[first].astype(str).is_unique else ""
    return first if first not in used and table[first].astype(str).is_unique else ""


def _with_floats(table: DataFrame, columns: Mapping[str, Floats]) -> DataFrame:
    """The table with some columns replaced, which come first."""
    import pandas

    values = np.column_stack(list(columns.values())) if columns else np.empty((len(table), 0))
    floats = pandas.DataFrame(values, table.index, pandas.Index(list(columns), dtype=object))
    return pandas.concat([floats, table.loc[:, ~table.columns.isin(list(columns))]], axis=1)


def _plain_parts(table: DataFrame, names: Sequence[str], options: TableOptions) -> tuple[Parts, list[str]]:
    """The columns that are numbers alone, and the names of the others, found by halving."""
    plain = Numbers() if options.decimal in ("auto", ".") else Numbers(options.decimal)
    values = plain_numbers(table, names, plain, options.words) if names else None
    if values is not None and np.isfinite(values).all():
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
    if task == "regression" or (task is None and len(targets) > 1):
        return (), [_regression_problem(column) for column in targets if column.odd() and column.kind == "text"]
    if len(targets) > 1:
        shown = f"classification needs one target column, not {len(targets)}"
        return (), [Problem(shown, "give one name in data.targets")]
    column = targets[0]
    if task is None and (column.kind == "date" or (column.kind == "number" and _has_decimals(column, table, encoding))):
        return (), []
    is_number = column.kind == "number"
    classes = _sorted(label_text(text, encoding.numbers) if is_number else text for text in column.texts)
    problem = _label_problem(column, classes, task, encoding.options)
    return classes, [problem] if problem else []


def _target_gaps(targets: Sequence[Column], options: TableOptions) -> Iterator[Problem]:
    """Missing and infinite values of targets; words such as None may be a class."""
    for column in targets:
        if column.missing and "drop" not in (options.missing, options.missing_targets):
            row = int((column.codes < 0).argmax()) + 1
            rows = f"{counted(column.missing, 'row')}, first in row {row:,}"
            shown = f"missing values in the target {printable(column.name, 40)} ({rows})"
            if words := words_advice(column, options, "class"):
                yield Problem(shown, f"{words}; else {TARGET_ADVICE}")
            else:
                yield Problem(shown, TARGET_ADVICE, {"missing_targets": "drop"})
        yield from infinite_values(column, is_target=True)


def _dropped_classes(targets: Sequence[Column], options: TableOptions) -> Iterator[str]:
    """Doubts about words among labels that count as missing values, and whose rows are left out."""
    for column in targets if "drop" in (options.missing, options.missing_targets) else ():
        if words := words_advice(column, options, "class"):
            rows = counted(column.missing, "row")
            yield f"{printable(column.name, 40)}: {rows} without a label are left out; {words}"


def _has_decimals(column: Column, table: DataFrame, encoding: TableEncoding) -> bool:
    """Whether numbers have decimals or separators of thousands, as those of a regression."""
    thousands = encoding.numbers.thousands
    if (column.numbers != np.rint(column.numbers)).any() or (thousands and any(thousands in t for t in column.texts)):
        return True
    series = table[column.name]
    if is_native(series.dtype):  # pandas makes whole numbers floats where values are missing
        return series.dtype.kind == "f" and not column.missing
    return any(encoding.numbers.decimal in text or "e" in text.casefold() for text in column.texts)


def _regression_problem(column: Column) -> Problem:
    problem = not_numbers(column, is_target=True)
    return problem._replace(text=f"regression needs numbers as targets; {problem.text}")


def _are_quantities(values: int, rows: int) -> bool:
    """Whether there are too many different whole numbers for labels."""
    return values > max(FEW_CLASSES, rows // 4) or are_too_many(values, rows)


def _label_problem(column: Column, classes: Sequence[str], task: Task | None, options: TableOptions) -> Problem | None:
    """Why a column cannot hold labels."""
    name, rows = f"column {column.name!r}", len(column.codes) - column.missing
    is_free = column.kind == "text" and task is None and column.name not in options.text_columns
    if is_free and (is_mostly_numbers(column) or sign_advice(column.texts)):
        problem, numbers = not_numbers(column, is_target=True), column.numbers[~np.isnan(column.numbers)]
        if (numbers != np.rint(numbers)).any():
            return problem
        if not _are_quantities(len(np.unique(numbers)), rows):
            return problem._replace(settings={})  # an odd cell may be a class
        how = f"{problem.advice}; set model.loss to mse for regression"
        return problem._replace(advice=how, settings=problem.settings and {**problem.settings, "model.loss": "mse"})
    if column.kind == "number":
        broken = column.numbers[column.numbers != np.rint(column.numbers)]
        if broken.size:
            return Problem(f"{name} holds {broken[0]:g}", "classification needs labels")
        largest = column.numbers[np.abs(column.numbers).argmax()] if column.numbers.size else 0
        if abs(largest) >= EXACT:
            return Problem(f"{name} has the label {largest:.0f}", "it is too large")
        if task is None and _are_quantities(len(classes), rows):
            how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
            shown = f"{name} has {len(classes):,} different whole numbers in {rows:,} rows"
            return Problem(shown, how, {"model.loss": "mse"})
    elif task is None and are_too_many(len(classes), rows):
        if not_days := odd_dates(column.texts, options.dates):
            return not_dates(column, not_days, options.dates, is_target=True)
        how = "a class needs several rows; name another column, or set model.loss to cross_entropy if these are labels"
        return Problem(f"{name} has {len(classes):,} different texts in {rows:,} rows", how)
    if len(classes) < 2:
        only = f"all labels are {column_list(classes)}" if classes else "has no label"
        return Problem(f"{name}: {only}", "classification needs at least 2 classes")
    return None
