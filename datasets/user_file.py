"""Data files of a user, `.npz` or `.csv`: data to train on, and samples to predict from."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.files import open_regular, read_npz
from hybridnn.utils.text import printable, shown_path

from .rows import ArrayRows, Dataset, Task, as_rows, class_count

EXACT = 2**53  # from here on, float64 does not represent all integers
LINE_CHARACTERS = 1 << 28  # limit of characters per line, enough for ten million columns
NAMES_SHOWN = 12  # limit of column names in a message

LOSS_DECIDES = "by the loss, mse"
PANDAS_INDEX = "pandas writes its index so; df.to_csv(file, index=False) leaves it out"


def load_file(
    path: str | Path, targets: Sequence[str] = (), *, inputs: Sequence[str] = (), task: Task | None = None
) -> Dataset:
    """Load the training data of a user.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with ``x_train``, ``y_train`` and optionally ``x_test``, ``y_test``, or ``.csv`` with a header line.
    targets : sequence of str
        Target columns of a ``.csv``.
    inputs : sequence of str
        Input columns of a ``.csv``, in this order; if empty, all columns but the targets.
    task : {'classification', 'regression'}, optional
        By default, floats are regression targets, and integers are labels; in a ``.csv``, one target column of
        integers without decimal points holds labels.

    Raises
    ------
    DataError
        If the file is missing or cannot be used; the message names the file and the key, or the line and column.
    SettingError
        If `targets` are missing for a ``.csv``, or `targets` or `inputs` are given for an ``.npz``.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise SettingError("data.file", str(path), "must end in .npz or .csv")
    _require_readable(path, f"data.file = {str(path)!r}")
    if path.suffix == ".csv" and not targets:
        how = "a .csv file needs the names of its target columns, as in --set data.targets='[\"price\"]'"
        raise SettingError("data.targets", [], how)
    if path.suffix == ".npz" and targets:
        raise SettingError("data.targets", list(targets), "only for .csv files; an .npz file has y_train")
    if path.suffix == ".npz" and inputs:
        raise SettingError("data.inputs", list(inputs[:NAMES_SHOWN]), "only for .csv files; an .npz file has x_train")
    return _dataset_from_csv(path, targets, inputs, task) if path.suffix == ".csv" else _dataset_from_npz(path, task)


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


def _dataset_from_csv(path: Path, targets: Sequence[str], inputs: Sequence[str], task: Task | None) -> Dataset:
    taken: list[str] = []
    ignored: list[str] = []

    def choose(names: list[str]) -> list[str]:
        _require_targets(path, names, targets)
        taken.extend(input_columns(path, names, targets, inputs))
        if not taken or len({*taken, *targets}) != len(taken) + len(targets):
            setting, value = ("data.inputs", inputs) if inputs else ("data.targets", targets)
            allowed = f"each name once, and at least one column of {path} left as input"
            raise SettingError(setting, list(value[:NAMES_SHOWN]), allowed)
        used = {*taken, *targets}
        ignored.extend(name for name in names if name not in used)
        return [*taken, *targets]

    table, integers = read_columns(path, choose, targets)
    x, y = table[:, : len(taken)], table[:, len(taken) :]
    is_labels = integers and len(targets) == 1
    why = f"{targets[0]} has decimal points" if len(targets) == 1 else f"{len(targets)} target columns"
    if task == "regression" and is_labels:
        why = LOSS_DECIDES
    if task is None:
        task = "classification" if is_labels else "regression"
    if task == "classification" and not is_labels:
        raise DataError(f"{path}: classification needs one target column of integers without decimal points")
    rows = _rows(path, x, _labels(path, targets[0], y[:, 0]) if task == "classification" else y, task)
    return replace(_dataset(path, rows, None, why), inputs=tuple(taken), ignored=tuple(ignored))


def _require_targets(path: Path, names: Sequence[str], targets: Sequence[str]) -> None:
    there = set(names)
    for name in targets:
        if name not in there:
            raise SettingError("data.targets", name, f"{path} has no such column; it has {column_list(names)}")


