"""Sets of ranks as people write them: ``0-3, 8``, or ``0-28 by 4``.

JSON that every reader accepts: what is not finite becomes null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from hybridnn.errors import one_line

STEP = " by "

MOST_RANKS = 1 << 20
"""Of a job: a text may stand in a file that is damaged."""


def ranks_text(ranks: Iterable[int]) -> str:
    """Numbers in rising order, with a dash where at least three follow one another, or four at the same distance."""
    numbers = sorted(set(ranks))
    step = numbers[1] - numbers[0] if len(numbers) > 3 else 1
    if step > 1 and numbers == list(range(numbers[0], numbers[-1] + 1, step)):
        return f"{numbers[0]}-{numbers[-1]}{STEP}{step}"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans)


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks of a `ranks_text`.

    Raises
    ------
    ValueError
        If `text` is none, or has more ranks than any job.
    """
    found: list[int] = []
    for part in filter(None, text.split(", ")):
        span, _, step = part.partition(STEP)
        first, _, last = span.partition("-")
        ranks = range(int(first), int(last or first) + 1, int(step or 1))
        if not ranks or max(abs(ranks[0]), abs(ranks[-1])) > MOST_RANKS or len(found) > MOST_RANKS:
            raise ValueError(f"no ranks: {one_line(part)}")
        found += ranks
    return tuple(found)


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 2`` or ``ranks 0-3``."""
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) != 1)} {ranks_text(ranks)}"


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write nested mappings, lists, tuples and scalars as JSON, with null for NaN and infinities."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
