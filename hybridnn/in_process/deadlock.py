"""Why no rank can go on, in words: the circle of ranks that wait for one another, and the line where each one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridnn.in_process.errors import DeadlockError
from hybridnn.pipeline.drawing.drawing import Drawing
from hybridnn.utils.text import name_ranks


@dataclass(frozen=True)
class BlockedRank:
    """A rank that cannot go on.

    Attributes
    ----------
    rank : int
    calls : tuple of (str, str)
        What it waits for, each with the line where it was begun.
    awaited : frozenset of int
        Ranks that have to call something first.
    """

    rank: int
    calls: tuple[tuple[str, str], ...]
    awaited: frozenset[int]


def deadlock(waiting: Mapping[int, BlockedRank], ended: frozenset[int], calls: int, drawing: Drawing) -> DeadlockError:
    """The verdict on ranks of which none can go on.

    Parameters
    ----------
    waiting : mapping
        By rank.
    ended : frozenset of int
        Ranks whose program has returned.
    calls : int
        Communication calls that were made.
    drawing : Drawing
        Of these.
    """
    circle = _circle(waiting)
    lines = [f"deadlock after {calls} {'call' if calls == 1 else 'calls'}: {_reason(waiting, ended, circle)}"]
    for rank, one in sorted(waiting.items()):
        lines += [f"  rank {rank} waits in {call}, at {site}" for call, site in one.calls]
    if circle:
        lines.append(f"the circle: {' -> '.join(f'rank {rank}' for rank in (*circle, circle[0]))}")
        lines += _advice([call for rank in circle for call, _ in waiting[rank].calls])
    return DeadlockError("\n".join(lines), drawing)


def _reason(waiting: Mapping[int, BlockedRank], ended: frozenset[int], circle: tuple[int, ...]) -> str:
    if len(circle) == 1:
        return f"rank {circle[0]} waits for itself"
    if circle:
        return f"{name_ranks(circle)} wait for one another"
    for one in waiting.values():
        gone = one.awaited & ended
        if gone:
            return f"rank {one.rank} waits for {name_ranks(gone)}, whose program has ended"
    return f"{name_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for what no rank does"


def _advice(calls: Sequence[str]) -> list[str]:
    if all(call.startswith("send") for call in calls):
        return [
            "every rank of it sends, and none has come to its receive; a send need not end before its receive "
            "begins, however small the message: let one side receive first, or use Isend or Sendrecv"
        ]
    if all(call.startswith("receive") for call in calls):
        return ["every rank of it receives, and none has come to its send: let one side send first, or use Sendrecv"]
    return []


def _circle(waiting: Mapping[int, BlockedRank]) -> tuple[int, ...]:
    """Ranks of which each waits for the next, and the last for the first, the fewest; empty where there are none."""
    circles = (_path_back(waiting, rank) for rank in sorted(waiting))
    return min((circle for circle in circles if circle), key=len, default=())


def _path_back(waiting: Mapping[int, BlockedRank], start: int) -> tuple[int, ...]:
    """The shortest way from a rank over those that are awaited back to it; empty where there is none."""
    paths: list[tuple[int, ...]] = [(start,)]
    seen: set[int] = set()
    for path in paths:
        for following in sorted(waiting[path[-1]].awaited & waiting.keys()):
            if following == start:
                return path
            if following not in seen:
                seen.add(following)
                paths.append((*path, following))
    return ()
