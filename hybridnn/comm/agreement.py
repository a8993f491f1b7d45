"""Errors that all ranks agree on: a user's mistake found by one rank is raised on every rank.

Otherwise the rank that finds it would leave and the others would wait for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.errors import HybridnnError
from hybridnn.utils.text import name_ranks

Result = TypeVar("Result")

SHOWN_VALUES = 4
"""Different values of one fact that a message shows."""

SHOWN_CHARACTERS = 120
"""Of each of them."""


def agree(group: Group, action: Callable[[], Result]) -> Result:
    """Run `action` on every rank of `group`; if it fails on any with a user's mistake, raise that on all.

    Collective over `group`; `action` itself must not communicate in a way that a failure would interrupt.

    Parameters
    ----------
    group : Group
        The ranks that must agree.
    action : callable
        What to do; ranks with nothing to do pass a function that does nothing.

    Returns
    -------
    object
        What `action` returned on this rank.

    Raises
    ------
    HybridnnError
        The failing rank's own error there; elsewhere one with its message, taken from the lowest failing rank.
    """
    mine: HybridnnError | None = None
    result: list[Result] = []
    try:
        result.append(action())
    except HybridnnError as error:
        mine = error
    # The highest number wins the maximum: the lowest failing rank, and 0 stands for none.
    failing = np.array([0 if mine is None else group.size - group.rank], np.int64)
    group.allreduce(failing, "max")
    if not failing[0]:
        return result[0]
    message = broadcast_text(group, "" if mine is None else str(mine), group.size - int(failing[0]))
    if mine is not None:
        raise mine
    raise HybridnnError(message)


def same_on_all(group: Group, numbers: NDArray[np.int64]) -> bool:
    """Whether every rank of `group` has the same `numbers`; collective, and the same answer on every rank."""
    extremes = np.concatenate([numbers, -numbers])
    group.allreduce(extremes, "max")
    return bool((extremes[: numbers.size] == -extremes[numbers.size :]).all())


def same_text_on_all(group: Group, text: str) -> bool:
    """Whether every rank of `group` has the same `text`; collective, and the same answer on every rank."""
    fingerprint = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:7], "big")
    return same_on_all(group, np.array([fingerprint], np.int64))


def broadcast_text(group: Group, text: str, root: int) -> str:
    """The `text` of the rank `root`, on every rank of `group`; collective. Texts of other ranks are not looked at."""
    # File names may hold bytes that are no UTF-8, which Python has as lone surrogates.
    encoded = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    length = np.array([encoded.size], np.int64)
    group.broadcast(length, root)
    data = encoded.copy() if group.rank == root else np.empty(int(length[0]), np.uint8)
    group.broadcast(data, root)
    return data.tobytes().decode(errors="surrogatepass")


def texts_of_all(group: Group, text: str) -> list[str]:
    """The `text` of every rank of `group`, in their order; collective."""
    encoded = np.frombuffer(text.encode(errors="replace"), np.uint8)
    lengths = np.zeros(group.size, np.int64)
    lengths[group.rank] = encoded.size
    group.allreduce(lengths)
    rows = np.zeros((group.size, max(int(lengths.max()), 1)), np.uint8)
    rows[group.rank, : encoded.size] = encoded
    group.allgather_rows(rows)
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]


class UnequalValue(NamedTuple):
    """A fact that is not the same on all ranks.

    Attributes
    ----------
    name : str
    text : str
        Its name, and which ranks have which values, those of the fewest ranks first.
    """

    name: str
    text: str


def unequal_values(
    group: Group, facts: Callable[[], Mapping[str, str]], details: Callable[[], Mapping[str, str]] = dict
) -> list[UnequalValue]:
    """Facts that are not the same on every rank of `group`; collective, and the same list on every rank.

    One small all-reduce where they are all the same; the values travel only where they are not.

    Parameters
    ----------
    group : Group
        Named in texts by their places in the grid.
    facts : callable
        Makes this rank's values by name; not called in a group of one rank.
    details : callable
        Makes more of them where some differ, to say where; they are listed first.

    Returns
    -------
    list of Unequal
        In the order of the facts. Those that some ranks lack are left out where others tell the ranks apart.
    """
    if group.size == 1:
        return []
    mine = dict(facts())
    if same_text_on_all(group, json.dumps(mine, sort_keys=True)):
        return []
    tables = [json.loads(text) for text in texts_of_all(group, json.dumps({**details(), **mine}))]
    names = dict.fromkeys(name for table in tables for name in table)
    shared = [name for name in names if all(name in table for table in tables)]
    return _unequal(group, tables, shared) or _unequal(group, tables, names)


def _unequal(group: Group, tables: Sequence[Mapping[str, str]], names: Iterable[str]) -> list[UnequalValue]:
    """Those of the named facts that the ranks of `group` have different values of."""
    found = []
    for name in names:
        ranks_with: dict[str, list[int]] = {}
        for rank, table in zip(group.members, tables, strict=True):
            ranks_with.setdefault(table.get(name, "none"), []).append(rank)
        if len(ranks_with) > 1:
            found.append(UnequalValue(name, f"{name}: {_who_has_what(ranks_with)}"))
    return found


def _who_has_what(ranks_with: Mapping[str, list[int]]) -> str:
    """``rank 2 has 0.1, ranks 0, 1 have 0.01``, from the ranks that have each value."""
    fewest_first = sorted(ranks_with.items(), key=lambda item: (len(item[1]), item[1]))
    left_out = len(fewest_first) - SHOWN_VALUES
    if left_out > 0:
        fewest_first[SHOWN_VALUES - 1 : -1] = []
    shown = [
        f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {_shortened(value)}"
        for value, ranks in fewest_first
    ]
    return ", ".join(shown) + (f", and others have {left_out} more" if left_out > 0 else "")


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
