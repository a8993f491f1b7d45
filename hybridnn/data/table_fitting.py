"""What each column of a training table holds: decided once, from all of its cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.utils.text import column_list

from .rows import Task
from .table_columns import (
    Column,
    Floats,
    Kind,
    has_decimals,
    label_text,
    number_block,
    number_pattern,
    read_columns,
    with_date_formats,
)
from .table_encoding import TableEncoding
from .table_file import Table
from .table_options import TableOptions, require_columns
from .table_problems import (
    FEW_ROWS,
    Problem,
    column_problem,
    is_mostly_numbers,
    missing_values,
    not_numbers,
    other_form,
    sign_of,
    two_readings,
    words_advice,
)

EXACT = 2**53  # from here on, float64 does not represent all integers
MOST_LABELS, ROWS_PER_LABEL = 20, 2  # whole numbers are labels up to so many, with on average so many rows each
ID_NAME = re.compile(r"(.*[\W_])?(id|nr|no|key|number|subject)[\W_]?|.*[a-z]I[dD]", re.I)


class Examination(NamedTuple):
    """What a table holds, and why it cannot be used."""

    encoding: TableEncoding
    columns: dict[str, Column]  # that were read cell by cell; the other inputs are numbers
    problems: list[Problem]
    notes: list[str]  # what may not be as meant


def examine(
    table: Table, called: str, columns: Sequence[str], targets: Sequence[str], task: Task | None
) -> Examination:
    """Decide what every column of a table is; means are left to `TableEncoding.with_means`.

    Parameters
    ----------
    columns, targets : sequence of str
        Input and target columns; they exist. Without targets only the inputs are examined.
    task : {'classification', 'regression'}, optional
        By default, one target column of text, truth values or few whole numbers holds labels.
    """
    frame, parsed = table.frame, table.options.csv.get("parse_dates", ())
    require_columns(called, frame, table.options.text_columns, "which data.text_columns names")
    require_columns(called, frame, parsed, "which data.csv.parse_dates names")
    options = replace(table.options, csv=with_date_formats(frame, table.options.csv))
    stated: dict[str, Kind] = {**dict.fromkeys(parsed, "date"), **dict.fromkeys(options.text_columns, "text")}
    dtypes = dict(zip(frame.columns, (dtype.kind for dtype in frame.dtypes), strict=True))
    plain = [name for name in columns if dtypes[name] in "iuf" and name not in stated]
    others = list(dict.fromkeys([*columns, *targets]).keys() - {*plain}) if plain else [*columns, *targets]
    block = number_block(frame, frame.columns.get_indexer(plain))
    places = np.sort(frame.columns.get_indexer(others))
    found = {column.name: column for column in read_columns(frame, places, options.csv, called, stated)}
    inputs, outputs = [found[name] for name in columns if name in found], [found[name] for name in targets]
    problems, notes = _points(table, plain, block, outputs), list[str]()
    odd_row = _odd_row([*inputs, *outputs])
    problems += odd_row or [problem for column in inputs if (problem := column_problem(column, options))]
    is_missing = np.isnan(block)
    gaps = [(plain[n], is_missing[:, n], False) for n in np.flatnonzero(is_missing.any(axis=0)).tolist()]
    gaps += [(column.name, column.codes < 0, column.kind == "text") for column in inputs if (column.codes < 0).any()]
    for name, missing, is_text in gaps:
        if options.missing == "error" or missing.all():
            words = _missing_words(table, name, missing) if is_text else []
            problems += missing_values(name, missing, words)
    for column in outputs:
        if (missing := column.codes < 0).any():
            words = _missing_words(table, column.name, missing) if column.kind == "text" or not column.texts else []
            if "drop" not in (options.missing, options.missing_targets):
                problems += missing_values(column.name, missing, words, is_target=True)
            elif words:
                rows = f"{column.name}: {int(missing.sum()):,} rows without a label are left out"
                notes.append(f"{rows}; {words_advice(words, 'class')}")
    categories = {column.name: sorted_texts(column.texts) for column in inputs if column.kind == "text"}
    kinds = {name: column.kind for name, column in found.items() if column.kind in ("truth", "date")}
    classes, wrong = _fit_classes(outputs, task, options) if targets else ((), [])
    first = str(frame.columns[0])
    is_id = first in plain[:1] and is_identifier(first, block[:, 0])
    key = first if (is_id or (first not in columns and first not in targets)) and frame.iloc[:, 0].is_unique else ""
    if is_id:
        notes.append(
            f"{first} seems to identify the rows; if it does nothing else, leave it out with data.drop_columns"
        )
    encoding = TableEncoding(tuple(columns), tuple(targets), key, classes, categories, kinds, options=options)
    return Examination(encoding, found, problems + wrong, notes)


def sorted_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts in order; whole numbers by size."""
    distinct = set(texts)
    try:
        return tuple(sorted(distinct, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(distinct))


def is_identifier(name: str, values: Floats) -> bool:
    """Whether numbers seem to identify the rows: all differ, and they count from 0 or 1, are long, or named so."""
    if len(values) < 5 or (values != np.rint(values)).any() or len(np.unique(values)) < len(values):
        return False
    is_count = values[0] in (0, 1) and (np.diff(values) == 1).all()
    return bool(is_count or ID_NAME.fullmatch(name) or np.abs(values).max() >= EXACT)


def _points(table: Table, plain: Sequence[str], block: Floats, targets: Sequence[Column]) -> list[Problem]:
    """Columns whose points, all before three digits, may separate thousands.

    Numbers below 1, and others with more or fewer decimals, are decimal; whole numbers above 999 would have points. If
    some points of the table are decimal, all are, unless the numbers without one in their column have three digits.
    """
    given = table.options.csv
    if table.raw is None or {"decimal", "thousands"} & {*given}:
        return []
    size = np.nan_to_num(np.abs(block), posinf=0.0)
    is_whole, in_thousands = size == np.rint(size), 1000 * size
    is_possible = is_whole | ((size > 1) & (size < 1000) & (np.abs(in_thousands - np.rint(in_thousands)) < 1e-6))
    is_decimal, found = not is_possible.all(), list[tuple[str, str, set[int]]]()
    chosen = (is_possible & (size < 1000)).all(axis=0) & ~is_whole.all(axis=0)
    chosen &= (is_whole & (size >= 100)).any(axis=0) | (not is_decimal)
    names = [plain[place] for place in np.flatnonzero(chosen).tolist()]
    cells = {
        str(name): texts.str.strip().unique().tolist() for name, texts in (table.raw(names) if names else {}).items()
    }
    for name, texts in (
        *cells.items(),
        *((column.name, column.texts) for column in targets if column.kind == "number"),
    ):
        points, digits = [t for t in texts if "." in t], {len(t.lstrip("+-")) for t in texts if t and "." not in t}
        is_grouped = all(map(number_pattern(",", ".").fullmatch, points))
        is_decimal |= not is_grouped
        found += [(name, points[0], digits)] if points and is_grouped else []
    return [
        two_readings(point, name)
        for name, point, digits in found
        if (digits <= ({3} if is_decimal else {1, 2, 3}) if digits else not is_decimal and given["sep"] != ",")
    ]


def _odd_row(columns: Sequence[Column]) -> list[Problem]:
    """The problem of a row that names, describes or sums up columns: several columns of numbers have none there."""
    odd = [column for column in columns if column.kind == "text" and is_mostly_numbers(column)]
    rows = {tuple(column.rows(column.odd()).tolist()) for column in odd}
    if len(odd) < 2 or len(rows) > 1 or len(row := rows.pop()) > 1 or len(columns[0].codes) < 3:
        return []
    cells = column_list([repr(column.odd()[0]) for column in odd])
    how = "remove it from the file if it describes or sums up the columns"
    how += "; set data.csv.header = 0 if it names them" if row[0] == 0 else ""
    return [Problem(f"row {row[0] + 1:,} holds no numbers ({cells}) where the other rows do", how)]


def _missing_words(table: Table, name: str, missing: NDArray[np.bool_]) -> list[str]:
    """The usual words of a file that were taken for missing values in a column."""
    csv = table.options.csv
    if table.raw is None or not csv.get("keep_default_na", True):
        return []
    cells = dict.fromkeys(cell.strip() for cell in table.raw([name])[name].to_numpy(object)[missing])
    return [word for word in cells if word and word not in csv.get("na_values", ())]


def _fit_classes(
    targets: Sequence[Column], task: Task | None, options: TableOptions
) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of the classes, empty for regression, and what is wrong with the targets."""
    column, csv = targets[0], options.csv
    if task == "regression" or (task is None and len(targets) > 1):
        wrong = [other_form(one, csv) or not_numbers(one, is_target=True) for one in targets if one.odd()]
        return (), [problem._replace(text=f"regression needs numbers as targets; {problem.text}") for problem in wrong]
    if len(targets) > 1:
        return (), [Problem(f"classification needs one target column, not {len(targets)}", "name one in data.targets")]
    is_number = column.kind == "number"
    if task is None and (column.kind == "date" or (is_number and has_decimals(column.texts, csv))):
        return (), []
    classes = sorted_texts(label_text(text, csv) if is_number else text for text in column.texts)
    problem = (_quantity_problem if is_number else _text_problem)(column, classes, task, options)
    if problem is None and len(classes) < 2:
        only = f"all labels are {column_list(classes)}" if classes else "has no label"
        problem = Problem(f"column {column.name!r}: {only}", "classification needs at least 2 classes")
    return classes, [problem] if problem else []


def _quantity_problem(
    column: Column, classes: Sequence[str], task: Task | None, options: TableOptions
) -> Problem | None:
    """Why a column of numbers cannot hold labels."""
    name, rows, numbers = f"column {column.name!r}", int((column.codes >= 0).sum()), column.numbers
    broken, largest = numbers[numbers != np.rint(numbers)], np.abs(numbers).max(initial=0)
    if broken.size:
        return Problem(f"{name} holds {broken[0]:g}", "classification needs labels")
    if largest >= EXACT:
        return Problem(f"{name} has the label {numbers[np.abs(numbers).argmax()]:.0f}", "it is too large")
    if task is not None or (len(classes) <= MOST_LABELS and rows >= ROWS_PER_LABEL * len(classes)):
        return None
    is_count = numbers.min() in (0, 1) and largest - numbers.min() == len(numbers) - 1
    likely = "cross_entropy" if is_count and (len(numbers) <= MOST_LABELS or rows >= 10 * len(numbers)) else "mse"
    how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
    return Problem(f"{name} has {len(classes):,} different whole numbers in {rows:,} rows", how, {"model.loss": likely})


def _text_problem(column: Column, classes: Sequence[str], task: Task | None, options: TableOptions) -> Problem | None:
    """Why a column of text cannot hold labels."""
    rows, numbers = int((column.codes >= 0).sum()), column.numbers[~np.isnan(column.numbers)]
    if task is not None or column.kind != "text" or column.name in options.text_columns:
        return None
    if problem := other_form(column, options.csv):
        return problem
    if is_mostly_numbers(column) or sign_of(column.texts):
        problem = not_numbers(column, is_target=True)
        if (numbers != np.rint(numbers)).any():
            return problem
        if len(numbers) <= MOST_LABELS and rows >= ROWS_PER_LABEL * len(numbers):
            return problem._replace(settings={})  # an odd cell may be a class
        settings = problem.settings and {**problem.settings, "model.loss": "mse"}
        return problem._replace(advice=f"{problem.advice}; set model.loss to mse for regression", settings=settings)
    if rows >= FEW_ROWS and len(classes) > rows // 2:
        how = "a class needs several rows; name another column, or set model.loss to cross_entropy if these are labels"
        return Problem(f"column {column.name!r} has {len(classes):,} different texts in {rows:,} rows", how)
    return None
