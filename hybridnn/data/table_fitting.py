"""Data of a user to train on: files, data frames, and what each column of a table holds, decided from all its cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError, one_line, warn_caller
from hybridnn.utils.text import NAMES_SHOWN, column_list, counted, printable, shown_path, user_path

from .dataset import Dataset
from .loaders import LOSS_DECIDES, label_warning, user_arrays
from .rows import ArrayRows, Task, constant_targets
from .table_encoding import TARGET_ADVICE, Column, Floats, Kind, Names, TableEncoding, read_columns
from .table_file import NUMBER, Table, TableOptions, as_names, named_frame, read_table, require_columns

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = (".csv", ".tsv", ".txt", ".parquet")
SUFFIXES = (*TABLES, ".npz")

Training = Callable[[int], NDArray[np.int64]] | None

MOST_LABELS, ROWS_PER_LABEL = 20, 2  # whole numbers are labels up to so many, with on average so many rows each
MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_ROWS = 20  # in a table of fewer rows, all texts may differ and be categories
SEPARATED = re.compile(r"\d([.,' \u00a0\u202f])\d")
WRITTEN = r"(\d{1,3}([.,' \u00a0\u202f])(\d{2,3}\2)*\d{3}((?!\2)[.,]\d*)?|\d*[.,]?\d+)"
IN_TWO_WAYS = re.compile(rf"[+\-\u2212]?{WRITTEN}")
"""Numbers in any form: with separators of thousands, of decimals, or of both."""
WITH_SIGNS = re.compile(rf"[^\w<>\u2264\u2265]*{WRITTEN}[^\w+]*")
GROUPED = re.compile(r"[+-]?(0|[1-9]\d{0,2}(\.\d{3})*)")
ANY_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*|\d{1,2}[. -]?[A-Za-z]{3,9}[. -]?\d{2,4}")
TEXT_ADVICE = f"add it to data.text_columns to make an input of each value (at most {MOST_CATEGORIES:,})"
DROP_ADVICE = "leave the column out with data.drop_columns"
WORDS_ADVICE = (
    "words such as NA and None are missing values; if they are not, set data.csv.keep_default_na = false, and "
    'data.csv.na_values = "" for empty cells; else '
)

Value = str | bool | list[str]


class Problem(NamedTuple):
    """Why a table cannot be used as it is."""

    text: str
    advice: str
    settings: Mapping[str, Value] = {}  # keys of [data], or of [model] with their section, that solve it
    column: str = ""  # an input column without which it is none


class TableError(DataError):
    """Columns of a table cannot be used as they are."""


def require_no_problem(called: str, problems: Sequence[Problem]) -> None:
    """Raise one `TableError` of all problems, with the advice for one, or the settings that solve several."""
    texts = [f"({number}) {one_line(problem.text)}" for number, problem in enumerate(problems[:NAMES_SHOWN], 1)]
    if len(problems) > 1:
        more = f" and {len(problems) - NAMES_SHOWN:,} more" if len(problems) > NAMES_SHOWN else ""
        pairs = ", ".join(f"data.{key} = {value!r}" for key, value in settings_of(problems).items())
        how = f"; what may solve them: {pairs.replace('data.model.', 'model.')[:500]}" if pairs else ""
        raise TableError(f"{called}: {len(problems)} problems: {', '.join(texts)}{more}{how}")
    if problems:
        raise TableError(f"{called}: {one_line(problems[0].text)}; {one_line(problems[0].advice)}")


def settings_of(problems: Sequence[Problem]) -> dict[str, Value]:
    """The settings that solve problems; lists of several problems are joined."""
    found: dict[str, Any] = {}
    for key, value in (item for problem in problems for item in problem.settings.items()):
        found[key] = list(dict.fromkeys([*found.get(key, ()), *value])) if isinstance(value, list) else value
    return found


# -- examination -------------------------------------------------------------------------------------------------------


class Examination(NamedTuple):
    """What a table holds, and why it cannot be used."""

    encoding: TableEncoding
    plain: dict[str, Floats]  # input columns of numbers, with NaN for missing values
    columns: dict[str, Column]  # the others and the targets, which were read cell by cell
    problems: list[Problem]


def examine(table: Table, called: str, targets: Sequence[str], inputs: Sequence[str], task: Task | None) -> Examination:
    """Decide what the input and target columns of a table are; means are left to `TableEncoding.with_means`.

    Without a `task`, one target column of text, truth values or few whole numbers holds labels.
    """
    frame, options, parsed = table.frame, table.options, table.options.csv.get("parse_dates", ())
    columns = _input_columns(table, called, targets, inputs, parsed)
    stated: dict[str, Kind] = {**dict.fromkeys(parsed, "date"), **dict.fromkeys(options.text_columns, "text")}
    plain, block, found = read_columns(frame, [*columns, *targets], options.csv, called, stated, targets)
    features, outputs = [found[name] for name in columns if name in found], [found[name] for name in targets]
    problems = _grouped_points(table, plain, block, outputs)
    problems += [problem for column in features if (problem := _input_problem(column, options))]
    has_words = table.raw is not None and options.csv.get("keep_default_na", True)
    is_missing = np.isnan(block)
    gaps = [(plain[n], is_missing[:, n], False) for n in np.flatnonzero(is_missing.any(axis=0)).tolist()]
    gaps += [(one.name, one.codes < 0, one.kind == "text") for one in (*features, *outputs) if (one.codes < 0).any()]
    for name, missing, is_text in gaps:
        is_target = name in targets
        is_left_out = "drop" in (options.missing, options.missing_targets if is_target else "")
        if missing.all() or not (is_left_out or (options.missing == "mean" and not is_target)):
            problems.append(_gap(name, missing, is_text=is_text and has_words, is_target=is_target))
    classes, wrong = _fit_classes(outputs, frame[targets[0]].dtype.kind, task, options) if targets else ((), [])
    first = str(frame.columns[0])
    may_be_id = frame.dtypes.iloc[0].kind in "iu" if first in columns else first not in targets
    encoding = TableEncoding(
        tuple(columns),
        tuple(targets),
        first if may_be_id and frame.iloc[:, 0].is_unique else "",
        classes,
        {column.name: _in_order(column.texts) for column in features if column.kind == "text"},
        {name: column.kind for name, column in found.items() if column.kind in ("truth", "date")},
        options=options,
        has_row_names=table.has_row_names,
    )
    return Examination(encoding, dict(zip(plain, block.T, strict=True)), found, problems + wrong)


def _input_columns(
    table: Table, called: str, targets: Sequence[str], inputs: Sequence[str], parsed: Sequence[str]
) -> list[str]:
    """Input columns, in order: `inputs`, or all that are no targets and not dropped."""
    named = {"drop_columns": table.options.drop_columns, "inputs": inputs, "targets": targets}
    for key, names in {**named, "text_columns": table.options.text_columns, "csv.parse_dates": parsed}.items():
        require_columns(called, table.frame, names, f"which data.{key} names")
    used = Counter(name for names in named.values() for name in names)
    if twice := [name for name, times in used.items() if times > 1]:
        how = "each column only once in data.inputs, data.targets and data.drop_columns"
        raise SettingError("data.targets" if {*twice} & {*targets} else "data.inputs", twice[:NAMES_SHOWN], how)
    columns = list(inputs) or [name for name in table.frame.columns if name not in used]
    if not columns:
        raise SettingError("data.targets", list(targets[:NAMES_SHOWN]), f"leaves no column of {called} as input")
    return columns


def task_reason(encoding: TableEncoding, targets: Sequence[str], task: Task | None) -> str:
    """The task, and the property of the table from which it follows."""
    if encoding.classes:
        return f"classification: {len(encoding.classes)} classes ({column_list(encoding.classes)})"
    if len(targets) > 1:
        return f"regression: {len(targets)} target columns"
    what = f"{targets[0]} has {'dates' if targets[0] in encoding.kinds else 'decimal points'}"
    return f"regression: {LOSS_DECIDES if task == 'regression' else what}"


def _in_order(texts: Sequence[str]) -> tuple[str, ...]:
    """Texts in alphabetical order, or by size if all are numbers."""
    are_numbers = all(map(NUMBER.fullmatch, texts))
    return tuple(sorted(texts, key=lambda text: (float(text) if are_numbers else 0, text)))


# -- problems of columns -----------------------------------------------------------------------------------------------


def _gap(name: str, missing: NDArray[np.bool_], *, is_text: bool, is_target: bool) -> Problem:
    """The problem of missing values; words such as NA, which pandas takes for them, may be values of a text."""
    rows = f"({counted(int(missing.sum()), 'row')}, first in row {int(missing.argmax()) + 1:,})"
    words = WORDS_ADVICE if is_text else ""
    if is_target:
        settings: dict[str, Value] = {} if is_text else {"missing_targets": "drop"}
        return Problem(f"missing values in the target {name} {rows}", words + TARGET_ADVICE, settings)
    if missing.all():
        return Problem(f"{name} is empty", DROP_ADVICE, {"drop_columns": [name]}, name)
    how = f'{words}set data.missing to "drop" to leave out these rows or to "mean" to fill in means, or {DROP_ADVICE}'
    return Problem(f"missing values in {name} {rows}", how, {"missing": "mean"}, name)


def _two_readings(name: str, cell: str, sign: str) -> Problem:
    """The problem of a number with a sign that separates decimals, or thousands."""
    keys = f'data.csv.thousands = "{sign}" if it separates thousands'
    keys += f', data.csv.decimal = "{sign}" if it separates decimals' if sign in ".," else ""
    return Problem(f"{name}: {cell!r} may be read in two ways ({keys})", "state which is right")


def _grouped_points(table: Table, plain: Sequence[str], block: Floats, targets: Sequence[Column]) -> list[Problem]:
    """Columns whose points, all before three digits, may separate thousands; none in tables with another point.

    None if commas separate the columns either: they are decimal where points separate thousands.
    """
    given = table.options.csv
    if table.raw is None or given["sep"] == "," or {"decimal", "thousands"} & {*given}:
        return []
    size = np.nan_to_num(np.abs(block), posinf=0.0)
    is_whole, in_thousands = size == np.rint(size), 1000 * size
    is_possible = is_whole | ((size > 1) & (size < 1000) & (np.abs(in_thousands - np.rint(in_thousands)) < 1e-6))
    if not is_possible.all():
        return []
    names = [plain[place] for place in np.flatnonzero(~is_whole.all(axis=0)).tolist()]
    cells = {name: texts.str.strip().unique() for name, texts in table.raw(names).items()} if names else {}
    cells |= {one.name: one.texts for one in targets if one.kind == "number" and any("." in text for text in one.texts)}
    if not all(GROUPED.fullmatch(text) for texts in cells.values() for text in texts if text):
        return []
    return [_two_readings(name, next(text for text in texts if "." in text), ".") for name, texts in cells.items()]


def _holds_numbers(column: Column) -> bool:
    """Whether at least half of the cells of a column of text are numbers in any form; leading zeros are of codes."""
    odd = [text for text in column.odd() if not WITH_SIGNS.fullmatch(text)]
    is_code = any(re.match(r"0\d", text) for text in column.texts)
    return not is_code and 2 * len(column.rows(odd)) < int((column.codes >= 0).sum())


def _odd_cells(column: Column, more: str, own: str = "") -> Problem:
    """Some cells of a column of numbers or of dates are none; `own` is the name of an input."""
    written = next(filter(IN_TWO_WAYS.fullmatch, column.odd()), "")
    if column.kind == "text" and (found := SEPARATED.search(written)):
        return _two_readings(column.name, written, " " if found[1].isspace() else found[1])
    how = "correct these cells (numbers are as -1234.5, without signs and units, dates in one form)"
    return Problem(column.odd_cells(), f"{how}, or add words for missing values to data.csv.na_values{more}", {}, own)


def _input_problem(column: Column, options: TableOptions) -> Problem | None:
    """Why an input column that was read as text, truth values or dates cannot be used with these options."""
    name, texts, rows = column.name, column.texts, int((column.codes >= 0).sum())
    is_stated = name in options.text_columns
    if column.kind != "text" or (not is_stated and _holds_numbers(column)):
        more = f"; or {DROP_ADVICE}; or, if it holds codes, {TEXT_ADVICE}"
        return _odd_cells(column, more, name) if column.odd() else None
    shown = f"text in {name} ({column.shown((column.odd() or texts)[:1])}"
    is_unlikely = rows >= FEW_ROWS and len(texts) > rows // 2
    is_date = texts and all(map(ANY_DATE.fullmatch, texts))
    if len(texts) > MOST_CATEGORIES or (not is_stated and (is_unlikely or is_date)):
        how = f"{DROP_ADVICE}, read dates with data.csv.parse_dates and dayfirst or date_format, or {TEXT_ADVICE}"
        shown += f", {len(texts):,} different values in {rows:,} rows)"
        return Problem(shown, how, {"drop_columns": [name]}, name)
    if options.categories == "one-hot" or not texts:
        return None
    how = f'set data.categories to "one-hot" to make an input of each value, or {DROP_ADVICE}'
    return Problem(f"{shown})", how, {"categories": "one-hot"}, name)


def _fit_classes(
    targets: Sequence[Column], dtype: str, task: Task | None, options: TableOptions
) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of the classes, empty for regression, and what is wrong; `dtype` is the kind of that of the first target.

    Without a `task`, numbers with a decimal point are quantities, and so are floats without gaps: pandas makes floats
    of whole numbers with gaps.
    """
    column = targets[0]
    if task == "regression" or (task is None and len(targets) > 1):
        return (), [_odd_cells(one, "") for one in targets if one.odd()]
    if len(targets) > 1:
        return (), [Problem(f"classification needs one target column, not {len(targets)}", "name one in data.targets")]
    is_number, texts = column.kind == "number", column.texts
    are_whole = all(text.lstrip("+-\u2212").isdigit() for text in texts)
    is_quantity = is_number and (not are_whole or (dtype == "f" and (column.codes >= 0).all()))
    if task is None and (column.kind == "date" or is_quantity):
        return (), []
    classes, name, rows = _in_order(texts), f"column {column.name!r}", int((column.codes >= 0).sum())
    is_free, problem = task is None and column.name not in options.text_columns, None
    if is_number and (fractions := column.numbers[column.numbers % 1 != 0]).size:
        problem = Problem(f"{name} holds {fractions[0]:g}", "classification needs labels")
    elif is_free and column.kind == "text" and _holds_numbers(column):
        problem = _odd_cells(column, ", and set model.loss to mse for regression")
    elif is_free and is_number and len(classes) > min(MOST_LABELS, rows // ROWS_PER_LABEL):
        is_count = column.numbers.min() in (0, 1) and np.ptp(column.numbers) == len(classes) - 1
        how = "set model.loss to mse for regression, or to cross_entropy if these are labels"
        found = f"{name} has {len(classes):,} different whole numbers in {rows:,} rows"
        problem = Problem(found, how, {"model.loss": "cross_entropy" if is_count else "mse"})
    elif len(classes) < 2:
        only = f"all labels are {column_list(classes)}" if classes else "has no label"
        problem = Problem(f"{name}: {only}", "classification needs at least 2 classes")
    return classes, [problem] if problem else []


# -- data sets of a user -----------------------------------------------------------------------------------------------


def load_file(
    path: str | Path,
    targets: str | Sequence[str] = (),
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
    encoding: TableEncoding | None = None,
    training: Training = None,
    warns: bool = True,
) -> Dataset:
    """Load the training data of a user, and warn of what may not be as meant (``Dataset.warnings``).

    Parameters
    ----------
    path : str or Path
        ``.npz`` with ``x_train``, ``y_train`` and optionally ``x_test``, ``y_test``, or a table: ``.csv``, ``.tsv`` or
        ``.txt`` with a header line, or ``.parquet``.
    targets, inputs : str or sequence of str
        Target columns of a table, and its input columns in this order; if empty, all columns but the targets.
    task : {'classification', 'regression'}, optional
        By default, floats are regression targets, and integers are labels; in a table, one target column of text, truth
        values or few whole numbers holds labels.
    options : TableOptions, optional
        How a table is read.
    encoding : TableEncoding, optional
        Encoding of the table that a network was trained on, in place of a new one for this table.
    training : callable, optional
        Takes the number of samples and returns the indices of the training samples, whose means replace missing values;
        by default all.
    warns : bool
        False leaves the warnings to the caller.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the file, and the key or the columns.
    SettingError
        If `targets` are missing for a table, or `targets` or `inputs` are given for an ``.npz``.
    """
    path, options = user_path(path), options or TableOptions()
    named: list[Names] = [as_names(targets), as_names(inputs)]
    if has_table(path, "data.file"):
        table = read_table(path, options, named[0], encoding)
        if not named[0]:
            how = "a table needs the names of its target columns, as in --targets price"
            raise SettingError("data.targets", [], how)
        data = _dataset_from_table(table, shown_path(path), named, task, encoding, training)
    else:
        given = dict(zip(("targets", "inputs"), map(list, named), strict=True)) | vars(options)
        for key, value in given.items():
            if value and value != vars(TableOptions()).get(key):
                raise SettingError(f"data.{key}", value, "only for tables; an .npz file has x_train and y_train")
        data = user_arrays(path, task)
    for text in data.warnings if warns else ():
        warn_caller(text)
    return data


def load_frame(
    frame: DataFrame,
    targets: str | Sequence[str],
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
    training: Training = None,
) -> Dataset:
    """Make a data set of a pandas data frame; parameters and errors as for `load_file`.

    The index is left out, unless it has a name. ``Dataset.encoding`` encodes other frames for the same network, and
    names the classes.
    """
    if not hasattr(frame, "columns"):
        raise DataError(f"the frame is of the type {type(frame).__name__}: must be a data frame of pandas")
    table = Table(named_frame(frame, "the frame"), options or TableOptions())
    data = _dataset_from_table(table, "the frame", [as_names(targets), as_names(inputs)], task, None, training)
    for text in data.warnings:
        warn_caller(text)
    return data


def has_table(path: Path, setting: str) -> bool:
    """Whether a file of a user has a table, by the end of its name; `SettingError` for files of other kinds."""
    if path.suffix.lower() not in SUFFIXES:
        how = "must end in .npz, .csv, .tsv, .txt or .parquet: save a sheet as .csv, and unpack what is compressed"
        raise SettingError(setting, str(path), f"the name of the file {how}")
    return path.suffix.lower() in TABLES


def _dataset_from_table(
    table: Table, called: str, named: list[Names], task: Task | None, known: TableEncoding | None, training: Training
) -> Dataset:
    frame, (targets, inputs), encoding, warnings = table.frame, named, known, tuple[str, ...]()
    if encoding is None:
        found = examine(table, called, targets, inputs, task)
        require_no_problem(called, found.problems)
        encoding = found.encoding.with_means(frame, called, training)
    x, y = encoding.encode(frame, called, targets=targets)
    if y is None or not len(x):
        raise DataError(f"{called}: no row has all of its values")
    if known is None and (constant := constant_targets(y)).any():
        column = int(np.argmax(constant))
        raise DataError(f"{called}: target {targets[column]!r} has one value only: there is nothing to learn")
    if known is None and task is None and not encoding.classes and targets[0] not in encoding.kinds:
        warnings = label_warning(called, targets[0], y, "set model.loss to cross_entropy")
    used = {*encoding.columns, *targets, *table.options.drop_columns}
    dropped = len(frame) - len(x)
    left = f"; {dropped:,} of {len(frame):,} rows have missing values and are left out" if dropped else ""
    return Dataset(
        Path(called).name,
        "classification" if encoding.classes else "regression",
        encoding.features,
        len(encoding.classes) or len(targets),
        ArrayRows(x, y),
        None,
        inputs=encoding.columns,
        ignored=tuple(column for column in frame.columns if column not in used),
        task_reason=task_reason(encoding, targets, task) + left,
        encoding=encoding,
        warnings=warnings,
    )


# -- check of a table --------------------------------------------------------------------------------------------------


class ColumnLine(NamedTuple):
    """One column of a table, as text."""

    name: str
    holds: str
    missing: int
    different: int
    values: str
    becomes: str


class TableCheck(NamedTuple):
    """A table, and its problems."""

    rows: int
    task: str  # with its reason; empty where the targets do not tell
    separator: str
    targets: tuple[str, ...]
    columns: list[ColumnLine]
    problems: list[Problem]


def check_table(
    path: Path,
    targets: str | Sequence[str] = (),
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
) -> TableCheck:
    """Examine a table; without targets, all columns are inputs. Parameters and errors as for `load_file`."""
    names, options = as_names(targets), options or TableOptions()
    table = read_table(path, options, names)
    found = examine(table, shown_path(path), names, as_names(inputs), task)
    is_known = all(problem.column or "missing_targets" in problem.settings for problem in found.problems)
    reason = task_reason(found.encoding, names, task) if names and is_known else ""
    separator = repr(table.options.csv["sep"]) if table.raw else ""
    lines = {name: _number_line(name, cells) for name, cells in found.plain.items()}
    for name, column in found.columns.items():
        lines[name] = _cells_line(column, options.categories == "one-hot", is_target=name in names)
    in_order = [lines[name] for name in table.frame.columns if name in lines]
    return TableCheck(len(table.frame), reason, separator, names, in_order, found.problems)


def _number_line(name: str, cells: Floats) -> ColumnLine:
    numbers = np.unique(cells[~np.isnan(cells)])
    shown = " to ".join(f"{end:g}" for end in dict.fromkeys([*numbers[:1], *numbers[-1:]]))
    return ColumnLine(printable(name, 40), "numbers", int(np.isnan(cells).sum()), len(numbers), shown, "input")


def _cells_line(column: Column, is_one_hot: bool, is_target: bool) -> ColumnLine:
    values = column.texts[:1]
    if column.kind in ("number", "date") and len(column.texts) > 1 and not column.odd():
        values = tuple(column.texts[int(find(column.numbers))] for find in (np.argmin, np.argmax))
    holds, becomes = {
        "number": ("numbers", "input"),
        "truth": ("truth values", "input, 0 or 1"),
        "date": ("dates", "input, days since 1970"),
        "text": ("text", f"{len(column.texts):,} inputs" if is_one_hot else "?"),
    }[column.kind]
    shown = " to ".join(printable(value, 20) for value in values)
    sizes = int((column.codes < 0).sum()), len(column.texts)
    return ColumnLine(printable(column.name, 40), holds, *sizes, shown, "target" if is_target else becomes)
