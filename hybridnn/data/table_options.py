"""How a table is read, and the names of its columns."""

from __future__ import annotations

import codecs
import io
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.utils.checks import nearest, require_choice, with_advice
from hybridnn.utils.text import alike, column_list

Missing = Literal["error", "drop", "mean"]
Categories = Literal["error", "one-hot"]
Csv = Mapping[str, Any]

LISTS = ("names", "na_values", "true_values", "false_values", "parse_dates")
SIGNS = ("sep", "decimal", "thousands", "comment", "quotechar", "escapechar")
CSV_KEYS = (*SIGNS, "encoding", "header", "skiprows", "keep_default_na", "dayfirst", "date_format", *LISTS)
"""Arguments of `pandas.read_csv` that a table may need; the others belong to the library."""
FORMER_KEYS = MappingProxyType(
    {"separator": "sep", "skip_lines": "skiprows", "dates": "parse_dates", "missing_words": "na_values"}
    | {key: key for key in CSV_KEYS}
)
"""Keys that ``[data]`` had or that people expect there, and the keys of ``[data.csv]`` in their place."""


def checked_csv(given: object) -> dict[str, Any]:
    """Arguments for `pandas.read_csv`; `SettingError` for those that it refuses.

    Text separated by commas becomes a list where pandas takes lists, and a header of None the text ``"None"``.
    """
    if not isinstance(given, Mapping):
        raise SettingError("data.csv", given, f"must be a table of keys of pandas.read_csv: {', '.join(CSV_KEYS)}")
    checked = {str(key): _checked(str(key), value) for key, value in given.items()}
    if checked.get("thousands") == checked.get("decimal", "."):
        if "decimal" in checked:
            raise SettingError("data.csv.thousands", checked["thousands"], "must not be the decimal separator")
        checked["decimal"] = ","  # where points separate thousands
    return checked


def _checked(key: str, value: Any) -> Any:
    import pandas

    name = f"data.csv.{key}"
    if key not in CSV_KEYS:
        hint = nearest(key, CSV_KEYS) or f"known are {', '.join(CSV_KEYS)}"
        raise SettingError(name, value, hint, f"unknown setting {one_line(name)}; {hint}")
    if key in LISTS and not isinstance(value, Mapping):
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        value = [unicodedata.normalize("NFC", str(part).strip()) for part in parts]
    if key in SIGNS and value != r"\s+" and (not isinstance(value, str) or len(value) != 1 or value in "\r\n"):
        raise SettingError(
            name, value, "must be one character" + r", or '\s+' for any number of spaces" * (key == "sep")
        )
    if key in ("keep_default_na", "dayfirst") and not isinstance(value, bool):
        raise SettingError(name, value, "must be true or false")
    if key == "header" and value in (None, "None"):
        return "None"  # which TOML can hold
    is_number = type(value) is int and 0 <= value < 10**6
    if key in ("skiprows", "header") and not is_number:
        raise SettingError(name, value, "must be a whole number, 0 or more" + ", or 'None'" * (key == "header"))
    try:
        if key == "encoding":
            codecs.lookup(value)
        elif key != "parse_dates":
            pandas.read_csv(io.StringIO("a\n" * 3), **{key: value})
    except (pandas.errors.EmptyDataError, pandas.errors.ParserError):
        pass  # wrong for this text alone
    except (TypeError, ValueError, LookupError) as error:
        raise SettingError(name, value, f"refused by pandas.read_csv: {one_line(str(error))}") from error
    return value


@with_advice(
    {"drop": "did you mean drop_columns?", **{key: f"give csv={{{new!r}: …}}" for key, new in FORMER_KEYS.items()}}
)
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read; the fields are those of ``[data]`` with the same names.

    Parameters
    ----------
    csv : mapping of str
        Arguments of `pandas.read_csv` for a file of text, of those in `CSV_KEYS`. By default, the separator is found
        among comma, semicolon, tab and vertical bar, the encoding is UTF-8, or UTF-16 where the first bytes are so, and
        a first line that seems to hold data is refused. With ``header`` None, the names are 0, 1 and so on.
    text_columns, drop_columns : str or sequence of str
        Columns that hold text although their cells are numbers, such as postcodes; columns that are left out.
    missing : {'error', 'drop', 'mean'}
        Missing values are refused, or their rows are left out, or those of inputs are replaced by the mean of the
        training samples.
    missing_targets : {'error', 'drop'}
        Rows without a target are refused or left out; ``missing = "drop"`` leaves them out too.
    categories : {'error', 'one-hot'}
        Input columns of text are refused, or become one input per value: 1 where the column has the value, else 0.
    unknown_categories : {'error', 'zeros'}
        A value that the training data did not have is refused, or all inputs of its column are 0.
    """

    csv: Csv = field(default_factory=dict)
    text_columns: str | Sequence[str] = ()
    drop_columns: str | Sequence[str] = ()
    missing: Missing = "error"
    missing_targets: Literal["error", "drop"] = "error"
    categories: Categories = "error"
    unknown_categories: Literal["error", "zeros"] = "error"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(TableOptions).items():
            if choices := [choice for choice in get_args(kind) if isinstance(choice, str)]:
                require_choice(f"data.{name}", getattr(self, name), choices)
        for name, made in (("csv", checked_csv), ("text_columns", as_names), ("drop_columns", as_names)):
            object.__setattr__(self, name, made(getattr(self, name)))


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns in Unicode's form NFC; a text is one name, and not a sequence of letters."""
    return tuple(unicodedata.normalize("NFC", name) for name in ((names,) if isinstance(names, str) else names))


def column_names(text: str | None) -> tuple[str, ...]:
    """The names in a text that separates them by commas."""
    return as_names([name.strip() for name in (text or "").split(",") if name.strip()])


def require_names(called: str, names: Sequence[str], hint: str = "") -> None:
    """Raise DataError for columns without a name, or with equal names."""
    if "" in names:
        raise DataError(f"{called}: column {list(names).index('') + 1} has no name (every column needs one){hint}")
    if doubled := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError(f"{called}: several columns are named {column_list([repr(name) for name in doubled])}{hint}")


def require_columns(called: str, table: Any, wanted: Sequence[str], what: str) -> None:
    """Raise DataError unless the table has all the `wanted` columns."""
    there = set(table.columns)
    if missing := [name for name in wanted if name not in there]:
        which = f"column{'s' if len(missing) > 1 else ''} {column_list([repr(name) for name in missing])}"
        has = f"it has {column_list(list(table.columns))}{alike(missing[0], list(table.columns))}"
        raise DataError(f"{called}: no {which}, {what}; {has}")
