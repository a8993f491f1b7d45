"""What a rank notes about a communication call before it begins, at the price of one tuple."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Call", "CallRecord", "Channel"]

REMEMBERED = 16
"""Collectives of a group that are remembered: ranks that went on after a disagreement are rarely further apart."""


class Channel:
    """How far this rank has come in the collectives of one group.

    Parameters
    ----------
    axis : str
        Name of the group's axis.
    members : tuple of int
        Ranks of the grid, in the order of the group.
    ordinal : int
        How many groups with this axis and these members there were before; the same on every member.

    Attributes
    ----------
    entered : int
        Collectives begun so far.
    recent : deque of CallRecord
        The last of them.
    """

    __slots__ = ("axis", "entered", "members", "ordinal", "recent")

    def __init__(self, axis: str, members: tuple[int, ...], ordinal: int = 0) -> None:
        self.axis, self.members, self.ordinal = axis, members, ordinal
        self.entered = 0
        self.recent: deque[CallRecord] = deque(maxlen=REMEMBERED)


CallRecord = tuple[str, Channel, int, int, "np.dtype[Any] | None", int, "str | int | None", float, object]
"""The fields of a `Call`; a plain tuple, because it is made before every call and hardly ever read."""


class Call(NamedTuple):
    """A communication call: ``Call._make`` of its record.

    Attributes
    ----------
    name : str
        Operation, as for `bytes_sent_by_rank`, or ``"barrier"``.
    channel : Channel
        Of the group it is made in.
    number : int
        Which collective of its group it is, from 1; 0 for a message.
    nbytes : int
        Bytes of the full vector, as for `bytes_sent_by_rank`.
    dtype : dtype or None
        None where there is no array.
    peer : int
        Root of a collective, or the other rank of a message, by its number in the group; -1 for none.
    detail : str, int or None
        How an all-reduce combines, or the tag of a message.
    start : float
        Seconds of ``time.perf_counter``.
    about : object
        What it is done for; None where nobody said.
    """

    name: str
    channel: Channel
    number: int
    nbytes: int
    dtype: np.dtype[Any] | None
    peer: int
    detail: str | int | None
    start: float
    about: object

    @property
    def what(self) -> str:
        """What a collective must have in common on all ranks, in words."""
        reduction = "" if self.detail is None else f" ({self.detail})"
        array = "" if self.dtype is None else f" of {self.nbytes:,} bytes {self.dtype}"
        root = "" if self.peer < 0 else f" with root {self.channel.members[self.peer]}"
        return f"{self.name}{reduction}{array}{root}"
