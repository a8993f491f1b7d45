"""Agreement of ranks: an error found by one rank is raised on all, texts are sent to all, and values are compared.

Otherwise the rank that finds an error would leave, and the others would wait for it.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from hybridnn.comm.group import Group
from hybridnn.errors import HybridnnError, shorten
from hybridnn.utils.text import name_ranks

Result = TypeVar("Result")

SHOWN_HOSTS = 8  # host names in a message
SHOWN_VALUES = 4  # different values of one name in a message
SHOWN_CHARACTERS = 120  # length of a value in a message


def agree(
    group: Group,
    action: Callable[[], Result],
    *,
    names_nodes: bool = False,
    errors: type[Exception] | tuple[type[Exception], ...] = HybridnnError,
) -> Result:
    """Run `action` on every rank of `group`; if any rank raises one of the `errors`, raise on all. Collective.

    `action` must not communicate in a way that a failure would interrupt.

    A failing rank raises its own error, the others a `HybridnnError` with the message of the lowest failing rank; of
    an error of another library, the first line, which the number of that rank precedes. With `names_nodes`, messages
    begin with the nodes of the failing ranks, unless all nodes have one.
    """
    own_error: Exception | None = None
    result: list[Result] = []
    try:
        result.append(action())
    except errors as error:
        own_error = error
    failing = lowest_rank(group, own_error is not None)
    if failing is None:
        return result[0]
    where = _nodes_where(group, own_error is not None) if names_nodes else ""
    message = f"{where}{own_error}"
    if not isinstance(own_error, HybridnnError):
        message = f"rank {group.rank}: {message}".partition("\n")[0]
    message = broadcast_text(group, message, failing)
    if own_error is not None:
        if where:
            own_error.args = (f"{where}{own_error}",)
        raise own_error
    raise HybridnnError(message)


def value_of_first(group: Group, action: Callable[[], Result]) -> Result:
    """The value, one of JSON, that `action` returns on rank 0, on every rank; an error is raised on all. Collective."""
    text = agree(group, lambda: json.dumps(action()) if group.rank == 0 else "")
    value: Result = json.loads(broadcast_text(group, text, 0))
    return value


def hosts_where(group: Group, holds: bool) -> list[str]:
    """Host names of the ranks of `group` where `holds`, each once, on every rank. Collective."""
    return list(dict.fromkeys(filter(None, gather_texts(group, socket.gethostname() if holds else ""))))


def _nodes_where(group: Group, holds: bool) -> str:
    """``on node2: ``, of the nodes of the ranks where `holds`; empty if these are all nodes. Collective."""
    hosts, others = hosts_where(group, holds), hosts_where(group, not holds)
    return "" if set(others) <= set(hosts) else f"on {name_hosts(hosts)}: "


def name_hosts(hosts: Sequence[str]) -> str:
    """``node1, node2``; of many, only the first ones and their number."""
    left_out = len(hosts) - SHOWN_HOSTS
    return ", ".join(hosts[:SHOWN_HOSTS]) + (f" and {left_out} more" if left_out > 0 else "")


def lowest_rank(group: Group, holds: bool) -> int | None:
    """The lowest rank of `group` where `holds`, on every rank; None if it holds on none. Collective."""
    positions = np.array([group.size - group.rank if holds else 0], np.int64)
    group.allreduce(positions, "max")
    return group.size - int(positions[0]) if positions[0] else None


def broadcast_text(group: Group, text: str, root: int) -> str:
    """The `text` of the rank `root`, on every rank of `group`. Collective; the text of other ranks is ignored."""
    # File names may hold bytes that are not UTF-8, which Python represents by lone surrogates.
    encoded = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    length = np.array([encoded.size], np.int64)
    group.broadcast(length, root)
    data = encoded.copy() if group.rank == root else np.empty(int(length[0]), np.uint8)
    group.broadcast(data, root)
    return data.tobytes().decode(errors="surrogatepass")


def gather_texts(group: Group, text: str) -> list[str]:
    """The `text` of every rank of `group`, in the order of the group. Collective."""
    encoded = np.frombuffer(text.encode(errors="replace"), np.uint8)
    lengths = np.zeros(group.size, np.int64)
    lengths[group.rank] = encoded.size
    group.allreduce(lengths)
    rows = np.zeros((group.size, max(int(lengths.max()), 1)), np.uint8)
    rows[group.rank, : encoded.size] = encoded
    group.allgather_rows(rows)
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]


# -- comparison of values ----------------------------------------------------------------------------------------------


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