def _labels(path: Path, column: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    beyond = np.flatnonzero(np.abs(values) >= EXACT)
    if beyond.size:
        label = f"{values[beyond[0]]:.0f}"
        raise DataError(f"{path}: column {column!r} has the label {label}, too large; {_label_hint(path)}")
    return values.astype(np.int64)


def _rows(path: Path, x: NDArray[Any], y: NDArray[Any], task: Task | None, **known: Any) -> ArrayRows:
    """`as_rows` with the path in its error messages."""
    try:
        return as_rows(x, y, task, **known)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _dataset(path: Path, train: ArrayRows, test: ArrayRows | None, why_regression: str) -> Dataset:
    if train.targets_shape:
        outputs, why = train.targets_shape[0], f"regression: {why_regression}"
        return Dataset(path.name, "regression", train.features, outputs, train, test, task_reason=why)
    classes = class_count(train)
    if classes > train.samples:
        raise DataError(f"{path}: label {classes - 1} among {train.samples} samples; {_label_hint(path)}")
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


def _label_hint(path: Path) -> str:
    otherwise = "write a decimal point" if path.suffix == ".csv" else "store floating point"
    return f"integers are class labels: number them from 0, or {otherwise} for regression, or set model.loss to mse"


@dataclass(frozen=True)
class InputSamples:
    """Samples to predict from, shape (samples, features), and columns of the file that are no inputs or targets."""

    x: NDArray[Any]
    ignored: tuple[str, ...] = ()


def load_samples(
    path: str | Path, features: int, targets: Sequence[str] = (), inputs: Sequence[str] = ()
) -> InputSamples:
    """Load samples without targets, to predict from; parameters and errors as for `load_file`.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with an array ``x``, or with one array of any name, or ``.csv`` with a header line.
    features : int
        Required number of inputs.
    targets : sequence of str
        Columns of a ``.csv`` that are skipped if they are present.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise SettingError("samples", str(path), "must end in .npz or .csv")
    _require_readable(path, shown_path(path))
    if path.suffix == ".csv":
        samples = _samples_from_csv(path, targets, inputs)
    else:
        samples = InputSamples(_samples_from_npz(path))
    try:
        checked = as_rows(samples.x, np.zeros(samples.x.shape[:1]), "regression").x
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if checked.shape[1] != features:
        raise DataError(f"{path}: samples of {checked.shape[1]} features; the network takes {features}")
    return InputSamples(checked, samples.ignored)


def _samples_from_npz(path: Path) -> NDArray[Any]:
    arrays = read_npz(path)
    if "x" not in arrays and len(arrays) != 1:
        found = column_list(list(arrays)) if arrays else "nothing"
        raise DataError(f"{path}: which array holds the samples? Name it x; found {found}")
    return arrays["x"] if "x" in arrays else next(iter(arrays.values()))


def _samples_from_csv(path: Path, targets: Sequence[str], inputs: Sequence[str]) -> InputSamples:
    ignored: list[str] = []

    def choose(names: list[str]) -> list[str]:
        if not set(names) & set(inputs):
            _require_header(path, names)
        chosen = input_columns(path, names, targets, inputs)
        used = {*chosen, *targets}
        ignored.extend(name for name in names if name not in used)
        return chosen

    table, _ = read_columns(path, choose)
    return InputSamples(table, tuple(ignored))


def _require_header(path: Path, names: Sequence[str]) -> None:
    """Raise DataError if the first line holds numbers, and so is not a header."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return
    found = "holds numbers" if numbers else "is empty"
    raise DataError(f"{path}: the first line {found}; it must name the columns")


# -- tables of a .csv file --------------------------------------------------------------------------------------------


def read_columns(
    path: Path, choose: Callable[[list[str]], Sequence[str]], labels: Sequence[str] = ()
) -> tuple[NDArray[np.float64], bool]:
    """Read columns of a ``.csv`` file with a header line; a `DataError` names the file, the line and the column.

    Parameters
    ----------
    choose : callable
        Takes the names of all columns, which are unique, and returns those to read; cells of other columns are not
        checked.
    labels : sequence of str
        Columns that are checked for decimal points.

    Returns
    -------
    values : ndarray, shape (samples, columns)
        In the order of the chosen names; finite.
    integers : bool
        Whether all cells of `labels` are integers without decimal points.
    """
    called = shown_path(path)
    try:
        # utf-8-sig: spreadsheets write a byte-order mark
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_lines(called, file))
            names = [name.strip() for name in next(reader, [])]
            _require_names(called, names)
            rows = ((reader.line_num, cells) for cells in reader if cells)
            return _numbers(called, names, rows, choose(names), labels)
    except OSError as error:
        raise DataError(f"{called}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{called} is not a text file of comma-separated values: {error}") from error
    except MemoryError:
        raise DataError(f"{called}: the table does not fit into the memory") from None


