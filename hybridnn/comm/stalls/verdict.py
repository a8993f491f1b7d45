"""Who did not arrive: a conclusion from what the ranks say of themselves, without MPI and without a clock.

A rank in a collective waits for every member that has not entered it, and a rank in a message for the other rank.
Following these from rank to rank ends at the ranks that hold up the job, or goes round in a circle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hybridnn.comm.stalls.ranks_text import name_ranks, ranks_in
from hybridnn.comm.stalls.state import CallState, GroupKey, RankState

__all__ = ["Finding", "disagreement", "judge"]

Kind = Literal["disagreement", "silent", "outside", "circle", "complete"]
States = Mapping[int, RankState]
Waits = Mapping[int, frozenset[int]]

SILENCE = "stopped, dead, swapped out, or not in training any more"
MOST_NAMED = 3
"""Processes that are listed where many ranks are at the same place."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and the ranks it is wrong with.

    Attributes
    ----------
    kind : {"disagreement", "silent", "outside", "circle", "complete"}
        Other calls under the same number; no sign; not in a communication call; waiting for one another; all arrived,
        and yet MPI does not go on.
    ranks : tuple of int
        The ranks that did not arrive, or did something else.
    text : str
        The whole finding in words.
    """

    kind: Kind
    ranks: tuple[int, ...]
    text: str


def judge(states: States, size: int, processes: Sequence[str] = ()) -> tuple[Finding, ...]:
    """What keeps the job from going on.

    Parameters
    ----------
    states : mapping
        By rank; ranks that gave no sign are left out.
    size : int
        Ranks of the job.
    processes : sequence of str
        Host and process of every rank, where known.

    Returns
    -------
    tuple of Finding
        At least one; what explains most comes first.
    """
    waits = _waits(states)
    silent = [rank for rank in range(size) if rank not in states]
    findings = [*_disagreements(states), *_silent(silent, waits, states, processes), *_outside(waits, states)]
    if not any(finding.kind == "disagreement" for finding in findings):
        findings += [*_circles(waits, states), *_complete(waits, states)]
    return tuple(findings)


# -- who waits for whom ----------------------------------------------------------------------------------------------


def _waits(states: States) -> dict[int, frozenset[int]]:
    """By rank, the ranks without which it cannot go on."""
    entered: defaultdict[GroupKey, dict[int, int]] = defaultdict(dict)
    for rank, state in states.items():
        for group in state.groups:
            entered[group.key][rank] = group.entered

    @cache
    def not_arrived(key: GroupKey, number: int) -> frozenset[int]:
        _, members, _ = key
        return frozenset(rank for rank in ranks_in(members) if entered[key].get(rank, 0) < number)

    def waited_for(call: CallState | None) -> frozenset[int]:
        if call is None:
            return frozenset()
        if call.is_message:
            return frozenset(() if call.peer is None else (call.peer,))
        return not_arrived(call.group, call.number)

    return {rank: waited_for(state.waits_for) for rank, state in states.items()}


def _waiters(ranks: Iterable[int], waits: Waits, states: States) -> str:
    """Who waits for any of `ranks`, and in which call; empty where nobody does."""
    wanted = frozenset(ranks)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for rank, others in waits.items():
        call = states[rank].waits_for
        if call is not None and others & wanted:
            places[call.place].append(rank)
    parts = [f"{name_ranks(there)} wait{'s' * (len(there) == 1)} in {place}" for place, there in places.items()]
    return "".join(f"; {part}" for part in parts)


# -- what is wrong ---------------------------------------------------------------------------------------------------


def _disagreements(states: States) -> Iterator[Finding]:
    """In each group the first number under which its members made different calls."""
    calls: defaultdict[GroupKey, defaultdict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for rank, state in states.items():
        for group in state.groups:
            for number, what in group.recent:
                calls[group.key][number][rank] = what
    for (axis, members, _), by_number in sorted(calls.items()):
        different = [number for number, made in by_number.items() if len(set(made.values())) > 1]
        if different:
            number = min(different)
            yield disagreement(axis, ranks_in(members), number, by_number[number])


def disagreement(axis: str, members: Sequence[int], number: int, made: Mapping[int, str]) -> Finding:
    """Members of a group made different calls under the same number.

    Parameters
    ----------
    axis : str
    members : sequence of int
    number : int
        Of the collective in the group.
    made : mapping
        What each rank called.
    """
    where = f"collective {number} of group {axis} ({name_ranks(members)})"
    common = Counter(made.values()).most_common()
    # Where no call is that of more ranks than any other, nobody knows which is the right one: all are named.
    usual = common[0][0] if common[0][1] > common[1][1] else None
    odd = sorted(rank for rank, what in made.items() if what != usual)
    calls = "; ".join(
        f"{name_ranks(rank for rank, other in made.items() if other == what)} called {what}"
        for what, _ in sorted(common, key=lambda item: item[1])
    )
    return Finding("disagreement", tuple(odd), f"{where} is not the same call on all ranks: {calls}")


def _silent(ranks: Sequence[int], waits: Waits, states: States, processes: Sequence[str]) -> Iterator[Finding]:
    if ranks:
        known = "; ".join(processes[rank] for rank in ranks[:MOST_NAMED] if rank < len(processes))
        text = f"{name_ranks(ranks)}{f' ({known})' * bool(known)} gave no sign: {SILENCE}"
        yield Finding("silent", tuple(ranks), text + _waiters(ranks, waits, states))


def _outside(waits: Waits, states: States) -> Iterator[Finding]:
    """Ranks that are in no communication call, those that most ranks wait for first."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for rank, state in states.items():
        if state.waits_for is None:
            places[
                f"{state.busy or 'outside of communication'}{f', at {state.site}' * (state.site is not None)}"
            ].append(rank)
    awaited = Counter(rank for others in waits.values() for rank in others)
    for place, there in sorted(places.items(), key=lambda item: -max(awaited[rank] for rank in item[1])):
        waiters = _waiters(there, waits, states)
        verdict = "did not arrive" if waiters else "did not go on"
        processes = "; ".join(
            f"host {states[rank].host}, process {states[rank].process}" for rank in there[:MOST_NAMED]
        )
        yield Finding("outside", tuple(there), f"{name_ranks(there)} ({processes}) {verdict}: {place}{waiters}")


