"""What a table holds, column by column, and the settings with which it can be used for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybridnn.data.rows import Task
from hybridnn.data.table_encoding import number_block, read_columns
from hybridnn.data.table_file import Table, TableOptions, as_names, read_table
from hybridnn.data.table_fitting import Examination, Problem, examine
from hybridnn.data.user_file import choose_columns, task_reason
from hybridnn.utils.text import printable, shown_path


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
    notes: tuple[str, ...]
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
    table, called = read_table(path, options or TableOptions(), as_names(targets)), shown_path(path)
    frame, dropped = table.frame, table.options.drop_columns
    names = as_names(targets)
    columns = choose_columns(frame, called, names, as_names(inputs), dropped)
    found = examine(table, called, columns, names, task)
    is_known = all(problem.column or "missing_targets" in problem.settings for problem in found.problems)
    reason = task_reason(found.encoding, names, task) if names and is_known else ""
    becomes = (
        dict.fromkeys(frame.columns, "left out") | dict.fromkeys(columns, "input") | dict.fromkeys(names, "target")
    )
    lines = _lines(table, called, found, becomes)
    separator = repr(table.options.csv["sep"]) if table.raw else ""
    return TableCheck(len(frame), reason, separator, names, (*table.notes, *found.notes), lines, found.problems)


def _lines(table: Table, called: str, found: Examination, becomes: dict[str, str]) -> list[ColumnLine]:
    frame, lines = table.frame, dict.fromkeys(table.frame.columns, ColumnLine("", "", 0, 0, "", ""))
    is_plain = np.array([dtype.kind in "iuf" for dtype in frame.dtypes]) & ~frame.columns.isin(list(found.columns))
    block = np.sort(number_block(frame, np.flatnonzero(is_plain)), axis=0)  # missing values are last
    there = (~np.isnan(block)).sum(axis=0)
    different = (np.diff(block, axis=0) > 0).sum(axis=0) + (there > 0)
    least, most = block[0], block[np.maximum(there, 1) - 1, np.arange(block.shape[1])]
    for name, *facts in zip(frame.columns[is_plain], there, different, least, most, strict=True):
        count, values, low, high = (fact.item() for fact in facts)
        shown = f"{low:g} to {high:g}" if values > 1 else f"{low:g}" if values else ""
        lines[name] = ColumnLine(printable(name, 40), "numbers", len(frame) - count, values, shown, becomes[name])
    others, csv = np.flatnonzero(~is_plain), found.encoding.options.csv
    stated = {name: column.kind for name, column in found.columns.items()}
    kinds = {"number": "numbers", "truth": "truth values", "date": "dates", "text": "text"}
    of_kind = {"truth": "input, 0 or 1", "date": "input, days since 1970"}
    for column in read_columns(frame, others, csv, called, stated):
        values, ends = (
            column.texts[:1],
            [find(column.numbers) for find in (np.argmin, np.argmax)] if column.texts else [],
        )
        if column.kind in ("number", "date") and len(column.texts) > 1 and not column.odd():
            values = tuple(column.texts[place] for place in ends)
        text, becoming = " to ".join(printable(value, 20) for value in values), becomes[column.name]
        if becoming == "input":
            count = len(found.encoding.categories.get(column.name, ()))
            one_hot = f"{count:,} inputs" if table.options.categories == "one-hot" else "?"
            becoming = one_hot if column.kind == "text" else of_kind.get(column.kind, "input")
        sizes = int((column.codes < 0).sum()), len(column.texts)
        lines[column.name] = ColumnLine(printable(column.name, 40), kinds[column.kind], *sizes, text, becoming)
    return list(lines.values())
