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

from hybridnn.diagnostics.stalls.state import GroupKey, RankState
from hybridnn.utils.text import name_ranks, parse_ranks

Kind = Literal["disagreement", "left", "gone", "silent", "unseen", "outside", "circle", "complete"]
States = Mapping[int, RankState]
Waits = Mapping[int, frozenset[int]]

SILENCE = "gave no sign: stopped, dead, swapped out, or not in training any more"
GONE = "gone: killed, or ended without a word"
UNSEEN = "on other nodes, which share no folder with this one: this account covers this node alone"
MOST_NAMED = 3
"""Processes that are listed where many ranks are at the same place."""


@dataclass(frozen=True)
class StallFinding:
    """One thing that is wrong, and the ranks it is wrong with.

    Attributes
    ----------
    kind : {"disagreement", "left", "gone", "silent", "unseen", "outside", "circle", "complete"}
        Other calls under the same number; an ended script; an ended process; no sign; on another node; not in a
        communication call; waiting for one another; all arrived, and yet MPI does not go on.
    ranks : tuple of int
        The ranks that did not arrive, or did something else.
    text : str
        The whole finding in words.
    """

    kind: Kind
    ranks: tuple[int, ...]
    text: str


def diagnose(
    states: States, size: int, processes: Sequence[str] = (), gone: Sequence[int] = (), unseen: Sequence[int] = ()
) -> tuple[StallFinding, ...]:
    """What keeps the job from going on.

    Parameters
    ----------
    states : mapping
        By rank; ranks that gave no sign are left out.
    size : int
        Ranks of the job.
    processes : sequence of str
        Host and process of every rank, where known.
    gone : sequence of int
        Ranks without a state whose processes no longer exist.
    unseen : sequence of int
        Ranks whose states cannot be seen from here.

    Returns
    -------
    tuple of Finding
        At least one; what explains most comes first.
    """
    waits = _waits(states)
    missing = [rank for rank in range(size) if rank not in states]
    dead = [rank for rank in missing if rank in gone]
    silent = [rank for rank in missing if rank not in gone and rank not in unseen]
    findings = [
        *_disagreements(states),
        *_left(waits, states, processes),
        *_without_state("gone", dead, GONE, waits, states, processes),
        *_without_state("silent", silent, SILENCE, waits, states, processes),
        *_outside(waits, states),
        *_without_state("unseen", sorted(set(unseen) & set(missing)), UNSEEN, waits, states, processes),
    ]
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
        return frozenset(rank for rank in parse_ranks(members) if entered[key].get(rank, 0) < number)

    def waited_for(state: RankState) -> frozenset[int]:
        call = state.waits_for
        if call is None:
            return frozenset(parse_ranks(state.lost))
        if call.is_message:
            return frozenset(() if call.peer is None else (call.peer,))
        return not_arrived(call.group, call.number)

    return {rank: waited_for(state) for rank, state in states.items() if not state.left}


def _waiters(ranks: Iterable[int], waits: Waits, states: States) -> str:
    """Who waits for any of `ranks`, and in which call; empty where nobody does."""
    wanted = frozenset(ranks)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for rank, others in waits.items():
        state = states[rank]
        if state.waits and others & wanted:
            place = f"MPI, at {state.mpi_call}" if state.waits_for is None else state.waits_for.place
            lines = f" at {state.caller}" * (state.caller is not None)
            places[place + lines].append(rank)
    parts = [f"{name_ranks(there)} wait{'s' * (len(there) == 1)} in {place}" for place, there in places.items()]
    return "".join(f"; {part}" for part in parts)


# -- what is wrong ---------------------------------------------------------------------------------------------------


def _disagreements(states: States) -> Iterator[StallFinding]:
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
            yield disagreement(axis, parse_ranks(members), number, by_number[number])


def disagreement(axis: str, members: Sequence[int], number: int, made: Mapping[int, str]) -> StallFinding:
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
    return StallFinding("disagreement", tuple(odd), f"{where} is not the same call on all ranks: {calls}")


def _named(ranks: Sequence[int], processes: Sequence[str]) -> str:
    known = "; ".join(processes[rank] for rank in ranks[:MOST_NAMED] if rank < len(processes))
    return f"{name_ranks(ranks)}{f' ({known})' * bool(known)}"


def _left(waits: Waits, states: States, processes: Sequence[str]) -> Iterator[StallFinding]:
    """Ranks that left, and that others wait for."""
    awaited = {rank for others in waits.values() for rank in others}
    awaited |= {rank for state in states.values() for rank in parse_ranks(state.lost)}
    ways: defaultdict[str, list[int]] = defaultdict(list)
    for rank, state in states.items():
        if state.left and rank in awaited:
            ways[state.left].append(rank)
    for way, ranks in ways.items():
        text = f"{_named(ranks, processes)} left the job: {way}"
        yield StallFinding("left", tuple(ranks), text + _waiters(ranks, waits, states))


def _without_state(
    kind: Kind, ranks: Sequence[int], text: str, waits: Waits, states: States, processes: Sequence[str]
) -> Iterator[StallFinding]:
    if ranks:
        verb = "" if kind == "silent" else " is" if len(ranks) == 1 else " are"
        text = f"{_named(ranks, processes)}{verb} {text}"
        yield StallFinding(kind, tuple(ranks), text + _waiters(ranks, waits, states))


def _outside(waits: Waits, states: States) -> Iterator[StallFinding]:
    """Ranks that are in no communication call, those that most ranks wait for first."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for rank, state in states.items():
        if state.waits_for is None and not state.left and not (state.lost and state.mpi_call):
            doing = f"in {state.doing}" if state.mpi_call else state.busy or "outside of communication"
            places[f"{doing}{f', at {state.place}' * bool(state.place)}"].append(rank)
    awaited = Counter(rank for others in waits.values() for rank in others)
    for place, there in sorted(places.items(), key=lambda item: -max(awaited[rank] for rank in item[1])):
        waiters = _waiters(there, waits, states)
        verdict = "did not arrive" if waiters else "did not go on"
        processes = "; ".join(
            f"host {states[rank].host}, process {states[rank].process}" for rank in there[:MOST_NAMED]
        )
        yield StallFinding("outside", tuple(there), f"{name_ranks(there)} ({processes}) {verdict}: {place}{waiters}")


def _circles(waits: Waits, states: States) -> Iterator[StallFinding]:
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


def _circle(circle: Sequence[int], waits: Waits, states: States) -> StallFinding:
    parts = "; ".join(f"rank {rank} in {states[rank].waits_for}" for rank in circle)
    awaited = {rank: sum(rank in others for others in waits.values()) for rank in circle}
    most = [rank for rank in circle if awaited[rank] == max(awaited.values())]
    named = f"; most wait for rank {most[0]}" if len(most) == 1 else ""
    return StallFinding("circle", tuple(sorted(circle)), f"{name_ranks(circle)} wait for one another: {parts}{named}")


def _complete(waits: Waits, states: States) -> Iterator[StallFinding]:
    """Calls that every rank has entered, and that do not end."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for rank, others in waits.items():
        call = states[rank].waits_for
        if call is not None and not others:
            places[call.place].append(rank)
    for place, there in places.items():
        text = f"all ranks entered {place}, which does not end: the network or the MPI library does not go on"
        yield StallFinding("complete", tuple(there), text)