def _circles(waits: Waits, states: States) -> Iterator[Finding]:
    """Ranks that wait for one another, where none of them waits for a rank that holds up the job by itself."""
    left = dict(waits)
    while open_ends := [rank for rank, others in left.items() if not others or any(r not in left for r in others)]:
        for rank in open_ends:
            del left[rank]
    while left:
        path = [min(left)]
        while (following := min(left[path[-1]])) not in path:
            path.append(following)
        circle = path[path.index(following) :]
        yield _circle(circle, waits, states)
        while explained := [rank for rank, others in left.items() if rank in circle or not others <= left.keys()]:
            for rank in explained:
                del left[rank]


def _circle(circle: Sequence[int], waits: Waits, states: States) -> Finding:
    parts = "; ".join(f"rank {rank} in {states[rank].waits_for}" for rank in circle)
    awaited = {rank: sum(rank in others for others in waits.values()) for rank in circle}
    most = [rank for rank in circle if awaited[rank] == max(awaited.values())]
    named = f"; most wait for rank {most[0]}" if len(most) == 1 else ""
    return Finding("circle", tuple(sorted(circle)), f"{name_ranks(circle)} wait for one another: {parts}{named}")


def _complete(waits: Waits, states: States) -> Iterator[Finding]:
    """Calls that every rank has entered, and that do not end."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for rank, others in waits.items():
        call = states[rank].waits_for
        if call is not None and not others:
            places[call.place].append(rank)
    for place, there in places.items():
        text = f"all ranks entered {place}, which does not end: the network or the MPI library does not go on"
        yield Finding("complete", tuple(there), text)
