"""What a table holds, column by column, and the settings with which it can be used for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybridnn.utils.text import printable, shown_path

from .rows import Task
from .table_columns import Column, read_column
from .table_file import read_table
from .table_fitting import Examination, examine
from .table_options import TableOptions, as_names
from .table_problems import Problem, settings_of
from .user_file import choose_columns, task_reason


class ColumnLine(NamedTuple):
    """One column of a table, as text."""

    name: str
    holds: str
    missing: int
    different: int
    values: str
    becomes: str


class TableCheck(NamedTuple):
    """A table, its problems, and the settings of ``[data]`` that may solve them."""

    rows: int
    task: str  # with its reason; empty where the targets do not tell
    separator: str
    encoding: str
    notes: tuple[str, ...]
    columns: list[ColumnLine]
    problems: list[Problem]
    settings: Mapping[str, str | list[str]]


def check_table(
    path: Path,
    targets: str | Sequence[str] = (),
    *,
    inputs: str | Sequence[str] = (),
    task: Task | None = None,
    options: TableOptions | None = None,
) -> TableCheck:
    """Examine a table; without targets, all columns are inputs. Parameters and errors as for `load_file`."""
    table, called = read_table(path, options), shown_path(path)
    frame, known = table.frame, table.options
    wanted = as_names(targets)
    columns = (
        choose_columns(frame, called, wanted, as_names(inputs), known.drop_columns)
        if wanted
        else [name for name in frame.columns if name not in known.drop_columns]
    )
    found = examine(frame, called, columns, wanted, task, known)
    numbers = found.encoding.numbers
    lines = []
    for name in frame.columns:
        column = found.columns.get(name) or read_column(frame[name], known, numbers, called)
        becomes = "target" if name in wanted else _becomes(column, found) if name in columns else "left out"
        lines.append(_line(column, becomes))
    separator = repr(known.separator) if path.suffix.lower() != ".parquet" else ""
    return TableCheck(
        len(frame),
        task_reason(frame, found.encoding, wanted, task) if found.has_task else "",
        separator,
        known.encoding,
        (*table.notes, *table.doubts, *found.doubts),
        lines,
        found.problems,
        settings_of(found.problems),
    )


def _line(column: Column, becomes: str) -> ColumnLine:
    kinds = {"number": "numbers", "truth": "truth values", "date": "dates", "text": "text"}
    values = printable(column.texts[0], 20) if column.texts else ""
    if column.kind in ("number", "date") and len(column.texts) > 1:
        least, most = (column.texts[find(column.numbers)] for find in (np.argmin, np.argmax))
        values = f"{printable(least, 20)} to {printable(most, 20)}"
    return ColumnLine(
        printable(column.name, 40), kinds[column.kind], column.missing, len(column.texts), values, becomes
    )


def _becomes(column: Column, found: Examination) -> str:
    if column.kind == "text":
        count = len(found.encoding.categories[column.name])
        return f"{count:,} inputs" if found.encoding.options.categories == "one-hot" else "?"
    return {"number": "input", "truth": "input, 0 or 1", "date": "input, days since 1970"}[column.kind]
