"""What each column of a training table holds: decided once, from all of its cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.utils.text import column_list, counted

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
    DROP_ADVICE,
    FEW_ROWS,
    TARGET_ADVICE,
    Problem,
    column_problem,
    is_mostly_numbers,
    not_numbers,
    other_form,
    sign_of,
    two_readings,
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
    """Decide what the input and target columns of a table are; means are left to `TableEncoding.with_means`.

    Without a `task`, one target column of text, truth values or few whole numbers holds labels.
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
    problems += [problem for column in inputs if (problem := column_problem(column, options))]
    is_missing = np.isnan(block)
    gaps = [(plain[n], is_missing[:, n], False) for n in np.flatnonzero(is_missing.any(axis=0)).tolist()]
    gaps += [(one.name, one.codes < 0, one.kind == "text") for one in (*inputs, *outputs) if (one.codes < 0).any()]
    for name, missing, is_text in gaps:
        is_target = name in targets
        is_left_out = "drop" in (options.missing, options.missing_targets if is_target else "")
        gap = _gap(table, name, missing, is_text=is_text, is_target=is_target)
        if missing.all() or not (is_left_out or (options.missing == "mean" and not is_target)):
            problems.append(gap)
        elif is_target and not gap.settings:
            notes.append(f"{gap.text} are left out; {gap.advice.partition('; else')[0]}")
    categories = {column.name: sorted_texts(column.texts) for column in inputs if column.kind == "text"}
    kinds = {name: column.kind for name, column in found.items() if column.kind in ("truth", "date")}
    are_floats = bool(targets) and dtypes[targets[0]] == "f" and bool((outputs[0].codes >= 0).all())
    classes, wrong = _fit_classes(outputs, task, options, are_floats=are_floats) if targets else ((), [])
    first = str(frame.columns[0])
    is_id = first in plain[:1] and _are_ids(first, block[:, 0])
    is_key = is_id or first not in {*columns, *targets}
    key = first if is_key and frame.iloc[:, 0].is_unique else ""
    how = "if it does nothing else, leave it out with data.drop_columns"
    notes += [f"{first} seems to identify the rows; {how}"] if is_id else []
    encoding = TableEncoding(tuple(columns), tuple(targets), key, classes, categories, kinds, options=options)
    return Examination(encoding, found, problems + wrong, notes)


def _gap(table: Table, name: str, missing: NDArray[np.bool_], *, is_text: bool, is_target: bool) -> Problem:
    """The problem of missing values; words such as NA, which pandas takes for them, may be values of a text."""
    csv, kept, words = table.options.csv, "", list[str]()
    if is_text and table.raw and csv.get("keep_default_na", True):
        cells = dict.fromkeys(cell.strip() for cell in table.raw([name])[name].to_numpy(object)[missing])
        words = [repr(word) for word in cells if word and word not in csv.get("na_values", ())]
    if words:
        what = ("class", "classes") if is_target else ("value", "values")
        kept = f"if {column_list(words)} {f'is a {what[0]}' if len(words) == 1 else f'are {what[1]}'}"
        kept += ', set data.csv.keep_default_na = false, and data.csv.na_values = "" for empty cells'
    rows = ", ".join([counted(int(missing.sum()), "row"), *words, f"first in row {int(missing.argmax()) + 1:,}"])
    if is_target:
        how, settings = f"{kept}; else {TARGET_ADVICE}" if kept else TARGET_ADVICE, {"missing_targets": "drop"}
        return Problem(f"missing values in the target {name} ({rows})", how, {} if kept else settings)
    if missing.all():
        return Problem(f"{name} is empty", DROP_ADVICE, {"drop_columns": [name]}, name)
    how = f'set data.missing to "drop" to leave out these rows or to "mean" to fill in means, or {DROP_ADVICE}'
    return Problem(f"missing values in {name} ({rows})", f"{how}; {kept}" if kept else how, {"missing": "mean"}, name)