def column_list(names: Sequence[str]) -> str:
    """Names of columns for a message, at most `NAMES_SHOWN` of them."""
    shown = ", ".join(printable(name, 40) for name in names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def input_columns(path: Path, names: Sequence[str], targets: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Input columns: those of `inputs`, which must be among `names`, in their order; if empty, all but `targets`."""
    there, left_out = set(names), set(targets)
    missing = [repr(name) for name in inputs if name not in there]
    if missing:
        which = f"column{'s' if len(missing) > 1 else ''} {column_list(missing)}"
        raise DataError(f"{shown_path(path)}: no {which}, which the inputs need; it has {column_list(names)}")
    return list(inputs) or [name for name in names if name not in left_out]


def _lines(called: str, file: io.TextIOWrapper) -> Iterator[str]:
    """Lines of a file; an error if one is longer than `LINE_CHARACTERS`."""
    number = 0
    while line := file.readline(LINE_CHARACTERS):
        number += 1
        if len(line) == LINE_CHARACTERS:
            raise DataError(f"{called}, line {number}: longer than {LINE_CHARACTERS:,} characters")
        yield line


def _require_names(called: str, names: Sequence[str]) -> None:
    """Raise DataError for columns without a name, or with equal names."""
    if len(names) > 1 and "" in names:
        column = names.index("")
        why = PANDAS_INDEX if column == 0 else "every column needs one"
        raise DataError(f"{called}: column {column + 1} of the header line has no name ({why})")
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        quoted = column_list([repr(name) for name in doubled])
        raise DataError(f"{called}: the header line names {quoted} more than once")


def _numbers(
    called: str,
    names: Sequence[str],
    rows: Iterable[tuple[int, list[str]]],
    chosen: Sequence[str],
    labels: Sequence[str],
) -> tuple[NDArray[np.float64], bool]:
    """Values of the chosen columns, and whether every cell of `labels` is an integer."""
    place = {name: column for column, name in enumerate(names)}
    columns, label_columns = [place[name] for name in chosen], [place[name] for name in labels]
    values, samples, integers = array("d"), 0, True
    for line, cells in rows:
        if len(cells) != len(names):
            raise DataError(f"{called}, line {line}: {len(cells)} cells, the header line has {len(names)}")
        row = _finite([cells[column] for column in columns])
        if row is None:
            bad = next(column for column in columns if _finite([cells[column]]) is None)
            cell = repr(cells[bad]) if len(cells[bad]) <= 40 else f"{cells[bad][:40]!r}…"
            raise DataError(f"{called}, line {line}, column {names[bad]!r}: {cell} is not a finite number")
        values.extend(row)
        integers = integers and all(cells[column].strip().lstrip("+-").isdecimal() for column in label_columns)
        samples += 1
    if not samples:
        raise DataError(f"{called}: no line of data after the header line")
    return np.array(values).reshape(samples, len(columns)), integers


def _finite(cells: Sequence[str]) -> list[float] | None:
    """Values of `cells`, or None if one is not a finite number."""
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None
