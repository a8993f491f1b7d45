"""How a table is read, and the names of its columns."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, get_args

from hybridnn.errors import DataError, SettingError
from hybridnn.utils.checks import require_choice, with_advice
from hybridnn.utils.text import printable

NAMES_SHOWN = 12  # limit of column names in a message
NAMES_COMPARED = 1000  # of how many columns the most similar name is found

MISSING_WORDS = frozenset(
    {"", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "-nan", "-NaN"}
)
"""Texts that count as missing values, as in pandas."""

Decimal = Literal["auto", ".", ","]
Thousands = Literal["auto", "none", ".", ",", " ", "'"]
Dates = Literal["iso", "day-first", "month-first"]
Missing = Literal["error", "drop", "mean"]
Refused = Literal["error", "drop"]
Categories = Literal["error", "one-hot"]
Unknown = Literal["error", "zeros"]


OTHER_NAMES = MappingProxyType(
    {
        "drop": "did you mean drop_columns?",
        **dict.fromkeys(("sep", "delimiter"), "did you mean separator?"),
        **dict.fromkeys(("na_values", "missing_values"), "did you mean missing_words?"),
    }
)


@with_advice(OTHER_NAMES)
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read; the fields are those of ``[data]`` with the same names.

    Parameters
    ----------
    separator : str
        One character between the columns of a ``.csv`` file, or a space for any number of spaces; ``"auto"`` finds
        comma, semicolon, tab and vertical bar.
    encoding : str
        Encoding of a ``.csv`` file, as Python calls it; ``"auto"`` is UTF-8, or UTF-16 where the first bytes are so.
    header : {"auto", True, False}
        Whether the first line names the columns; ``"auto"`` refuses a first line that holds numbers. Without a header
        line the names are ``column 1``, ``column 2`` and so on.
    names : str or sequence of str
        Names of the columns of a file without a header line.
    skip_lines : int
        Lines to leave out before the header line.
    comment : str
        One character, from which on the rest of a line is left out; empty for none.
    decimal : {'auto', '.', ','}
        Decimal separator; ``"auto"`` decides by all cells.
    thousands : {'auto', 'none', '.', ',', ' ', "'"}
        Separator of thousands; ``"auto"`` decides by all cells, and refuses cells that may be read in two ways.
    dates : {'iso', 'day-first', 'month-first'}
        Dates are written as ``2020-12-31``; or also as ``31.12.2020`` and ``31/12/2020``, or as ``12/31/2020``.
    missing_words : str or sequence of str
        Texts that count as missing values too, such as ``"?"``; ``"not None"`` takes ``None`` out of `MISSING_WORDS`.
    text_columns : str or sequence of str
        Columns that hold text although their cells are numbers, such as postcodes.
    drop_columns : str or sequence of str
        Columns that are left out.
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

    separator: str = "auto"
    encoding: str = "auto"
    header: Literal["auto"] | bool = "auto"
    names: str | Sequence[str] = ()
    skip_lines: int = 0
    comment: str = ""
    decimal: Decimal = "auto"
    thousands: Thousands = "auto"
    dates: Dates = "iso"
    missing_words: str | Sequence[str] = ()
    text_columns: str | Sequence[str] = ()
    drop_columns: str | Sequence[str] = ()
    missing: Missing = "error"
    missing_targets: Refused = "error"
    categories: Categories = "error"
    unknown_categories: Unknown = "error"

    def __post_init__(self) -> None:
        choices = {
            "decimal": Decimal,
            "thousands": Thousands,
            "dates": Dates,
            "missing": Missing,
            "missing_targets": Refused,
            "categories": Categories,
            "unknown_categories": Unknown,
        }
        for name, choice in choices.items():
            require_choice(f"data.{name}", getattr(self, name), get_args(choice))
        if self.header not in ("auto", True, False):
            raise SettingError("data.header", self.header, "must be true, false or 'auto'")
        if self.separator != "auto" and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise SettingError("data.separator", self.separator, "must be one character, or 'auto'")
        if len(self.comment) > 1:
            raise SettingError("data.comment", self.comment, "must be one character")
        if self.decimal == self.thousands != "auto":
            raise SettingError("data.thousands", self.thousands, "must not be the decimal separator")
        if self.encoding != "auto":
            try:
                "".encode(self.encoding)
            except LookupError:
                raise SettingError("data.encoding", self.encoding, "no such encoding; try 'cp1252'") from None
        for name in ("names", "missing_words", "text_columns", "drop_columns"):
            object.__setattr__(self, name, as_names(getattr(self, name)))

    @property
    def words(self) -> frozenset[str]:
        """All texts that count as missing values."""
        words = {word.strip() for word in self.missing_words}
        cuts = words & {f"not {word}" for word in MISSING_WORDS}
        return MISSING_WORDS - {cut.removeprefix("not ") for cut in cuts} | (words - cuts)


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of columns in Unicode's form NFC; a text is one name, and not a sequence of letters."""
    return tuple(unicodedata.normalize("NFC", name) for name in ((names,) if isinstance(names, str) else names))


def column_names(text: str | None) -> tuple[str, ...]:
    """The names in a text that separates them by commas."""
    return as_names([name.strip() for name in (text or "").split(",") if name.strip()])


def column_list(names: Sequence[str]) -> str:
    """Names of columns for a message, at most `NAMES_SHOWN` of them."""
    shown = ", ".join(printable(name, 40) for name in names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def require_names(called: str, names: Sequence[str], hint: str = "") -> None:
    """Raise DataError for columns without a name, or with equal names."""
    if "" in names:
        raise DataError(f"{called}: column {list(names).index('') + 1} has no name (every column needs one){hint}")
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        quoted = column_list([repr(name) for name in doubled])
        raise DataError(f"{called}: several columns are named {quoted}{hint}")


def require_columns(called: str, table: Any, wanted: Sequence[str], what: str) -> None:
    """Raise DataError unless the table has all the `wanted` columns."""
    there = set(table.columns)
    missing = [name for name in wanted if name not in there]
    if missing:
        which = f"column{'s' if len(missing) > 1 else ''} {column_list([repr(name) for name in missing])}"
        raise DataError(
            f"{called}: no {which}, {what}; it has {column_list(list(table.columns))}{alike(missing[0], there)}"
        )


def alike(name: str, names: Iterable[str]) -> str:
    """The end of a message that names a similar column, and letters that are hard to see if only these differ."""
    names = list(names)
    for other in names:
        if _plain(other) == _plain(name) and other != name:
            how = "its quotation marks" if other.strip("'\"`") != other else "capitals or invisible letters"
            return f"; {ascii(other) if other.isprintable() is False else repr(other)} differs from it by {how}"
    near = get_close_matches(name, names[:NAMES_COMPARED], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _plain(name: str) -> str:
    visible = "".join(letter for letter in name if unicodedata.category(letter) not in ("Cf", "Zs"))
    return unicodedata.normalize("NFKC", visible).strip("'\"`").casefold()
