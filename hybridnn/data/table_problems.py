"""Why a table cannot be used as it is: one line that names all problems, and the settings that solve them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybridnn.errors import DataError, one_line
from hybridnn.utils.text import NAMES_SHOWN, column_list, command_argument, counted, plural, to_json

from .table_columns import Column, numbers_of
from .table_options import Csv, TableOptions

MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_ROWS = 20  # in a table of fewer rows, all texts may differ and be categories or labels
SEVERAL_ROWS = 5  # in more rows, the texts of a category do not all differ
CELLS_SHOWN = 3  # texts of odd cells in a message, and rows of each
FORMS = tuple(
    (decimal, thousands) for thousands in ("", ",", ".", " ", "'") for decimal in ".," if decimal != thousands
)
"""How numbers are written: the separators of decimals and of thousands."""
SEPARATED = re.compile(r"\d[.,' \u00a0\u202f]\d")
SIGNED = re.compile(  # a sign, a number, and a sign or a unit
    r"([^\w\s\"'<>\u2264\u2265\u2013]\s?|[A-Z]{3} |[A-Z][a-z]\. )?[+-]?\d[\d.,' \u00a0\u202f_]*?\s?"
    r"([^\w\s.,\"']|\u00b0?[^\W\d_]{1,4}[\u00b2\u00b3]?)?"
)
ANY_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*|\d{1,2}[. -]?[A-Za-z]{3,9}[. -]?\d{2,4}")
PLACEHOLDER = re.compile(
    r"\W+|n\W?[adv]\W?|nan|null|none|nil|missing|unknown|k\. ?a\.|[+-]?inf(inity)?|#[A-Z/0]+[!?]|[09]{4}-.*", re.I
)
"""Words that are usual for missing values; of others a person decides."""
TARGET_ADVICE = 'only inputs can be filled in; set data.missing_targets to "drop" to leave out these rows'
DROP_ADVICE = "leave the column out with data.drop_columns"

Value = str | bool | list[str]


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
        options, advice = options_text(settings_of(problems))[:500], {problem.advice for problem in problems}
        ways = f"; what may solve them: {options}" if options else "; ".join(["", *advice]) * (len(advice) == 1)
        raise TableError(f"{called}: {len(problems)} problems: {shown}{more}{ways}{hint}")


def settings_of(problems: Sequence[Problem]) -> dict[str, Value]:
    """The settings that solve problems; lists of several problems are joined."""
    found: dict[str, Value] = {}
    for key, value in (item for problem in problems for item in problem.settings.items()):
        before = found.get(key)
        are_lists = isinstance(before, list) and isinstance(value, list)
        found[key] = list(dict.fromkeys([*before, *value])) if are_lists else value  # type: ignore[misc]
    return found


def options_text(settings: Mapping[str, Value]) -> str:
    """Settings of ``[data]`` as options of a command."""
    texts = {key: list_text(value) if isinstance(value, list) else str(value) for key, value in settings.items()}
    texts |= {key: str(value).lower() for key, value in settings.items() if isinstance(value, bool)}
    names = {key: key if key.startswith("model.") else f"data.{key}" for key in texts}
    return " ".join(f"--set {command_argument(f'{names[key]}={text}')}" for key, text in texts.items())


def list_text(values: Sequence[str]) -> str:
    """Names with commas between them, or as a list in TOML where a name has one."""
    is_simple = not any("," in value or value != value.strip() for value in values)
    return ",".join(values) if is_simple else to_json(list(values))


# -- columns -----------------------------------------------------------------------------------------------------------


def column_problem(column: Column, options: TableOptions) -> Problem | None:
    """Why an input column that was read as text, truth values or dates cannot be used with these options."""
    name, texts, rows = column.name, column.texts, int((column.codes >= 0).sum())
    is_stated, odd = name in options.text_columns, column.odd() or list(texts)  # stated codes are all numbers
    if column.kind != "text" or not texts:
        return not_numbers(column) if column.odd() else None
    if not is_stated and (is_mostly_numbers(column) or sign_of(odd) or other_form(column, options.csv)):
        return other_form(column, options.csv) or not_numbers(column)
    shown = f"text in {name} ({counted(len(column.rows(odd)), 'row')}, {_cells(column, odd[:1])}"
    if not is_stated and 2 * sum(map(bool, map(ANY_DATE.fullmatch, texts))) > len(texts):
        how = "dates must be written as 2020-12-31, or read with data.csv.parse_dates, and data.csv.dayfirst where the "
        return Problem(f"{shown})", f"{how}day is first; or {DROP_ADVICE}", {"drop_columns": [name]}, name)
    is_unlikely = (rows >= FEW_ROWS and len(texts) > rows // 2) or len(texts) == rows > SEVERAL_ROWS
    if len(texts) > MOST_CATEGORIES or (not is_stated and is_unlikely):
        why = f"{len(texts):,} different values in {rows:,} rows, as of an id or of measurements"
        how = "" if is_stated else ", or add it to data.text_columns to make an input of each value"
        return Problem(f"{shown}, {why})", DROP_ADVICE + how, {"drop_columns": [name]}, name)
    if options.categories == "one-hot":
        return None
    how = f'set data.categories to "one-hot" to make an input of each value, or {DROP_ADVICE}'
    return Problem(f"{shown})", how, {"categories": "one-hot"}, name)


def is_mostly_numbers(column: Column) -> bool:
    """Whether a column of text is one of numbers but for less than half of its cells; leading zeros are of codes."""
    is_code = any(re.match(r"0\d", text) for text in column.texts)
    return not is_code and 2 * len(column.rows(column.odd())) < int((column.codes >= 0).sum())


def sign_of(texts: Sequence[str]) -> str:
    """A sign or unit beside the numbers of most texts, or an empty text."""
    found = [(match[1] or match[2]).strip() for match in map(SIGNED.fullmatch, texts) if match and any(match.groups())]
    is_unit = len(found) > 1 and len({*found}) == 1
    signs = [sign for sign in found if is_unit or not sign.isalnum()]
    return signs[0] if signs and 2 * len(found) >= len(texts) else ""


def other_form(column: Column, csv: Csv, *, is_training: bool = True) -> Problem | None:
    """The problem of numbers that are written in another form than they are read in, or that have two readings."""
    cell = next(filter(SEPARATED.search, column.texts), None)
    if cell is None:
        return None
    own = {"decimal": csv.get("decimal", "."), "thousands": csv.get("thousands", "")}
    ways: dict[tuple[str, ...], dict[str, Value]] = {}
    for form in FORMS:
        changed = {key: sign for key, sign in zip(own, form, strict=True) if sign != own[key]}
        numbers = numbers_of(column.texts, dict(zip(own, form, strict=True)))
        is_free = not any((key in csv and is_training) or not changed[key] for key in changed)
        if is_free and 10 * np.isnan(numbers).sum() < len(numbers):
            ways.setdefault(tuple(map(str, numbers)), {f"csv.{key}": sign for key, sign in changed.items()})
    if not ways or {} in ways.values():
        return None
    if len(ways) > 1 and is_training:
        return two_readings(cell, column.name)
    settings = next(iter(ways.values()))
    how = "set " + " and ".join(f'data.{key} = "{sign}"' for key, sign in settings.items())
    if not is_training:
        how, settings = "the file must write them as that of the training", {}
    return Problem(f"{column.name}: numbers are written as {cell!r}", how, settings)


def two_readings(cell: str, name: str) -> Problem:
    """The problem of a number whose comma or point separates decimals, or thousands."""
    sign, kind = (",", "comma") if "," in cell else (".", "point")
    how = f'set data.csv.thousands = "{sign}" if it separates thousands, or data.csv.decimal = "{sign}" if it is a '
    return Problem(f"{name}: {cell!r} may be read in two ways", f"{how}decimal {kind}")


def not_numbers(column: Column, *, is_target: bool = False) -> Problem:
    """Some cells of a column of numbers, or of truth values or dates, are none."""
    texts, own, rows = column.odd(), "" if is_target else column.name, int((column.codes >= 0).sum())
    count, what = len(column.rows(texts)), {"truth": "truth value", "date": "date"}.get(column.kind, "number")
    cells = f"{count:,} of {rows:,} cells are no {what}s" if count < rows else f"no cell is a {what}"
    shown, words = f"{column.name}: {cells} ({_cells(column, texts)})", column_list([repr(text) for text in texts])
    are_usual = all(map(PLACEHOLDER.fullmatch, texts))
    settings: dict[str, Value] = {"csv.na_values": texts}
    settings |= {"missing_targets": "drop"} if is_target else {"missing": "mean"}
    how = "correct these cells, or add the column to data.text_columns if it holds codes"
    if column.kind == "truth" or all(text.casefold() in ("true", "false") for text in texts):
        how = "the column must hold true and false alone, or 1 and 0 alone"
    elif column.kind != "date" and (sign := sign_of(texts)):
        how = f"numbers must be written as -1234.5, without signs and units such as {sign!r}: change the column"
    elif 2 * count >= rows:
        how = f"the column must hold {what}s"
    elif column.rows(texts).tolist() in ([0], [len(column.codes) - 1]) and not are_usual and len(column.codes) > 2:
        how, own = "correct this cell, or remove its row from the file if it names or sums up the columns", ""
    elif are_usual or (len(texts) <= 5 and not any(letter.isdigit() for text in texts for letter in text)):
        rule = 'data.missing_targets to "drop"' if is_target else "data.missing"
        how = f"if missing values are written as {words}, add this to data.csv.na_values, and set {rule}"
        how += "" if are_usual else "; if the column holds codes, add it to data.text_columns"
        return Problem(shown, how, settings if are_usual else {}, own)
    return Problem(shown, how, {}, own)


def _cells(column: Column, texts: Sequence[str]) -> str:
    """A few texts, each with a few of the rows that hold it, from 1: ``'?' in rows 6, 14, 30, …, 'x' in row 9``."""
    shown = []
    for text in texts[:CELLS_SHOWN]:
        rows = column.rows([text]) + 1
        places = ", ".join(f"{row:,}" for row in rows[:CELLS_SHOWN].tolist()) + ", …" * (len(rows) > CELLS_SHOWN)
        shown.append(f"{repr(text)[:40]} in {plural('row', len(rows))} {places}")
    return ", ".join(shown) + f" and {len(texts) - CELLS_SHOWN:,} more" * (len(texts) > CELLS_SHOWN)