def sorted_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts in order; whole numbers by size."""
    distinct = set(texts)
    try:
        return tuple(sorted(distinct, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(distinct))


def _are_ids(name: str, values: Floats) -> bool:
    """Whether numbers seem to identify the rows: all differ, and they count from 0 or 1, are long, or named so."""
    if len(values) < 5 or (values != np.rint(values)).any():
        return False
    is_count = values[0] in (0, 1) and (np.diff(values) == 1).all()
    is_named = ID_NAME.fullmatch(name) and len(np.unique(values)) == len(values)
    return bool(is_count or is_named or np.abs(values).max() >= EXACT)


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
    cells: dict[str, Sequence[str]] = {column.name: column.texts for column in targets if column.kind == "number"}
    for name, texts in table.raw(names).items() if names else ():
        cells[str(name)] = texts.str.strip().unique().tolist()
    for name, texts in cells.items():
        points, digits = [t for t in texts if "." in t], {len(t.lstrip("+-")) for t in texts if t and "." not in t}
        is_grouped = all(map(number_pattern(",", ".").fullmatch, points))
        is_decimal |= not is_grouped
        found += [(name, points[0], digits)] if points and is_grouped else []
    return [
        two_readings(point, name)
        for name, point, digits in found
        if (digits <= ({3} if is_decimal else {1, 2, 3}) if digits else not is_decimal and given["sep"] != ",")
    ]


def _fit_classes(
    targets: Sequence[Column], task: Task | None, options: TableOptions, *, are_floats: bool
) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of the classes, empty for regression, and what is wrong; pandas makes floats of whole numbers with gaps."""
    column, csv = targets[0], options.csv
    if task == "regression" or (task is None and len(targets) > 1):
        wrong = [other_form(one, csv) or not_numbers(one, is_target=True) for one in targets if one.odd()]
        return (), [problem._replace(text=f"regression needs numbers as targets; {problem.text}") for problem in wrong]
    if len(targets) > 1:
        return (), [Problem(f"classification needs one target column, not {len(targets)}", "name one in data.targets")]
    is_number = column.kind == "number"
    if task is None and (column.kind == "date" or (is_number and (are_floats or has_decimals(column.texts, csv)))):
        return (), []
    classes = sorted_texts(label_text(text, csv) if is_number else text for text in column.texts)
    problem = _label_problem(column, len(classes), task, options)
    if problem is None and len(classes) < 2:
        only = f"all labels are {column_list(classes)}" if classes else "has no label"
        problem = Problem(f"column {column.name!r}: {only}", "classification needs at least 2 classes")
    return classes, [problem] if problem else []


def _label_problem(column: Column, classes: int, task: Task | None, options: TableOptions) -> Problem | None:
    """Why a column cannot hold labels."""
    name, rows, numbers = (
        f"column {column.name!r}",
        int((column.codes >= 0).sum()),
        column.numbers[~np.isnan(column.numbers)],
    )
    are_whole, few = (numbers == np.rint(numbers)).all(), len(numbers) <= min(MOST_LABELS, rows // ROWS_PER_LABEL)
    if column.kind == "number" and (not are_whole or np.abs(numbers).max(initial=0) >= EXACT):
        odd = numbers[np.argmax(numbers != np.rint(numbers)) if not are_whole else np.argmax(np.abs(numbers))]
        how = "it is too large" if are_whole else "classification needs labels"
        return Problem(f"{name} has the label {odd:.0f}" if are_whole else f"{name} holds {odd:g}", how)
    if task is not None or (column.kind == "number" and few):
        return None
    if column.kind == "number":
        is_count = numbers.min() in (0, 1) and np.ptp(numbers) == classes - 1
        likely = "cross_entropy" if is_count and (classes <= MOST_LABELS or rows >= 10 * classes) else "mse"
        how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
        return Problem(f"{name} has {classes:,} different whole numbers in {rows:,} rows", how, {"model.loss": likely})
    if column.kind != "text" or column.name in options.text_columns:
        return None
    if problem := other_form(column, options.csv):
        return problem
    if is_mostly_numbers(column) or sign_of(column.texts):
        problem = not_numbers(column, is_target=True)
        if are_whole and few:
            return problem._replace(settings={})  # an odd cell may be a class
        settings = problem.settings and {**problem.settings, "model.loss": "mse"}
        how = f"{problem.advice}; set model.loss to mse for regression"
        return problem._replace(advice=how, settings=settings) if are_whole else problem
    if rows >= FEW_ROWS and classes > rows // 2:
        how = "a class needs several rows; name another column, or set model.loss to cross_entropy if these are labels"
        return Problem(f"{name} has {classes:,} different texts in {rows:,} rows", how)
    return None
