"""Data of a user: files and data frames to train on, and samples to predict from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError, warn_caller
from hybridnn.utils.files import open_regular, read_npz
from hybridnn.utils.text import command_argument, shown_path, user_path

from .dataset import Dataset
from .rows import ArrayRows, Task, as_rows, class_count, constant_targets
from .table_columns import is_native
from .table_encoding import TableEncoding
from .table_file import Known, Table, named_frame, read_table
from .table_fitting import FEW_CLASSES, examine
from .table_options import NAMES_SHOWN, TableOptions, alike, as_names, column_list, require_columns
from .table_problems import require_no_problem

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TABLES = (".csv", ".tsv", ".txt", ".parquet")
SUFFIXES = (*TABLES, ".npz")
ENDINGS = (
    "the name of the file must end in .npz, .csv, .tsv, .txt or .parquet: save a sheet as .csv, and unpack what is "
    "compressed"
)

HEADER_ROWS = 1000  # in which a name of a column that is a cell too is searched

LOSS_DECIDES = "by the loss, mse"

Training = Callable[[int], NDArray[np.int64]]
"""Takes the number of samples and returns the indices of the training samples."""


def load_file(
    path: str | Path,
    targets: str | Sequence[str] = (),
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
    encoding: TableEncoding | None = None,
    training: Training | None = None,
) -> Dataset:
    """Load the training data of a user, and warn of what may not be as meant (``Dataset.warnings``).

    Parameters
    ----------
    path : str or Path
        ``.npz`` with ``x_train``, ``y_train`` and optionally ``x_test``, ``y_test``, or a table: ``.csv``, ``.tsv`` or
        ``.txt`` with a header line, or ``.parquet``.
    targets : str or sequence of str
        Target columns of a table.
    inputs : str or sequence of str
        Input columns of a table, in this order; if empty, all columns but the targets.
    task : {'classification', 'regression'}, optional
        By default, floats are regression targets, and integers are labels; in a table, one target column of text, truth
        values or whole numbers holds labels.
    options : TableOptions, optional
        How a table is read.
    encoding : TableEncoding, optional
        Encoding of the table that a network was trained on, in place of a new one for this table.
    training : callable, optional
        Takes the number of samples and returns the indices of the training samples, whose means replace missing values;
        by default all.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the file, and the key or the columns.
    SettingError
        If `targets` are missing for a table, or `targets` or `inputs` are given for an ``.npz``.
    """
    return _warned(read_file(path, targets, inputs, task, options, encoding, training))


def read_file(
    path: str | Path,
    targets: str | Sequence[str],
    inputs: str | Sequence[str],
    task: Task | None,
    options: TableOptions | None,
    encoding: TableEncoding | None,
    training: Training | None,
) -> Dataset:
    """As `load_file`, without a warning."""
    path = user_path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError("data.file", str(path), ENDINGS)
    _require_readable(path, f"data.file = {str(path)!r}")
    options, targets, inputs = options or TableOptions(), as_names(targets), as_names(inputs)
    if path.suffix.lower() in TABLES:
        if not targets:
            how = "a table needs the names of its target columns, as in --targets price"
            raise SettingError("data.targets", [], how)
        table = read_table(path, options) if encoding is None else _read_like(path, encoding)
        return _dataset_from_table(table, path.name, shown_path(path), targets, inputs, task, encoding, training)
    for setting, value, array in (("data.targets", targets, "y_train"), ("data.inputs", inputs, "x_train")):
        if value:
            raise SettingError(setting, list(value[:NAMES_SHOWN]), f"only for tables; an .npz file has {array}")
    for option in fields(options):
        if (given := getattr(options, option.name)) != option.default:
            raise SettingError(f"data.{option.name}", given, "only for tables, which an .npz file is not")
    return _dataset_from_npz(path, task)


def load_frame(
    frame: DataFrame,
    targets: str | Sequence[str],
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
    training: Training | None = None,
) -> Dataset:
    """Make a data set of a pandas data frame; parameters and errors as for `load_file`.

    The index is left out, unless it has a name. ``Dataset.encoding`` encodes other frames for the same network, and
    names the classes.
    """
    called = "the frame"
    if not hasattr(frame, "columns"):
        raise DataError(f"{called} is of the type {type(frame).__name__}: must be a data frame of pandas")
    table = Table(named_frame(frame, called), options or TableOptions())
    names = as_names(targets), as_names(inputs)
    return _warned(_dataset_from_table(table, "frame", called, *names, task, None, training))


def _warned(data: Dataset) -> Dataset:
    """The data set, of whose doubts the caller is warned."""
    for text in data.warnings:
        warn_caller(text)
    return data


def _require_readable(path: Path, called: str) -> None:
    """Raise DataError, beginning with `called`, unless the path is a regular file that can be opened."""
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise DataError(f"{called}: no such file") from None
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror}") from error


def _dataset_from_npz(path: Path, task: Task | None) -> Dataset:
    arrays = read_npz(path)
    needed = ["x_train", "y_train"] + (["x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else [])
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no {' and no '.join(missing)}; found {column_list(list(arrays)) if arrays else 'nothing'}"
        )
    train = _rows(path, arrays["x_train"], arrays["y_train"], task, part="_train")
    test = None
    if "x_test" in needed:
        known: Task = "regression" if train.targets_shape else "classification"
        classes = None if train.targets_shape else class_count(train)
        test = _rows(path, arrays["x_test"], arrays["y_test"], known, classes=classes, part="_test")
        if (test.features, test.targets_shape) != (train.features, train.targets_shape):
            raise DataError(
                f"{path}: x_test, y_test have shapes {test.x.shape}, {test.y.shape}; "
                f"they do not go with {train.x.shape}, {train.y.shape} of the training part"
            )
    why = LOSS_DECIDES if task == "regression" else f"y_train is {arrays['y_train'].dtype}"
    return _dataset(path, train, test, why)


def _dataset_from_table(
    table: Table,
    name: str,
    called: str,
    targets: Sequence[str],
    inputs: Sequence[str],
    task: Task | None,
    encoding: TableEncoding | None,
    training: Training | None,
) -> Dataset:
    frame, options = table.frame, table.options
    is_fitted, doubted = encoding is not None, []
    if encoding is None:
        columns = choose_columns(frame, called, targets, inputs, options.drop_columns)
        found = examine(frame, called, columns, targets, task, options)
        hint = f"; hybridnn data check {command_argument(called)} shows every column" if name != "frame" else ""
        require_no_problem(called, found.problems, hint)
        frame, encoding = found.frame, replace(found.encoding, extra=table.extra)
        encoding = encoding.with_means(frame, called, training)
        doubted = [f"{called}: {doubt}" for doubt in (*table.doubts, *found.doubts)]
    else:
        _require_targets(frame, called, targets)
    x, y, dropped = encoding.encode(frame, called, targets=targets)
    used = {*encoding.columns, *targets, *options.drop_columns}
    left = f"; {dropped:,} of {len(frame):,} rows have missing values and are left out" if dropped else ""
    reasons = [f"{task_reason(frame, encoding, targets, task)}{left}", *table.notes]
    outputs = len(encoding.classes) or len(targets)
    is_guessed = task is None and not is_fitted and not encoding.classes
    written = _written(frame[targets[0]], encoding) if is_guessed else ""
    return Dataset(
        name,
        "classification" if encoding.classes else "regression",
        encoding.features,
        outputs,
        _table_rows(x, y, called, targets, checks_targets=not is_fitted),
        None,
        inputs=encoding.columns,
        ignored=tuple(column for column in table.frame.columns if column not in used),
        task_reason="; ".join(reasons),
        encoding=encoding,
        warnings=(
            *(_label_warnings(called, targets[0], y, written, "set model.loss to cross_entropy") if is_guessed else ()),
            *doubted,
        ),
    )


def _label_warnings(called: str, name: str, y: NDArray[Any] | None, written: str, remedy: str) -> tuple[str, ...]:
    """Warning of a regression target that has few values, all of them whole numbers, as labels have."""
    if y is None or y.shape[1] > 1 or (y != np.rint(y)).any():
        return ()
    values = np.unique(y)
    if len(values) > min(FEW_CLASSES, len(y) // 2):
        return ()
    shown = f"the values {column_list([f'{value:.0f}' for value in values])} with {written}"
    what = f"{len(values)} dates" if written == "dates" else shown
    return (f"{called}: {name} has {what}: a regression; {remedy} if they are labels",)


def _table_rows(
    x: NDArray[Any], y: NDArray[Any] | None, called: str, targets: Sequence[str], *, checks_targets: bool
) -> ArrayRows:
    """Samples of an encoded table, with targets; a constant target is refused if `checks_targets`."""
    if y is None or not len(x):
        raise DataError(f"{called}: no line of data after the header line")
    if checks_targets and (constant := constant_targets(y)).any():
        column = int(np.argmax(constant))
        value = "has one value only" if y.ndim == 1 else f"is {y[0, column]:g} in every row"
        raise DataError(f"{called}: target {targets[column]!r} {value}: there is nothing to learn")
    return ArrayRows(x, y)


def choose_columns(
    table: DataFrame, called: str, targets: Sequence[str], inputs: Sequence[str], dropped: Sequence[str]
) -> list[str]:
    """Input columns, in order: `inputs`, or all that are no targets and not dropped."""
    _require_targets(table, called, targets)
    require_columns(called, table, dropped, "which data.drop_columns names")
    require_columns(called, table, inputs, "which the inputs need")
    left_out = {*targets, *dropped}
    columns = list(inputs) or [name for name in table.columns if name not in left_out]
    if not columns or len({*columns, *targets}) != len(columns) + len(targets):
        setting, value = ("data.inputs", inputs) if inputs else ("data.targets", targets)
        allowed = f"each name once, and at least one column of {called} left as input"
        raise SettingError(setting, list(value[:NAMES_SHOWN]), allowed)
    for setting, names in (("data.inputs", inputs), ("data.targets", targets)):
        if both := sorted({*names} & {*dropped}):
            raise SettingError("data.drop_columns", both, f"also in {setting}")
    return columns


def _require_targets(table: DataFrame, called: str, targets: Sequence[str]) -> None:
    there = set(table.columns)
    for name in targets:
        if name not in there:
            names = list(table.columns)
            has = f"it has {column_list(names)}{alike(name, names)}"
            raise SettingError("data.targets", name, f"{called} has no such column; {has}")
        if table[name].dtype.kind == "O" and (table[name][:HEADER_ROWS] == name).sum() > 1:
            how = f"{called} has it as a cell of this column too: set data.header to false if the first line is data"
            raise SettingError("data.targets", name, how)


def task_reason(table: DataFrame, encoding: TableEncoding, targets: Sequence[str], task: Task | None) -> str:
    """The task, and the property of the table from which it follows."""
    if encoding.classes:
        is_counted = encoding.classes == tuple(str(label) for label in range(len(encoding.classes)))
        names = "" if is_counted else f" ({column_list(encoding.classes)})"
        return f"classification: {len(encoding.classes)} classes{names}"
    if len(targets) > 1:
        why = f"{len(targets)} target columns"
    elif task == "regression":
        why = LOSS_DECIDES
    else:
        why = f"{targets[0]} has {_written(table[targets[0]], encoding)}"
    return f"regression: {why}"


def _written(target: Series[Any], encoding: TableEncoding) -> str:
    """What the cells of a guessed regression target have, which labels do not have."""
    numbers = encoding.numbers
    if encoding.kinds.get(str(target.name)) == "date":
        return "dates"
    if is_native(target.dtype):
        return "decimal points"
    cells, decimal = [str(cell) for cell in target], re.escape(numbers.decimal)
    if any(re.search(rf"\d{decimal}|{decimal}\d", cell) for cell in cells):  # of numbers, and not as in n.a.
        return "decimal commas" if numbers.decimal == "," else "decimal points"
    return "exponents" if any(re.search(r"\de", cell, re.I) for cell in cells) else "separators of thousands"


def _rows(path: Path, x: NDArray[Any], y: NDArray[Any], task: Task | None, **known: Any) -> ArrayRows:
    """`as_rows` with the path in its error messages."""
    try:
        return as_rows(x, y, task, **known)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _dataset(path: Path, train: ArrayRows, test: ArrayRows | None, why_regression: str) -> Dataset:
    if train.targets_shape:
        outputs, why = train.targets_shape[0], f"regression: {why_regression}"
        is_guessed = why_regression != LOSS_DECIDES
        warnings = (
            _label_warnings(str(path), "y_train", train.y, "decimal points", "store integers") if is_guessed else ()
        )
        return Dataset(
            path.name, "regression", train.features, outputs, train, test, task_reason=why, warnings=warnings
        )
    classes = class_count(train)
    if classes > train.samples:
        raise DataError(f"{path}: label {classes - 1} among {train.samples} samples; {_label_hint()}")
    if train.y.min() == train.y.max():
        raise DataError(f"{path}: all labels are {classes - 1}: classification needs at least 2 classes")
    why = f"classification: {_class_text(train, classes)}"
    return Dataset(path.name, "classification", train.features, classes, train, test, task_reason=why)


def _class_text(train: ArrayRows, classes: int) -> str:
    """Text of the number of classes and of the labels that do not occur."""
    absent = np.setdiff1d(np.arange(classes), train.y)
    if not absent.size:
        return f"{classes} classes"
    labels = column_list([str(label) for label in absent])
    return f"{classes - absent.size} of {classes} classes occur: no sample has the label {labels}"


def _label_hint() -> str:
    how = "number them from 0, or store floating point for regression, or set model.loss to mse"
    return f"integers are class labels: {how}"


@dataclass(frozen=True)
class InputSamples:
    """Samples to predict from, shape (samples, features), and columns of the file that are no inputs or targets."""

    x: NDArray[Any]
    ignored: tuple[str, ...] = ()
    table: DataFrame | None = None  # with all columns

    key: str = ""  # the column that identifies the rows

    def kept(self, names: Sequence[str] | None, called: str = "the table") -> dict[str, list[str]]:
        """The cells of some columns as text; by default of the one that identifies the rows.

        `DataError`, with `called` for the file, if it has no such column.
        """
        if self.table is None:
            if names:
                raise SettingError("--keep", ",".join(names), "goes with tables, which an .npz file is not")
            return {}
        if names is None:
            names = [self.key] if self.key in self.table.columns else []
        require_columns(called, self.table, names, "which --keep names")
        return {
            name: ["" if cell is None or cell != cell else str(cell) for cell in self.table[name]] for name in names
        }


def load_samples(
    path: str | Path,
    features: int,
    targets: Sequence[str] = (),
    *,
    encoding: TableEncoding | None = None,
    options: TableOptions | None = None,
) -> InputSamples:
    """Load samples without targets, to predict from; parameters and errors as for `load_file`.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with an array ``x``, or with one array of any name, or a table.
    features : int
        Required number of inputs.
    targets : sequence of str
        Columns of a table that are skipped if they are present.
    encoding : TableEncoding, optional
        Encoding of the table that the network was trained on; without it, all columns but the targets are inputs, in
        their order.
    options : TableOptions, optional
        Without `encoding`, how a table is read.
    """
    path = user_path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError("samples", str(path), ENDINGS)
    _require_readable(path, shown_path(path))
    if path.suffix.lower() in TABLES:
        samples = _samples_from_table(path, targets, encoding, options or TableOptions())
    else:
        samples = InputSamples(_samples_from_npz(path))
    try:
        checked = as_rows(samples.x, np.zeros(samples.x.shape[:1]), "regression").x
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if checked.shape[1] != features:
        raise DataError(f"{path}: samples of {checked.shape[1]} features; the network takes {features}")
    return replace(samples, x=checked)


def _samples_from_npz(path: Path) -> NDArray[Any]:
    arrays = read_npz(path)
    if "x" not in arrays and len(arrays) != 1:
        found = column_list(list(arrays)) if arrays else "nothing"
        raise DataError(f"{path}: which array holds the samples? Name it x; found {found}")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _read_like(path: Path, encoding: TableEncoding, targets: Sequence[str] = ()) -> Table:
    """Read a table as the one of the training, whose targets may be absent."""
    return read_table(path, encoding.options, encoding.extra, Known(encoding.columns, tuple(targets)))


def _samples_from_table(
    path: Path, targets: Sequence[str], encoding: TableEncoding | None, options: TableOptions
) -> InputSamples:
    called = shown_path(path)
    table = (_read_like(path, encoding, targets) if encoding else read_table(path, options)).frame
    names = list(table.columns)
    if encoding is None:
        left_out = {*targets, *options.drop_columns}
        encoding = TableEncoding(tuple(name for name in names if name not in left_out), options=options)
    x, _, _ = encoding.encode(table, called, targets=())
    used = {*encoding.columns, *targets, *encoding.options.drop_columns}
    return InputSamples(x, tuple(name for name in names if name not in used), table, encoding.key)
