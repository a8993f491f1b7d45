"""Text helpers: counts, byte sizes, seconds, ranges of ranks, printable names and JSON."""

from __future__ import annotations

import json
import math
import os
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from html import escape
from pathlib import Path
from typing import Any

from hybridnn.errors import one_line

STEP = " by "

MILLISECONDS = 1e3  # in a second

NAMES_SHOWN = 12  # limit of names in a message
NAMES_COMPARED = 1000  # of how many names the most similar one is found

MAX_RANKS = 1 << 20  # ranks that `parse_ranks` accepts: its text may come from a damaged file


def plural(noun: str, number: int) -> str:
    """The noun in the singular for 1, else in the plural."""
    if number == 1:
        return noun
    return noun + ("es" if noun.endswith(("s", "ch")) else "s")


def counted(number: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {plural(noun, number)}"


def joined(texts: Sequence[str]) -> str:
    """Texts with commas, and ``and`` before the last."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def figure_text(value: float) -> str:
    """A loss or a metric, which is written alike wherever it is shown: ``0.8187``."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"


def format_bytes(nbytes: float, *, binary: bool = False, decimals: int | None = None) -> str:
    """Bytes in the largest unit in which the number is at least 1: ``8 B``, ``65.5 kB``, ``23 GB``.

    Units are powers of 1000, or, if `binary`, of 1024 (KiB, MiB). By default the number has three significant digits,
    else so many `decimals` in all units but bytes.
    """
    factor, prefixes = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if binary else (1000, ("", "k", "M", "G", "T"))
    power = 0
    while nbytes >= factor and power < len(prefixes) - 1:
        nbytes /= factor
        power += 1
    if decimals is None:
        number = f"{nbytes:.0f}" if nbytes >= 100 else f"{nbytes:.3g}"
    else:
        number = f"{nbytes:.{decimals if power else 0}f}"
    return f"{number} {prefixes[power]}B"


def format_seconds(seconds: float, micro: str = "us") -> str:
    """Three digits in the largest unit in which the number is at least 1: ``0.93 us``, ``12 ms``, ``3.2 s``.

    `micro` is the unit of microseconds.
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} {micro}"


def format_milliseconds(seconds: float) -> str:
    """Seconds as milliseconds without the unit, in four significant digits."""
    return f"{seconds * MILLISECONDS:.4g}"


def format_numbers(numbers: Iterable[int]) -> str:
    """Numbers in rising order, with a dash where at least three are consecutive: ``0-3, 8``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans)


def format_ranks(ranks: Iterable[int]) -> str:
    """As `format_numbers`, but four or more ranks at one distance above 1 are shortened: ``0-28 by 4``."""
    numbers = sorted(set(ranks))
    step = numbers[1] - numbers[0] if len(numbers) > 3 else 1
    if step > 1 and numbers == list(range(numbers[0], numbers[-1] + 1, step)):
        return f"{numbers[0]}-{numbers[-1]}{STEP}{step}"
    return format_numbers(numbers)


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks that `format_ranks` wrote; `ValueError` for other text, or for more than `MAX_RANKS` ranks."""
    found: list[int] = []
    for part in filter(None, text.split(", ")):
        span, _, step = part.partition(STEP)
        first, _, last = span.partition("-")
        ranks = range(int(first), int(last or first) + 1, int(step or 1))
        if not ranks or max(abs(ranks[0]), abs(ranks[-1])) > MAX_RANKS or len(found) > MAX_RANKS:
            raise ValueError(f"no ranks: {one_line(part)}")
        found += ranks
    return tuple(found)


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """``core 3``, ``cores 0-7``."""
    distinct = set(numbers)
    return f"{plural(noun, len(distinct))} {format_numbers(distinct)}"


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0-3``, ``ranks 0-28 by 4``."""
    distinct = set(ranks)
    return f"{plural('rank', len(distinct))} {format_ranks(distinct)}"


def printable(text: str, limit: int) -> str:
    """`text` if it is printable and has at most `limit` characters; else quoted, with escapes, and cut."""
    if text.isprintable() and len(text) <= limit:
        return text
    return f"{text[:limit]!r}{'…' * (len(text) > limit)}"


def user_path(path: Path | str) -> Path:
    """The path that a user gave, with the home folder in place of a leading ``~``."""
    return Path(os.path.expanduser(path))


def shown_path(path: Path | str) -> str:
    """The name of a file as text for one line of a message."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def command_argument(path: Path | str) -> str:
    """The name of a file as an argument of a command that a message prints."""
    return shlex.quote(shown_path(path))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write nested mappings, lists, tuples and scalars as JSON, with null for NaN and infinities."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for notebooks."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def column_list(names: Sequence[str]) -> str:
    """Names of columns for a message, at most `NAMES_SHOWN` of them; those with a comma in quotation marks."""
    quoted = (repr(name) if "," in name and name[0] not in "'\"" else name for name in names[:NAMES_SHOWN])
    shown = ", ".join(printable(name, 40) for name in quoted)
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def alike(name: str, names: Sequence[str]) -> str:
    """The end of a message that names a similar name, and letters that are hard to see if only these differ."""
    for other in names:
        if _visible(other) == _visible(name) and other != name:
            is_quoted = any(text.strip("'\"`") != text for text in (name, other))
            how = "its quotation marks" if is_quoted else "capitals or invisible letters"
            return f"; {repr(other) if other.isprintable() else ascii(other)} differs from it by {how}"
    near = get_close_matches(name, names[:NAMES_COMPARED], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _visible(name: str) -> str:
    letters = "".join(letter for letter in name if unicodedata.category(letter) not in ("Cf", "Zs"))
    return unicodedata.normalize("NFKC", letters).strip("'\"`").casefold()
