"""Why a table cannot be used as it is: one line that names all problems, and the settings that solve them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np

from hybridnn.errors import DataError
from hybridnn.utils.text import command_argument, counted, plural, printable, to_json

from .table_columns import ANY_DATE, TOTAL, TRUTH, Column, Numbers, days_of, odd_dates
from .table_options import MISSING_WORDS, NAMES_SHOWN, Dates, TableOptions, column_list

MOST_CATEGORIES = 1_000  # values of one column that become inputs
FEW_ROWS = 20  # in a table of fewer rows, all texts may differ and be categories or labels
SEVERAL_ROWS = 5  # in more rows, the texts of a category do not all differ
CELLS_SHOWN = 3  # texts of odd cells in a message, and rows of each
WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s*(\u00b0?[^\W\d_]{1,5}[/\u00b2\u00b3\w]{0,5})")
DATE_FORMS: Mapping[Dates, str] = {"iso": "2020-12-31", "day-first": "31.12.2020", "month-first": "12/31/2020"}
DATE_ADVICE = "dates must be days that exist, written as 2020-12-31"
TOTAL_ADVICE = "remove the last row from the file, which sums up the others"
MISSING_ADVICE = (
    'set data.missing to "drop" to leave out these rows or to "mean" to fill in means, or data.drop_columns to leave '
    "columns out"
)
TARGET_ADVICE = 'only inputs can be filled in; set data.missing_targets to "drop" to leave out these rows'
TEXT_ADVICE = (
    'set data.categories to "one-hot" to make an input of each value, or data.drop_columns to leave the column out'
)
PLACEHOLDER = re.compile(
    r"\W+|n\W?[adv]\W?|nan|null|none|nil|missing|unknown|k\. ?a\.|[+-]?inf(inity)?|#[A-Z/0]+[!?]", re.I
)
"""Words that are usual for missing values; of others a person decides."""
NO_DAY = re.compile(r"(0000-00-00|9999-99-99).*")
"""What databases write in place of a missing date."""
VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}")
USUAL_TEXT = {"categories": "one-hot"}
CURRENCY = r"[$\u20ac\u00a3\u00a5\u20b9]|\b(CHF|EUR|USD|GBP|INR|JPY|SEK|NOK|DKK|Fr|Rs|kr)(?![^\W\d])\.?"
_SIGNS: Sequence[tuple[str, str, Mapping[str, str]]] = (
    ("[%\u2030]", "numbers must have no percent signs: remove them from the column", {}),
    (CURRENCY, "numbers must have no currency signs: remove them from the column", {}),
    (
        "[ \u00a0\u202f]",
        'a number must have no spaces; set data.thousands = " " if they separate thousands',
        {"thousands": " "},
    ),
    (
        "'",
        'a number must have no apostrophes; set data.thousands = "\'" if they separate thousands',
        {"thousands": "'"},
    ),
    ("[()]", "a number must have no parentheses: write a minus sign if they stand for one", {}),
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
    column: str = ""  # an input column without which it is none


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
    for problem in _column_problems(column, options):
        yield problem if problem.advice == TOTAL_ADVICE else problem._replace(column=column.name)


def _column_problems(column: Column, options: TableOptions) -> Iterator[Problem]:
    name = printable(column.name, 40)
    if not column.texts:
        yield Problem(f"{name} is empty", "leave it out with data.drop_columns", {"drop_columns": [column.name]})
        return
    if column.kind == "text":
        problem = _text_column(column, options)
        if options.categories != "one-hot" or problem.settings != USUAL_TEXT:
            yield problem
            if problem.settings != USUAL_TEXT:
                return
    if column.missing and options.missing == "error":
        row = int((column.codes < 0).argmax()) + 1
        rows = counted(column.missing, "row") + (
            f", {column_list(column.missing_words)}" if column.missing_words else ""
        )
        words = words_advice(column, options, "value")
        how = f"{MISSING_ADVICE}; {words}" if words else MISSING_ADVICE
        yield Problem(f"missing values in {name} ({rows}, first in row {row:,})", how, {"missing": "mean"})
    yield from infinite_values(column)


def words_advice(column: Column, options: TableOptions, what: str) -> str:
    """How to keep the `MISSING_WORDS` in a column of text, which may be a `what` there; empty without such words.

    A word that is one of ``options.missing_words`` is missing by decision.
    """
    of_text = column.missing_words if column.kind == "text" or not column.texts else ()
    words = [word for word in of_text if word in MISSING_WORDS and word not in options.missing_words]
    if not words:
        return ""
    kept = [*options.missing_words, *(f"not {word}" for word in words)]
    are = f"is a {what}" if len(words) == 1 else f"are {plural(what, 2)}"
    named = column_list([repr(word) for word in words])
    return f"if {named} {are}, set data.missing_words = {to_json(kept if len(kept) > 1 else kept[0])}"


def infinite_values(column: Column, *, is_target: bool = False) -> Iterator[Problem]:
    """The problem of a column of numbers of which some are infinite."""
    if column.kind == "number" and np.isinf(column.numbers).any():
        texts = [column.texts[place] for place in np.flatnonzero(np.isinf(column.numbers))]
        shown = f"infinite values in {printable(column.name, 40)} ({_cells(column, texts)})"
        yield Problem(shown, *_missing_words(column, texts, is_target=is_target))


def second_header(columns: Sequence[Column]) -> Problem | None:
    """The problem of a first row that names or describes columns, which holds no number in columns of numbers."""
    of_numbers = [column for column in columns if column.kind == "text" and is_mostly_numbers(column)]
    are_alone = [column for column in of_numbers if column.rows(column.odd()).tolist() == [0] and len(column.codes) > 2]
    found = [column.odd()[0] for column in are_alone]
    if len(found) < 2 or len(found) < len(of_numbers):
        return None
    text = f"row 1 holds no numbers ({column_list([repr(cell) for cell in found])}) where the other rows do"
    return Problem(text, "if it is a second header line, remove it from the file")


def is_mostly_numbers(column: Column) -> bool:
    """Whether a column of text is one of numbers but for less than half of its cells; leading zeros are of codes."""
    if any(re.match(r"0\d", text) for text in column.texts):
        return False
    return 2 * len(column.rows(column.odd())) < len(column.codes) - column.missing


def are_too_many(classes: int, rows: int) -> bool:
    """Whether most values of a target differ."""
    return rows >= FEW_ROWS and classes > rows // 2


def not_numbers(column: Column, *, is_target: bool = False) -> Problem:
    """Some cells of a column of numbers, or of truth values or dates, are none."""
    texts = column.odd()
    shown = _odd_cells(column, texts, {"truth": "truth value", "date": "date"}.get(column.kind, "number"))
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
    if len(texts) > 5 or any(letter.isdigit() for text in texts if not _is_placeholder(text) for letter in text):
        return Problem(shown, "correct these cells, or add the column to data.text_columns if it holds codes")
    return Problem(shown, *_missing_words(column, texts, is_target=is_target))


def _is_placeholder(text: str) -> bool:
    return (PLACEHOLDER.fullmatch(text) or NO_DAY.fullmatch(text)) is not None


def _odd_cells(column: Column, texts: Sequence[str], what: str, form: str = "") -> str:
    """How many cells of a column are none of `what` it holds, and which."""
    count, rows = len(column.rows(texts)), len(column.codes) - column.missing
    cells = f"{count:,} of {rows:,} cells are no {what}s" if count < rows else f"no cell is a {what}"
    return f"{printable(column.name, 40)}: {cells}{form} ({_cells(column, texts)})"


def _cells(column: Column, texts: Sequence[str]) -> str:
    """A few texts, each with a few of the rows that hold it, from 1: ``'?' in rows 6, 14, 30, …, 'x' in row 9``."""
    shown = []
    for text in texts[:CELLS_SHOWN]:
        rows = column.rows([text]) + 1
        more = ", …" if len(rows) > CELLS_SHOWN else ""
        places = ", ".join(f"{row:,}" for row in rows[:CELLS_SHOWN].tolist())
        shown.append(f"{printable(repr(text), 40)} in {plural('row', len(rows))} {places}{more}")
    more = f" and {len(texts) - CELLS_SHOWN:,} more" if len(texts) > CELLS_SHOWN else ""
    return f"{', '.join(shown)}{more}"


def _missing_words(
    column: Column, texts: list[str], *, is_target: bool = False
) -> tuple[str, Mapping[str, str | list[str]]]:
    """Advice about odd cells that may stand for missing values, and the settings if they usually do."""
    if column.rows(texts).tolist() == [len(column.codes) - 1] and TOTAL.fullmatch(texts[0]):
        return TOTAL_ADVICE, {}
    words = column_list([repr(text) for text in texts])
    what, it = ("stands for a missing value", "it") if len(texts) == 1 else ("stand for missing values", "them")
    rule = 'data.missing_targets to "drop"' if is_target else "data.missing"
    how = f"if {words} {what}, add {it} to data.missing_words, and set {rule}; "
    how += "if the column holds codes, add it to data.text_columns"
    is_usual = all(map(_is_placeholder, texts))
    settings = {"missing_targets": "drop"} if is_target else {"missing": "mean"}
    return how, {"missing_words": texts, **settings} if is_usual else {}


def _two_decimals(column: Column) -> Problem | None:
    """The problem of numbers of which most have decimal commas and a few have points, or the other way round."""
    if not all(any(sign in text for text in column.texts) for sign in ",."):
        return None
    unread = {*column.odd()}
    for usual, other, signs in ((",", ".", "commas"), (".", ",", "points")):
        odd = [text for text in column.texts if Numbers(usual).parse(text) is None]
        marked = {text for text in column.texts if usual in text}.difference(odd)
        others = {text for text in odd if Numbers(other).parse(text) is not None}
        are_unlike = unread & others or marked <= unread  # else one sign separates thousands
        if marked and others and are_unlike and 2 * len(odd) < len(column.texts):
            cells = _cells(column, odd)
            shown = f"{printable(column.name, 40)}: most cells are numbers with decimal {signs}, but not {cells}"
            return Problem(shown, "correct these cells: the numbers of a table have all decimal commas or all points")
    return None


def not_dates(column: Column, odd: list[str], dates: Dates, *, is_target: bool = False) -> Problem:
    """Some cells of a column of dates are none in the form `dates`."""
    shown = _odd_cells(column, odd, "date", f" as {DATE_FORMS[dates]}")
    unread = {form: [text for text in column.texts if days_of(text, form) is None] for form in get_args(Dates)}
    best = [form for form in unread if len(unread[form]) == min(map(len, unread.values()))]
    if dates not in best:
        if len(best) > 1 and not all("." in text for text in filter(ANY_DATE.fullmatch, odd)):  # points: days first
            ways = " or ".join(f'"{form}" for {DATE_FORMS[form].replace(".", "/")}' for form in best)
            return Problem(shown, f"set data.dates to {ways}")
        how, settings, odd = f'set data.dates to "{best[0]}"', {"dates": best[0]}, unread[best[0]]
        if not odd:
            return Problem(shown, how, settings)
        rest = not_dates(column, odd, best[0], is_target=is_target)
        return Problem(
            shown, f"{how}; then {rest.text}; {rest.advice}", rest.settings and {**settings, **rest.settings}
        )
    are_few = 2 * len(odd) < len(column.texts)
    if are_few and len(odd) <= 5 and all(NO_DAY.fullmatch(text) or not ANY_DATE.fullmatch(text) for text in odd):
        return Problem(shown, *_missing_words(column, odd, is_target=is_target))
    if is_target:
        return Problem(shown, DATE_ADVICE)
    how = f"{DATE_ADVICE}; or leave the column out with data.drop_columns"
    if all(map(VERSION.fullmatch, odd)) and any("0" in text.split(".") for text in odd):  # no day or month is 0
        return Problem(shown, f"if these are versions or codes, add the column to data.text_columns; {how}")
    return Problem(shown, how, {} if are_few else {"drop_columns": [column.name]})


def sign_advice(texts: Sequence[str]) -> tuple[str, Mapping[str, str]] | None:
    """What to do about signs in cells that are numbers but for them, and the settings, if there are any."""
    for signs, advice, settings in _SIGNS:
        bare = [re.sub(signs, "", text).strip() for text in texts if re.search(signs, text)]
        forms = Numbers(), Numbers(".", ","), Numbers(",", "."), Numbers(".", "'"), Numbers(",", " ")
        if 2 * sum(any(form.parse(text) is not None for form in forms) for text in bare) >= len(texts):
            return advice, settings
    units = [match and match[1] for match in map(WITH_UNIT.fullmatch, texts)]
    if len(texts) > 1 and len({*units}) == 1 and units[0]:
        how = f"if {units[0]!r} is a unit, remove it from the column; if these are codes, add it to data.text_columns"
        return how, {}
    if any("," in text and Numbers(",").pattern.fullmatch(text) for text in texts):
        return 'numbers with decimal commas are read with data.decimal = ","; then none in the table has a point', {}
    return None


def _text_column(column: Column, options: TableOptions) -> Problem:
    """What to do about a column of text; codes, ids and the like only if `data.text_columns` has it."""
    is_stated = column.name in options.text_columns
    if not is_stated and (is_mostly_numbers(column) or _two_decimals(column)):
        return not_numbers(column)
    rows, texts = len(column.codes) - column.missing, column.texts
    odd = column.odd() or list(texts)  # of codes, such as postcodes
    example = f"{printable(repr(odd[0]), 40)} in row {column.rows(odd[:1])[0] + 1:,}"
    shown = f"text in {printable(column.name, 40)} ({counted(len(column.rows(odd)), 'row')}, {example})"
    drop = {"drop_columns": [column.name]}
    if not is_stated and (advice := sign_advice(odd)):
        return Problem(shown, *advice)
    if not is_stated and (not_days := odd_dates(texts, options.dates)):
        return not_dates(column, not_days, options.dates)
    is_unlikely = are_too_many(len(texts), rows) or len(texts) == rows > SEVERAL_ROWS
    if len(texts) > MOST_CATEGORIES or (not is_stated and is_unlikely):
        why = f"{len(texts):,} different values in {rows:,} rows, as of an id or of measurements"
        how = "leave it out with data.drop_columns"
        how += "" if is_stated else ", or add it to data.text_columns to make an input of each value"
        return Problem(f"{shown[:-1]}, {why})", how, drop)
    return Problem(shown, TEXT_ADVICE, USUAL_TEXT)
