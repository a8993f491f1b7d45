"""Records of the calls of ranks."""

from __future__ import annotations

from typing import NamedTuple

from hybridnn.in_process.source_lines import Line, Site

Moment = tuple[int, float]  # fields of an `Instant`

Record = tuple[int, str, int, int, Moment, Moment, Moment, Line, int, bool]
"""Fields of a `Message`: a plain tuple, which is faster to make, as most calls are never looked at."""


class Instant(NamedTuple):
    """Time of an event: communication calls of all ranks before it, and seconds on the virtual clock of the rank."""

    call: int
    seconds: float


class Message(NamedTuple):
    """A message or collective of a rank.

    Attributes
    ----------
    rank : int
    name : str
        The operation.
    peer : int
        The other rank of a message, the root of a collective, or -1.
    nbytes : int
    begun, waited, ended : Instant
        The call, the beginning of the wait for it, and the end of that wait.
    site : Site
        Line of the call.
    number : int
        The same for a send and its receive; -1 for collectives.
    arrived : bool
        False where no rank could continue before it ended.
    """

    rank: int
    name: str
    peer: int
    nbytes: int
    begun: Instant
    waited: Instant
    ended: Instant
    site: Site
    number: int = -1
    arrived: bool = True


def message_of(record: Record) -> Message:
    """The message or collective of a record."""
    rank, name, peer, nbytes, begun, waited, ended, line, number, arrived = record
    instants = Instant(*begun), Instant(*waited), Instant(*ended)
    return Message(rank, name, peer, nbytes, *instants, Site(*line), number, arrived)
