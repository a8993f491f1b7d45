"""Communication errors of ranks in one process; of a deadlock with the cycle of ranks that wait for one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridnn.drawing import DrawnObject
from hybridnn.errors import HybridnnError
from hybridnn.utils.text import counted, name_ranks

if TYPE_CHECKING:
    from hybridnn.drawing.drawing import Drawing


class CommunicationError(HybridnnError):
    """Calls of ranks do not match, or the program accessed a buffer that a call owned."""

    exit_code = 1


class StuckError(CommunicationError):
    """A rank computed for longer than the limit without a communication call."""


class DeadlockError(DrawnObject, CommunicationError):
    """No rank can continue.

    Its picture has a row for each rank and an arrow for each message, up to the deadlock.
    """

    def __init__(self, text: str, drawing: Drawing) -> None:
        super().__init__(text)
        self._drawing = drawing

    @property
    def drawing(self) -> Drawing:
        """The calls up to the deadlock."""
        return self._drawing


@dataclass(frozen=True)
class BlockedRank:
    """A rank that cannot continue."""

    calls: tuple[tuple[str, str], ...]  # calls that it waits for, each with the line where it was begun
    awaited: frozenset[int]  # ranks that have to make a call first
    begun: tuple[tuple[str, str], ...] = ()  # further calls that no call of another rank matches, with their lines


def describe_deadlock(blocked: Mapping[int, BlockedRank], ended: frozenset[int], calls: int) -> str:
    """Describe a state in which no rank can continue, after so many calls; the programs of `ended` have returned."""
    cycles = (_path_back(blocked, rank) for rank in sorted(blocked))
    cycle = min(filter(None, cycles), key=len, default=())  # the shortest
    lines = [f"deadlock after {counted(calls, 'call')}: {_reason(blocked, ended, cycle)}"]
    for rank in sorted(blocked):
        lines += [f"  rank {rank} waits in {call}, at {site}" for call, site in blocked[rank].calls]
        lines += [f"  rank {rank} has begun {call}, at {site}" for call, site in blocked[rank].begun]
    if cycle:
        lines.append(f"the cycle: {' -> '.join(f'rank {rank}' for rank in (*cycle, cycle[0]))}")
        lines += _advice([blocked[rank] for rank in cycle])
    return "\n".join(lines)


def _reason(blocked: Mapping[int, BlockedRank], ended: frozenset[int], cycle: tuple[int, ...]) -> str:
    if len(cycle) == 1:
        return f"rank {cycle[0]} waits for itself"
    if cycle:
        return f"{name_ranks(cycle)} wait for one another"
    for rank, state in blocked.items():
        gone = state.awaited & ended
        if gone:
            return f"rank {rank} waits for {name_ranks(gone)}, whose program has ended"
    return f"{name_ranks(blocked)} {'waits' if len(blocked) == 1 else 'wait'} for what no rank does"


def _advice(states: Sequence[BlockedRank]) -> list[str]:
    calls = [call for state in states for call, _ in state.calls]
    if any(state.begun for state in states):
        return ["the calls that were begun match none of those that are waited for: compare their ranks and tags"]
    if all(call.startswith("send") for call in calls):
        return [
            "every rank of the cycle sends, and none of the receives that they wait for has begun; a send need not "
            "end before its receive begins, however small the message: let one side receive first, or send without "
            "blocking"
        ]
    if all(call.startswith("receive") for call in calls):
        return [
            "every rank of the cycle receives, and none of the sends that they wait for has begun: let one side "
            "send first, or receive without blocking"
        ]
    return []


def _path_back(blocked: Mapping[int, BlockedRank], start: int) -> tuple[int, ...]:
    """The shortest path from a rank over awaited ranks back to it; empty where there is none."""
    paths: list[tuple[int, ...]] = [(start,)]
    seen: set[int] = set()
    for path in paths:
        for following in sorted(blocked[path[-1]].awaited & blocked.keys()):
            if following == start:
                return path
            if following not in seen:
                seen.add(following)
                paths.append((*path, following))
    return ()
