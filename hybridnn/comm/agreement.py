"""Errors that all ranks agree on: a user's mistake found by one rank is raised on every rank.

Otherwise the rank that finds it would leave and the others would wait for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.errors import HybridnnError

__all__ = ["agree", "broadcast_text", "same_on_all", "same_text_on_all"]

Result = TypeVar("Result")


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
