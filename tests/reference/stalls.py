"""States of the ranks of stalled jobs: chosen by a test, or computed by a model of blocking collectives."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hybridnn
from hybridnn.diagnostics.rank_state import CallState, GroupState, RankState, StackLine
from hybridnn.utils.text import format_ranks

SLOW_LINE = StackLine("/home/user/slow.py", 12, "on_step", "time.sleep(1000)")
ENGINE = str(Path(hybridnn.__file__).parent / "training" / "engine.py")
CALL_LINE = StackLine(ENGINE, 204, "_check", "group.allreduce(total)")


def collective(
    operation: str, axis: str, members: Sequence[int], number: int, nbytes: int = 800, dtype: str = "float64"
) -> CallState:
    """Return a collective without a root."""
    return CallState(operation, axis, format_ranks(members), 0, number, nbytes, dtype, None, "", "", 60.0)


def message(operation: str, peer: int, about: str = "") -> CallState:
    """Return a message to or from `peer`."""
    return CallState(operation, "world", "0-3", 0, 0, 4096, "float32", peer, "3", about, 60.0)


def progress(axis: str, members: Sequence[int], *calls: str, entered: int | None = None) -> GroupState:
    """Return a group in which this rank has made `entered` calls, the last of which are `calls`."""
    last = len(calls) if entered is None else entered
    recent = tuple(enumerate(calls, last - len(calls) + 1))
    return GroupState(axis, format_ranks(members), 0, last, recent)


def rank_state(rank: int, size: int, call: CallState | None, *groups: GroupState, **changes: Any) -> RankState:
    """Return the state of a rank; without a call it is at line 12 of slow.py."""
    call_site = SLOW_LINE if call is None else CALL_LINE
    values: dict[str, Any] = {
        "rank": rank,
        "size": size,
        "host": "n1",
        "process": 4000 + rank,
        "time": "2026-01-02T03:04:05+00:00",
        "heartbeat": 1,
        "idle_seconds": 60.0,
        "stalled": True,
        "call": call,
        "call_site": call_site,
        "user_line": SLOW_LINE if call is None else None,
        "stack": (SLOW_LINE, call_site),
        "groups": groups,
        "finished": ("forward 3",),
    }
    return RankState(**values | changes)


Step = tuple[str, str]
"""The axis of a collective, and its operation."""


@dataclass
class Job:
    """Ranks that execute lists of blocking collectives.

    A collective completes when all ranks of its group have entered it. A rank stops where its list contains an empty
    axis, and where ranks of a group enter different operations.
    """

    groups: Mapping[str, Sequence[Sequence[int]]]
    programs: Sequence[Sequence[Step]]
    positions: list[int] = field(default_factory=list)

    def run(self) -> dict[int, RankState]:
        """Return the states when no rank can continue, without those of ranks at the end of their list."""
        self.positions = [0] * len(self.programs)
        entered: list[defaultdict[tuple[str, tuple[int, ...]], list[str]]] = [defaultdict(list) for _ in self.programs]
        waiting: dict[int, tuple[str, tuple[int, ...]]] = {}
        progressed = True
        while progressed:
            progressed = False
            for rank, program in enumerate(self.programs):
                if rank in waiting or self.positions[rank] == len(program) or not program[self.positions[rank]][0]:
                    continue
                axis, operation = program[self.positions[rank]]
                group = axis, self.members(axis, rank)
                entered[rank][group].append(operation)
                waiting[rank] = group
                progressed = True
            for group in set(waiting.values()):
                members = group[1]
                calls = [entered[rank][group] for rank in members]
                if all(waiting.get(rank) == group for rank in members) and len({tuple(made) for made in calls}) == 1:
                    for rank in members:
                        del waiting[rank]
                        self.positions[rank] += 1
                    progressed = True
        return {
            rank: self._state(rank, waiting.get(rank), entered[rank])
            for rank, program in enumerate(self.programs)
            if self.positions[rank] < len(program)
        }

    def members(self, axis: str, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of `rank` along an axis."""
        return next(tuple(members) for members in self.groups[axis] if rank in members)

    def _state(
        self,
        rank: int,
        group: tuple[str, tuple[int, ...]] | None,
        entered: Mapping[tuple[str, tuple[int, ...]], Sequence[str]],
    ) -> RankState:
        groups = [progress(axis, members, *calls) for (axis, members), calls in entered.items()]
        call = None if group is None else collective(entered[group][-1], *group, len(entered[group]))
        return rank_state(rank, len(self.programs), call, *groups)
