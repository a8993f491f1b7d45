"""What each column of a training table holds, decided once from all of its cells, and why it cannot be used so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, one_line
from hybridnn.utils.text import NAMES_SHOWN, column_list, counted

from .rows import Task
from .table_encoding import (
    TARGET_ADVICE,
    Column,
    Floats,
    Kind,
    TableEncoding,
    label_text,
    number_block,
    read_columns,
    with_date_formats,
)
from .table_file import Table, TableOptions, require_columns

MOST_LABELS, ROWS_PER_LABEL = 20, 2  # whole numbers are labels up to so many, with on average so many rows each
MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_ROWS = 20  # in a table of fewer rows, all texts may differ and be categories or labels
SEVERAL_ROWS = 5  # in more rows, the texts of a category do not all differ
SEPARATED = re.compile(r"\d([.,' \u00a0\u202f])\d")
WRITTEN = re.compile(r"[+\-\u2212]?(\d{1,3}([.,' \u00a0\u202f])(\d{2,3}\2)*\d{3}((?!\2)[.,]\d*)?|\d+([.,]\d*)?)")
"""Numbers in any form: with separators of thousands, of decimals, or of both."""
GROUPED = re.compile(r"[+-]?(0|[1-9]\d{0,2}(\.\d{3})*)")
NUMERAL = r"\d[\d.,' \u00a0\u202f]*"
SIGNED = re.compile(rf"[^\w<>\u2264\u2265]+{NUMERAL}[^\w.,' \u00a0\u202f]*|{NUMERAL}[^\w+.,' \u00a0\u202f]+")
ANY_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*|\d{1,2}[. -]?[A-Za-z]{3,9}[. -]?\d{2,4}")
PLACEHOLDER = re.compile(
    r"\W+|n\W?[adv]\W?|nan|null|none|nil|missing|unknown|k\. ?a\.|[+-]?inf(inity)?|#[A-Z/0]+[!?]|[09]{4}-.*", re.I
)
"""Words that are usual for missing values; of others a person decides."""
DROP_ADVICE = "leave the column out with data.drop_columns"

Value = str | bool | list[str]


# -- problems ----------------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """Why a table cannot be used as it is."""

    text: str
    advice: str
    settings: Mapping[str, Value] = {}  # keys of [data], or of [model] with their section, that solve it
    column: str = ""  # an input column without which it is none


class TableError(DataError):
    """Columns of a table cannot be used as they are."""


def require_no_problem(called: str, problems: Sequence[Problem], hint: str = "") -> None:
    """Raise one `TableError` of all problems, with the settings that solve them."""
    texts = [one_line(problem.text) for problem in problems[:NAMES_SHOWN]]
    if len(problems) == 1:
        raise TableError(f"{called}: {texts[0]}; {one_line(problems[0].advice)}")
    if problems:
        shown = ", ".join(f"({number}) {text}" for number, text in enumerate(texts, 1))
        more = f" and {len(problems) - NAMES_SHOWN:,} more" if len(problems) > NAMES_SHOWN else ""
        pairs = [f"data.{key} = {value!r}" for key, value in settings_of(problems).items()]
        settings = ", ".join(pairs).replace("data.model.", "model.")[:500]
        how = f"what may solve them: {settings}" if settings else one_line(problems[0].advice)
        raise TableError(f"{called}: {len(problems)} problems: {shown}{more}; {how}{hint}")


def settings_of(problems: Sequence[Problem]) -> dict[str, Value]:
    """The settings that solve problems; lists of several problems are joined."""
    found: dict[str, Value] = {}
    for key, value in (item for problem in problems for item in problem.settings.items()):
        before = found.get(key)
        are_lists = isinstance(before, list) and isinstance(value, list)
        found[key] = list(dict.fromkeys([*before, *value])) if are_lists else value  # type: ignore[misc]
    return found


# -- examination -------------------------------------------------------------------------------------------------------


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
    others = dict.fromkeys([*columns, *targets]).keys() - {*plain}
    block = number_block(frame, frame.columns.get_indexer(plain))
    places = np.sort(frame.columns.get_indexer(list(others)))
    found = {column.name: column for column in read_columns(frame, places, options.csv, called, stated)}
    inputs, outputs = [found[name] for name in columns if name in found], [found[name] for name in targets]
    problems, notes = _grouped_points(table, plain, block, outputs), list[str]()
    problems += [problem for column in inputs if (problem := _input_problem(column, options))]
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
            notes.append(f"{gap.text} are left out; {gap.advice.partition('; ')[0]}")
    classes, wrong = _fit_classes(outputs, dtypes[targets[0]], task, options) if targets else ((), [])
    first = str(frame.columns[0])
    may_be_id = dtypes[first] in "iu" if first in columns else first not in targets
    encoding = TableEncoding(
        tuple(columns),
        tuple(targets),
        first if may_be_id and frame.iloc[:, 0].is_unique else "",
        classes,
        {column.name: _in_order(column.texts) for column in inputs if column.kind == "text"},
        {name: column.kind for name, column in found.items() if column.kind in ("truth", "date")},
        options=options,
        has_row_names=table.has_row_names,
    )
    return Examination(encoding, found, problems + wrong, notes)


def _in_order(texts: Iterable[str]) -> tuple[str, ...]:
    """Different texts in order; whole numbers by size."""
    distinct = set(texts)
    try:
        return tuple(sorted(distinct, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(distinct))


# -- missing values ----------------------------------------------------------------------------------------------------


def _gap(table: Table, name: str, missing: NDArray[np.bool_], *, is_text: bool, is_target: bool) -> Problem:
    """The problem of missing values; words such as NA, which pandas takes for them, may be values of a text."""
    csv, kept, words = table.options.csv, "", list[str]()
    if is_text and table.raw and csv.get("keep_default_na", True):
        cells = dict.fromkeys(cell.strip() for cell in table.raw([name])[name].to_numpy(object)[missing])
        words = [repr(word) for word in cells if word and word not in csv.get("na_values", ())]
    if words:
        kept = f"if {column_list(words)} {'is a value' if len(words) == 1 else 'are values'}, set "
        kept += 'data.csv.keep_default_na = false, and data.csv.na_values = "" for empty cells; else '
    rows = ", ".join([counted(int(missing.sum()), "row"), *words, f"first in row {int(missing.argmax()) + 1:,}"])
    if is_target:
        settings: dict[str, Value] = {} if words else {"missing_targets": "drop"}
        return Problem(f"missing values in the target {name} ({rows})", kept + TARGET_ADVICE, settings)
    if missing.all():
        return Problem(f"{name} is empty", DROP_ADVICE, {"drop_columns": [name]}, name)
    how = f'set data.missing to "drop" to leave out these rows or to "mean" to fill in means, or {DROP_ADVICE}'
    return Problem(f"missing values in {name} ({rows})", kept + how, {"missing": "mean"}, name)


# -- numbers that are written otherwise --------------------------------------------------------------------------------


def _two_readings(name: str, cell: str, sign: str) -> Problem:
    """The problem of a number with a sign that separates decimals, or thousands."""
    how = f'set data.csv.thousands = "{sign}" if it separates thousands'
    how += f', or data.csv.decimal = "{sign}" if it separates decimals' if sign in ".," else ""
    return Problem(f"{name}: {cell!r} may be read in two ways", how)


def _other_form(column: Column) -> Problem | None:
    """The problem of a column of text that holds numbers with separators of decimals or of thousands."""
    found = next(filter(None, map(SEPARATED.search, column.texts)), None)
    written = sum(map(bool, map(WRITTEN.fullmatch, column.texts)))
    if found is None or 10 * written < 9 * len(column.texts) or 10 * len(column.odd()) < len(column.texts):
        return None
    return _two_readings(column.name, found.string, " " if found[1].isspace() else found[1])


def _grouped_points(table: Table, plain: Sequence[str], block: Floats, targets: Sequence[Column]) -> list[Problem]:
    """Columns whose points, all before three digits, may separate thousands.

    None if another point of the table is decimal; nor columns in which every number has a point, if commas separate
    the columns.
    """
    given = table.options.csv
    if table.raw is None or {"decimal", "thousands"} & {*given}:
        return []
    size = np.nan_to_num(np.abs(block), posinf=0.0)
    is_whole, in_thousands = size == np.rint(size), 1000 * size
    is_possible = is_whole | ((size > 1) & (size < 1000) & (np.abs(in_thousands - np.rint(in_thousands)) < 1e-6))
    if not is_possible.all():
        return []
    names = [plain[place] for place in np.flatnonzero(~is_whole.all(axis=0)).tolist()]
    cells: dict[str, Sequence[str]] = {column.name: column.texts for column in targets if column.kind == "number"}
    for name, texts in table.raw(names).items() if names else ():
        cells[str(name)] = [text for text in texts.str.strip().unique() if text]
    if not all(GROUPED.fullmatch(text) for texts in cells.values() for text in texts if "." in text):
        return []
    found = []
    for name, texts in cells.items():
        points = [text for text in texts if "." in text]
        if points and all(map(GROUPED.fullmatch, texts)) and (given["sep"] != "," or len(points) < len(texts)):
            found.append(_two_readings(name, points[0], "."))
    return found


# -- inputs ------------------------------------------------------------------------------------------------------------


def _input_problem(column: Column, options: TableOptions) -> Problem | None:
    """Why an input column that was read as text, truth values or dates cannot be used with these options."""
    name, texts, rows = column.name, column.texts, int((column.codes >= 0).sum())
    is_stated = name in options.text_columns
    if column.kind != "text":
        return _not_numbers(column) if column.odd() else None
    if not is_stated and _holds_numbers(column):
        return _other_form(column) or _not_numbers(column)
    shown = f"text in {name} ({column.shown((column.odd() or texts)[:1])}"
    if not is_stated and all(map(ANY_DATE.fullmatch, texts)) and texts:
        how = "read dates with data.csv.parse_dates, and data.csv.dayfirst where the day is first"
        return Problem(f"{shown})", f"{how}; or {DROP_ADVICE}", {"drop_columns": [name]}, name)
    is_unlikely = (rows >= FEW_ROWS and len(texts) > rows // 2) or len(texts) == rows > SEVERAL_ROWS
    if len(texts) > MOST_CATEGORIES or (not is_stated and is_unlikely):
        shown += f", {len(texts):,} different values in {rows:,} rows)"
        how = "" if is_stated else ", or add it to data.text_columns to make an input of each value"
        return Problem(shown, DROP_ADVICE + how, {"drop_columns": [name]}, name)
    if options.categories == "one-hot" or not texts:
        return None
    how = f'set data.categories to "one-hot" to make an input of each value, or {DROP_ADVICE}'
    return Problem(f"{shown})", how, {"categories": "one-hot"}, name)


def _holds_numbers(column: Column) -> bool:
    """Whether a column of text is one of numbers, in any form, with signs, or but for less than half of its cells.

    Leading zeros are of codes.
    """
    is_code = any(re.match(r"0\d", text) for text in column.texts)
    is_mostly_numbers = 2 * len(column.rows(column.odd())) < int((column.codes >= 0).sum())
    return (is_mostly_numbers and not is_code) or _are_signed(column.texts) or _other_form(column) is not None


def _are_signed(texts: Sequence[str]) -> bool:
    """Whether most texts are numbers with signs, such as those of currencies."""
    return 2 * sum(map(bool, map(SIGNED.fullmatch, texts))) >= max(1, len(texts))


def _not_numbers(column: Column, *, is_target: bool = False) -> Problem:
    """Some cells of a column of numbers, or of truth values or dates, are none."""
    texts, own = column.odd(), "" if is_target else column.name
    rows, there = column.rows(texts), int((column.codes >= 0).sum())
    if column.kind != "text" or 2 * len(rows) >= there or _are_signed(texts):
        forms = {"truth": "true and false alone", "date": "dates in one form, as 2020-12-31"}
        how = forms.get(column.kind, "numbers as -1234.5, without signs and units")
        return Problem(column.odd_cells(), f"the column must hold {how}", {}, own)
    rule = 'data.missing_targets to "drop"' if is_target else "data.missing"
    how = f"if these are missing values, add them to data.csv.na_values, and set {rule}"
    if all(map(PLACEHOLDER.fullmatch, texts)):
        return Problem(column.odd_cells(), how, {} if is_target else {"csv.na_values": texts, "missing": "mean"}, own)
    how = f"correct these cells, or remove their rows; {how}; if the column holds codes, add it to data.text_columns"
    is_outside = rows.tolist() in ([0], [len(column.codes) - 1])  # a row of units, or of totals
    return Problem(column.odd_cells(), how, {}, "" if is_outside else own)


# -- targets -----------------------------------------------------------------------------------------------------------


def _fit_classes(
    targets: Sequence[Column], dtype: str, task: Task | None, options: TableOptions
) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of the classes, empty for regression, and what is wrong; `dtype` is the kind of that of the first target.

    Without a `task`, numbers with a decimal point are quantities, and so are floats without gaps: pandas makes floats
    of whole numbers with gaps.
    """
    column, csv = targets[0], options.csv
    if task == "regression" or (task is None and len(targets) > 1):
        wrong = [_other_form(one) or _not_numbers(one, is_target=True) for one in targets if one.odd()]
        return (), [problem._replace(text=f"regression needs numbers as targets; {problem.text}") for problem in wrong]
    if len(targets) > 1:
        return (), [Problem(f"classification needs one target column, not {len(targets)}", "name one in data.targets")]
    is_number, texts = column.kind == "number", column.texts
    are_whole = all(text.lstrip("+-\u2212").isdigit() for text in texts)
    is_quantity = is_number and (not are_whole or (dtype == "f" and (column.codes >= 0).all()))
    if task is None and (column.kind == "date" or is_quantity):
        return (), []
    classes = _in_order(label_text(text, csv) if is_number else text for text in texts)
    problem = _label_problem(column, len(classes), task, options)
    if problem is None and len(classes) < 2:
        only = f"all labels are {column_list(classes)}" if classes else "has no label"
        problem = Problem(f"column {column.name!r}: {only}", "classification needs at least 2 classes")
    return classes, [problem] if problem else []


