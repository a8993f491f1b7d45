"""Why a table cannot be used as it is: one line that names all problems, and the settings that solve them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridnn.errors import DataError
from hybridnn.utils.text import command_argument, counted, printable, to_json

from .table_columns import ANY_DATE, TRUTH, Column, Numbers, odd_dates
from .table_options import MISSING_WORDS, NAMES_SHOWN, TableOptions, column_list

MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_ROWS = 20  # in a table of fewer rows, all texts may differ and be categories or labels
SEVERAL_ROWS = 5  # in more rows, the texts of a category do not all differ
WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s*(\u00b0?[^\W\d_]{1,5}[/\u00b2\u00b3\w]{0,5})")
DATE_ADVICE = "dates must be days that exist, written as 2020-12-31"
MISSING_ADVICE = (
    'set data.missing to "drop" to leave out these rows or to "mean" to fill in means, or data.drop_columns to leave '
    "columns out"
)
TARGET_ADVICE = 'only inputs can be filled in; set data.missing_targets to "drop" to leave out these rows'
TEXT_ADVICE = (
    'set data.categories to "one-hot" to make an input of each value, or data.drop_columns to leave the column out'
)
PLACEHOLDER = re.compile(r"\W+|n\W?[adv]\W?|nan|null|none|nil|missing|unknown|k\. ?a\.", re.I)
"""Words that are usual for missing values; of others a person decides."""
NO_DAY = re.compile(r"(0000-00-00|9999-99-99).*")
"""What databases write in place of a missing date."""
VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}")
USUAL_TEXT = {"categories": "one-hot"}
_SIGNS: Sequence[tuple[str, str, Mapping[str, str]]] = (
    ("%\u2030", "numbers must have no percent signs: remove them from the column", {}),
    ("$\u20ac\u00a3\u00a5", "numbers must have no currency signs: remove them from the column", {}),
    (
        " \u00a0\u202f",
        'a number must have no spaces; set data.thousands = " " if they separate thousands',
        {"thousands": " "},
    ),
    (
        "'",
        'a number must have no apostrophes; set data.thousands = "\'" if they separate thousands',
        {"thousands": "'"},
    ),
    ("()", "a number must have no parentheses: write a minus sign if they stand for one", {}),
    (
        "_",
        "a number must have no underscores: remove them, or add the column to data.text_columns if it holds codes",
        {},
    ),
)


class Problem(NamedTuple):
    """Why a table cannot be used as it is."""

    text: str
    advice: str
    settings: Mapping[str, str | list[str]] = {}  # keys of [data], or with their section, that solve it


class TableError(DataError):
    """Columns of a table cannot be used as they are."""


def require_no_problem(called: str, problems: Sequence[Problem], hint: str = "") -> None:
    """Raise one `TableError` of all problems, with the settings that solve them."""
    if not problems:
        return
    if len(problems) == 1:
        raise TableError(f"{called}: {problems[0].text}; {problems[0].advice}")
    shown = [f"({number}) {problem.text}" for number, problem in enumerate(problems[:NAMES_SHOWN], 1)]
    more = f" and {len(problems) - NAMES_SHOWN:,} more" if len(problems) > NAMES_SHOWN else ""
    advice = options_text(settings_of(problems))
    ways = f"; what may solve them: {advice[:500]}" if advice else ""
    raise TableError(f"{called}: {len(problems)} problems: {', '.join(shown)}{more}{ways}{hint}")


def settings_of(problems: Sequence[Problem]) -> dict[str, str | list[str]]:
    """The settings that solve problems; lists of several problems are joined."""
    found: dict[str, str | list[str]] = {}
    for problem in problems:
        for key, value in problem.settings.items():
            before = found.get(key, [])
            are_lists = isinstance(value, list) and isinstance(before, list)
            found[key] = list(dict.fromkeys([*before, *value])) if are_lists else value
    return found


def options_text(settings: Mapping[str, str | list[str]]) -> str:
    """Settings of ``[data]`` as options of a command."""
    texts = {
        key if "." in key else f"data.{key}": value if isinstance(value, str) else list_text(value)
        for key, value in settings.items()
    }
    return " ".join(f"--set {command_argument(f'{key}={text}')}" for key, text in texts.items())


def list_text(values: Sequence[str]) -> str:
    """Names with commas between them, or as a list in TOML where a name has one."""
    is_simple = not any("," in value or value != value.strip() for value in values)
    return ",".join(values) if is_simple else to_json(list(values))


def column_problems(column: Column, options: TableOptions) -> Iterator[Problem]:
    """Why an input column cannot be used with these options."""
    name = printable(column.name, 40)
    if not column.texts:
        yield Problem(f"{name} is empty", "leave it out with data.drop_columns", {"drop_columns": [column.name]})
        return
    if column.kind == "text":
        problem = _text_column(column, is_stated=column.name in options.text_columns)
        if options.categories != "one-hot" or problem.settings != USUAL_TEXT:
            yield problem
            if problem.settings != USUAL_TEXT:
                return
    if column.missing and options.missing == "error":
        row = int((column.codes < 0).argmax()) + 1
        rows = counted(column.missing, "row") + (
            f", {column_list(column.missing_words)}" if column.missing_words else ""
        )
        how = f"{MISSING_ADVICE}{_or_values(column)}"
        yield Problem(f"missing values in {name} ({rows}, first in row {row:,})", how, {"missing": "mean"})


def _or_values(column: Column) -> str:
    """Words that are read as missing values may be values."""
    word = built_in_word(column)
    return f'; if {word} is a value, set data.missing_words = "not {word}"' if word else ""


def built_in_word(column: Column) -> str:
    """The first of `MISSING_WORDS` in a column of text, which may be a value there, or an empty text."""
    return next((word for word in column.missing_words if column.kind == "text" and word in MISSING_WORDS), "")


def second_header(columns: Sequence[Column]) -> Problem | None:
    """The problem of a first row that names or describes columns, which holds no number in columns of numbers."""
    of_numbers = [column for column in columns if column.kind == "text" and is_mostly_numbers(column)]
    found = [column.odd()[2][0] for column in of_numbers if column.odd()[:2] == (1, 0) and len(column.codes) > 2]
    if len(found) < 2 or len(found) < len(of_numbers):
        return None
    text = f"row 1 holds no numbers ({column_list([repr(cell) for cell in found])}) where the other rows do"
    return Problem(text, "if it is a second header line, remove it from the file")


def is_mostly_numbers(column: Column) -> bool:
    """Whether a column of text is one of numbers but for less than half of its cells; leading zeros are of codes."""
    if any(re.match(r"0\d", text) for text in column.texts):
        return False
    return 2 * column.odd()[0] < len(column.codes) - column.missing


def are_too_many(classes: int, rows: int) -> bool:
    """Whether most values of a target differ."""
    return rows >= FEW_ROWS and classes > rows // 2


def not_numbers(column: Column, *, is_target: bool = False) -> Problem:
    """Some cells of a column of numbers, or of truth values or dates, are none."""
    count, row, texts = column.odd()
    rows, name = len(column.codes) - column.missing, printable(column.name, 40)
    what = {"truth": "truth value", "date": "date"}.get(column.kind, "number")
    cells = f"{count:,} of {rows:,} cells are no {what}s" if count < rows else f"no cell is a {what}"
    shown = f"{name}: {cells} ({printable(repr(texts[0]), 40)} in row {row + 1:,})"
    if column.kind == "date":
        return Problem(shown, DATE_ADVICE)
    if column.kind == "truth" or all(text.casefold() in TRUTH for text in texts):
        return Problem(shown, "the column must hold true and false alone, or 1 and 0 alone")
    if problem := _two_decimals(column):
        return problem
    if found := sign_advice(texts):
        return Problem(shown, *found)
    if not is_mostly_numbers(column):
        return Problem(shown, "the column must hold numbers")
    if len(texts) > 5 or any(letter.isdigit() for text in texts for letter in text):
        return Problem(shown, "correct these cells, or add the column to data.text_columns if it holds codes")
    return Problem(shown, *_missing_words(texts, is_target=is_target))


def _missing_words(texts: list[str], *, is_target: bool = False) -> tuple[str, Mapping[str, str | list[str]]]:
    """Advice about odd cells that may stand for missing values, and the settings if they usually do."""
    words = column_list([repr(text) for text in texts])
    what, it = ("stands for a missing value", "it") if len(texts) == 1 else ("stand for missing values", "them")
    rule = 'data.missing_targets to "drop"' if is_target else "data.missing"
    how = f"if {words} {what}, add {it} to data.missing_words, and set {rule}; "
    how += "if the column holds codes, add it to data.text_columns"
    is_usual = all(PLACEHOLDER.fullmatch(text) or NO_DAY.fullmatch(text) for text in texts)
    settings = {"missing_targets": "drop"} if is_target else {"missing": "mean"}
    return how, {"missing_words": texts, **settings} if is_usual else {}


def _two_decimals(column: Column) -> Problem | None:
    """The problem of numbers of which most have decimal commas and a few have points, or the other way round."""
    if not all(any(sign in text for text in column.texts) for sign in ",."):
        return None
    unread = {*column.odd()[2]}
    for usual, other, signs in ((",", ".", "commas"), (".", ",", "points")):
        odd = [text for text in column.texts if Numbers(usual).parse(text) is None]
        marked = {text for text in column.texts if usual in text}.difference(odd)
        others = {text for text in odd if Numbers(other).parse(text) is not None}
        are_unlike = unread & others or marked <= unread  # else one sign separates thousands
        if marked and others and are_unlike and 2 * len(odd) < len(column.texts):
            cells = column_list([f"{text!r} in row {_first_row(column, text):,}" for text in odd[:NAMES_SHOWN]])
            cells += f" and {len(odd) - NAMES_SHOWN:,} more" if len(odd) > NAMES_SHOWN else ""
            shown = f"{printable(column.name, 40)}: most cells are numbers with decimal {signs}, but not {cells}"
            return Problem(shown, "correct these cells: the numbers of a table have all decimal commas or all points")
    return None


def _first_row(column: Column, text: str) -> int:
    """The first row, from 1, that holds the text."""
    return int((column.codes == column.texts.index(text)).argmax()) + 1


def not_dates(column: Column, odd: list[str], *, is_target: bool = False) -> Problem:
    """Some cells of a column of dates are no ISO dates."""
    row = f" (row {_first_row(column, odd[0]):,})"
    shown = f"{printable(column.name, 40)}: {printable(repr(odd[0]), 40)} is no date as 2020-12-31{row}"
    are_few = 2 * len(odd) < len(column.texts)
    if are_few and len(odd) <= 5 and all(NO_DAY.fullmatch(text) or not ANY_DATE.fullmatch(text) for text in odd):
        return Problem(shown, *_missing_words(odd, is_target=is_target))
    if is_target:
        return Problem(shown, DATE_ADVICE)
    how = f"{DATE_ADVICE}; or leave the column out with data.drop_columns"
    if all(map(VERSION.fullmatch, odd)) and any("0" in text.split(".") for text in odd):  # no day or month is 0
        return Problem(shown, f"if these are versions or codes, add the column to data.text_columns; {how}")
    return Problem(shown, how, {} if are_few else {"drop_columns": [column.name]})


def sign_advice(texts: Sequence[str]) -> tuple[str, Mapping[str, str]] | None:
    """What to do about signs in cells that are numbers but for them, and the settings, if there are any."""
    for signs, advice, settings in _SIGNS:
        signed = [text for text in texts if any(sign in text for sign in signs)]
        bare = [text.translate(dict.fromkeys(map(ord, signs))).strip() for text in signed]
        forms = Numbers(), Numbers(".", ","), Numbers(",", ".")
        if 2 * sum(any(form.parse(text) is not None for form in forms) for text in bare) >= len(texts):
            return advice, settings
    units = [match and match[1] for match in map(WITH_UNIT.fullmatch, texts)]
    if len(texts) > 1 and len({*units}) == 1 and units[0]:
        how = f"if {units[0]!r} is a unit, remove it from the column; if these are codes, add it to data.text_columns"
        return how, {}
    if any("," in text and Numbers(",").pattern.fullmatch(text) for text in texts):
        return 'numbers with decimal commas are read with data.decimal = ","; then none in the table has a point', {}
    return None


def _text_column(column: Column, *, is_stated: bool) -> Problem:
    """What to do about a column of text; codes, ids and the like only if `data.text_columns` has it."""
    if not is_stated and (is_mostly_numbers(column) or _two_decimals(column)):
        return not_numbers(column)
    rows, texts = len(column.codes) - column.missing, column.texts
    count, first, odd = column.odd()
    if not count:  # codes, such as postcodes
        count, first, odd = rows, int((column.codes >= 0).argmax()), list(texts)
    example = f"{printable(repr(odd[0]), 40)} in row {first + 1:,}"
    shown = f"text in {printable(column.name, 40)} ({counted(count, 'row')}, {example})"
    drop = {"drop_columns": [column.name]}
    if not is_stated and (advice := sign_advice(odd)):
        return Problem(shown, *advice)
    if not is_stated and (not_days := odd_dates(texts)):
        return not_dates(column, not_days)
    is_unlikely = are_too_many(len(texts), rows) or len(texts) == rows > SEVERAL_ROWS
    if len(texts) > MOST_CATEGORIES or (not is_stated and is_unlikely):
        why = f"{len(texts):,} different values in {rows:,} rows, as of an id or of measurements"
        how = "leave it out with data.drop_columns"
        how += "" if is_stated else ", or add it to data.text_columns to make an input of each value"
        return Problem(f"{shown[:-1]}, {why})", how, drop)
    return Problem(shown, TEXT_ADVICE, USUAL_TEXT)
