"""Comparison of values between ranks: which differ, and which ranks have which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybridnn.comm.agreement import gather_texts
from hybridnn.comm.group import Group
from hybridnn.errors import shorten
from hybridnn.utils.text import name_ranks

SHOWN_VALUES = 4  # different values of one name in a message
SHOWN_CHARACTERS = 120  # length of a value in a message


def same_text_on_all(group: Group, text: str) -> bool:
    """Whether every rank of `group` has the same `text`; the same result on every rank. Collective."""
    digest = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:7], "big")
    extremes = np.array([digest, -digest], np.int64)
    group.allreduce(extremes, "max")
    return bool(extremes[0] == -extremes[1])


class UnequalValue(NamedTuple):
    """A value that is not the same on all ranks."""

    name: str
    text: str  # the name, and the ranks that have each value, those of the fewest ranks first


def unequal_values(
    group: Group, values: Callable[[], Mapping[str, str]], details: Callable[[], Mapping[str, str]] = dict
) -> list[UnequalValue]:
    """Values that are not the same on every rank of `group`, the same list on every rank; collective.

    `values` returns this rank's values by name, and is not called in a group of one rank. `details` returns further
    ones, which are compared only if some of `values` differ, and listed first. Names that some ranks lack are left out
    if others differ. One small all-reduce if all are the same; the values are sent only if they are not.
    """
    if group.size == 1:
        return []
    own = dict(values())
    if same_text_on_all(group, json.dumps(own, sort_keys=True)):
        return []
    tables = [json.loads(text) for text in gather_texts(group, json.dumps({**details(), **own}))]
    names = dict.fromkeys(name for table in tables for name in table)
    shared = [name for name in names if all(name in table for table in tables)]
    return _compare(group, tables, shared) or _compare(group, tables, names)


def _compare(group: Group, tables: Sequence[Mapping[str, str]], names: Iterable[str]) -> list[UnequalValue]:
    found = []
    for name in names:
        ranks_with: dict[str, list[int]] = {}
        for rank, table in zip(group.members, tables, strict=True):
            ranks_with.setdefault(table.get(name, "none"), []).append(rank)
        if len(ranks_with) > 1:
            found.append(UnequalValue(name, f"{name}: {_list_values(ranks_with)}"))
    return found


def _list_values(ranks_with: Mapping[str, list[int]]) -> str:
    """``rank 2 has 0.1, ranks 0, 1 have 0.01``, from the ranks that have each value."""
    fewest_first = sorted(ranks_with.items(), key=lambda item: (len(item[1]), item[1]))
    left_out = len(fewest_first) - SHOWN_VALUES
    if left_out > 0:
        fewest_first[SHOWN_VALUES - 1 : -1] = []
    shown = [
        f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {shorten(value, SHOWN_CHARACTERS)}"
        for value, ranks in fewest_first
    ]
    return ", ".join(shown) + (f", and others have {left_out} more" if left_out > 0 else "")