def _label_problem(column: Column, classes: int, task: Task | None, options: TableOptions) -> Problem | None:
    """Why a column cannot hold labels."""
    name, rows, numbers = f"column {column.name!r}", int((column.codes >= 0).sum()), column.numbers
    if column.kind == "number" and (numbers != np.rint(numbers)).any():
        return Problem(f"{name} holds {numbers[numbers != np.rint(numbers)][0]:g}", "classification needs labels")
    if task is not None or column.name in options.text_columns:
        return None
    if column.kind == "number":
        if classes <= min(MOST_LABELS, rows // ROWS_PER_LABEL):
            return None
        is_count = numbers.min() in (0, 1) and np.ptp(numbers) == classes - 1
        likely = "cross_entropy" if is_count and (classes <= MOST_LABELS or rows >= 10 * classes) else "mse"
        how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
        return Problem(f"{name} has {classes:,} different whole numbers in {rows:,} rows", how, {"model.loss": likely})
    if column.kind == "text" and (problem := _other_form(column)):
        return problem
    if column.kind == "text" and _holds_numbers(column):
        problem = _not_numbers(column, is_target=True)
        return problem._replace(advice=f"{problem.advice}; set model.loss to mse for regression")
    if rows >= FEW_ROWS and classes > rows // 2:
        how = "a class needs several rows; name another column, or set model.loss to cross_entropy if these are labels"
        return Problem(f"{name} has {classes:,} different texts in {rows:,} rows", how)
    return None
