"""Why a file cannot be read as a table: what was seen, and what to do, for one line of a message."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.errors import DataError, one_line
from hybridnn.utils.text import plural

from .table_options import TableOptions

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
FOREIGN = {
    rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd": "is compressed: unpack it (gunzip unpacks .gz)",
    rb"PK\x03\x04": "is a zip archive, as .xlsx and .ods files are: unpack it, or save the sheet as .csv",
    rb"\xd0\xcf\x11\xe0": "is a workbook of Excel: save the sheet as .csv",
    rb"PAR1[\0-\x1f]": "is a Parquet file: its name must end in .parquet",
    rb"(\xef\xbb\xbf)?\s*<(?i:!doctype|html|\?xml|table)": "is a page of HTML or XML: save the table itself as .csv",
}
"""Patterns of the first bytes of files that are no text of columns, and what to do about them."""
SEPARATORS = (",", ";", "\t", "|")
COMMENTS = "#%"
"""Characters that begin comments in many files."""
ESCAPED_MARKS = re.compile(r'\\"(?![,;\t|\r\n]|$)')
ESCAPED = 'quotation marks inside cells are written as \\" and must be doubled instead: ""'


def require_text(called: str, start: bytes) -> None:
    """Raise DataError for the first bytes of another kind of file."""
    for pattern, what in FOREIGN.items():
        if re.match(pattern, start):
            raise DataError(f"{called} {what}")


def require_no_nul(called: str, text: str, lines: int) -> None:
    """Raise DataError for characters NUL in a text that `lines` lines precede."""
    if "\0" in text:
        line = lines + text[: text.index("\0")].count("\n") + 1
        how = "it is damaged, or data.encoding must name its encoding, such as utf-16-le"
        raise DataError(f"{called}, line {line:,}: has the character NUL: {how}")


def repeated_header(table: DataFrame, names: Sequence[str]) -> str:
    """Rows that repeat the header line, as text, or an empty one.

    Names are no numbers, and no other row has one of them in its place, as rows of data would.
    """
    if len(names) < 2 or len(names) > table.shape[1] or any(map(NUMBER.fullmatch, names)):
        return ""
    rows = np.ones(len(table), bool)
    for place, name in enumerate(names):
        rows &= table[place].to_numpy() == name
        if not rows.any():
            return ""
    if any((table[place].to_numpy() == name).sum() > rows.sum() for place, name in enumerate(names)):
        return ""
    shown = ", ".join(f"{row + 1:,}" for row in np.flatnonzero(rows)[:3])
    return f"{plural('row', int(rows.sum()))} {shown}{', …' if rows.sum() > 3 else ''}"


def are_data(names: Sequence[str], records: Sequence[Sequence[str]] = ()) -> bool:
    """Whether the header line seems to hold data: numbers that do not count the columns, or cells that others repeat.

    Half of the line are numbers, or of numbers and words that are cells of the `records` in the same column too, there
    are two.
    """
    if len(names) > 1 and not names[0]:  # above row names
        return False
    numbers = [float(text) for text in (name.replace(",", ".") for name in names) if NUMBER.fullmatch(text)]
    is_count = len(numbers) > 1 and sorted(numbers) == [min(numbers) + number for number in range(len(numbers))]
    if 2 * len(numbers) >= len(names) > 0 or is_count:
        return not is_count
    words = [(i, name) for i, name in enumerate(names) if name and not NUMBER.fullmatch(name.replace(",", "."))]
    repeated = sum(any(record[i : i + 1] == [name] for record in records) for i, name in words)
    return repeated > 0 and repeated + len(numbers) > 1


def other_separator(names: Sequence[str], records: Sequence[Sequence[str]]) -> str:
    """A separator that would divide the one column of a table, or an empty text."""
    for separator in (" ", ":"):
        sizes = {len(text.replace(separator, " ").split()) for text in [*names, *(record[0] for record in records)]}
        if any(separator in name for name in names) and len(sizes) == 1 and sizes != {1}:
            return separator
    return ""


def names_columns(table: DataFrame) -> bool:
    """Whether the first row has no number, and a column below it nothing else."""
    number = r"[+-]?[\d.,]+"
    first, rest = table.iloc[0].astype(str), table.iloc[1:50].astype(str)
    is_text = not first.str.fullmatch(number).any()
    return is_text and len(rest) > 0 and any(rest[name].str.fullmatch(number).all() for name in rest)


def header_hint(text: str, records: Sequence[tuple[int, Sequence[str]]], skipped: int) -> str:
    """The advice to leave out the first lines of a text, if a later one has a name for every column.

    Parameters
    ----------
    records : sequence of (int, sequence of str)
        The first records of the text, each with the number of lines before it.
    skipped : int
        Lines of the file before the text.
    """
    sizes = Counter(len(record) for _, record in records)
    size = max(sizes, key=lambda size: (sizes[size], size), default=0)
    names = [n for n, record in records[:20] if len(record) == size > 1 and all(map(str.strip, record))]
    number = next((n for n in names if not are_data(dict(records)[n])), 0)
    if not number:
        return ""
    lines = list(io.StringIO(text, newline=""))
    marks = {line.strip()[0] for line in lines[:number] if line.strip()}
    if len(marks) == 1 and marks <= {*COMMENTS} and marks.isdisjoint("".join(lines[number:])):
        return f'; if lines that begin with {min(marks)} are comments, set data.comment = "{min(marks)}"'
    return f"; if line {skipped + number + 1} names the columns, set data.skip_lines = {skipped + number}"


def other_header(names: Sequence[str], columns: int) -> str:
    """What separates the names of a header line that has one cell, if it is another separator; or an empty text."""
    found = [separator for separator in SEPARATORS if columns > 1 and len(names[0].split(separator)) == columns]
    return f"; {found[0]!r} separates the names: write the header line as the rows" if found and len(names) == 1 else ""


def encoding_problem(error: UnicodeError, options: TableOptions, *, is_known: bool) -> str:
    """What cannot be decoded, and the encoding that would; `is_known`: the settings are those of a run."""
    tried = "UTF-8" if options.encoding in ("auto", "utf-8", "utf-8-sig") else options.encoding
    if not isinstance(error, UnicodeDecodeError):
        return f"is not a text file in {tried}: {one_line(str(error))}"
    before, after = error.object[: error.start], error.object[error.start :]
    word = before.rpartition(b"\n")[2][-12:] + after.partition(b"\n")[0][:12]
    shown = word.decode("cp1252", "replace").strip()
    problem = f"byte {error.object[error.start]:#04x} ({error.reason})"
    how = 'set data.encoding = "cp1252"' if not is_known else "save it as UTF-8 (iconv -f cp1252 -t utf-8)"
    remedy = f"; {how} if {shown} is text with the letters of Windows or Latin-1"
    return f"is not a text file in {tried}: {problem}{remedy if shown.isprintable() else ''}"


def parser_problem(message: str, header_lines: int) -> str:
    """What is wrong with a table in which pandas found an error."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message):
        expected, line, cells = (int(number) for number in found.groups())
        return f", line {line + header_lines}: {cells} cells, the first row has {expected}"
    if found := re.search(r"EOF inside string starting at row (\d+)", message):
        return f", row {int(found[1]) + 1}: a quotation mark is not closed"
    if "out of memory" in message:
        return ": the table does not fit into the memory"
    return f" is not a text file of columns: {one_line(message)[:200]}"
