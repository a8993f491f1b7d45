"""Diagnosis of a stall from the states of all ranks, and its report.

A rank in a collective waits for every member that has not entered it, and a rank in a message for the other rank.
Followed from rank to rank, this ends at the ranks that hold up the job, or in a circle: a deadlock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from hybridnn.diagnostics.rank_state import GroupKey, JobState, RankState
from hybridnn.utils.text import format_ranks, name_ranks, parse_ranks

Kind = Literal["mismatch", "left", "dead", "unresponsive", "unreachable", "network", "outside", "deadlock", "hang"]

UNRESPONSIVE = "gave no sign: stopped, dead, swapped out, or not in training any more"
DEAD = "gone: killed, or ended without a word"
UNREACHABLE = "on other nodes, which share no folder with this one: this report covers this node alone"
MOST_PROCESSES = 3  # processes that are listed of many ranks at the same line

HEADINGS = ("ranks", "waits for", "since", "finished last", "at")
MISSING = "-"
LONGER_WORK = (
    'Where work of one rank is meant to take longer: announce it in a script, `with trainer.busy("plotting"): ...`,',
    "or set stall_seconds (output.stall_seconds in a settings file) higher, or to 0 for no watchdog.",
)


@dataclass(frozen=True)
class StallFinding:
    """A cause of a stall, and its ranks."""

    # different collectives under one number; a rank that left; an ended process; no answer; on another node; hosts that
    # do not reach each other, or slowly; not in a communication call; ranks that wait for one another; all ranks are in
    # a call that does not end
    kind: Kind
    ranks: tuple[int, ...]  # the ranks that did not arrive, or called something else
    text: str  # the finding as a sentence


@dataclass(frozen=True)
class StallRecord:
    """States of a stalled job."""

    states: Mapping[int, RankState]  # by rank; without ranks that did not answer
    job: JobState | None  # None where no rank has ended the job

    @property
    def size(self) -> int:
        """Number of ranks of the job."""
        return self.job.size if self.job is not None else max(state.size for state in self.states.values())

    @property
    def findings(self) -> tuple[StallFinding, ...]:
        """Causes of the stall."""
        if self.job is None:
            return diagnose(self.states, self.size)
        dead, unreachable = parse_ranks(self.job.dead), parse_ranks(self.job.unreachable)
        return diagnose(self.states, self.size, self.job.processes, dead, unreachable)


def diagnose(
    states: Mapping[int, RankState],
    size: int,
    processes: Sequence[str] = (),
    dead: Sequence[int] = (),
    unreachable: Sequence[int] = (),
) -> tuple[StallFinding, ...]:
    """Causes of a stall, at least one; the most likely first.

    The states are those of the ranks that answered, `processes` the host and process of every rank, if known. Of ranks
    without a state, `dead` lists those whose processes no longer exist, and `unreachable` those on other nodes.
    """
    diagnosis = _Diagnosis(states, processes)
    missing = [rank for rank in range(size) if rank not in states]
    unresponsive = [rank for rank in missing if rank not in dead and rank not in unreachable]
    mismatches = list(_mismatches(states))
    findings = [
        *mismatches,
        *diagnosis.left(),
        *diagnosis.without_state("dead", [rank for rank in missing if rank in dead]),
        *diagnosis.without_state("unresponsive", unresponsive),
        *diagnosis.network(),
        *diagnosis.outside(),
        *diagnosis.without_state("unreachable", [rank for rank in missing if rank in unreachable]),
    ]
    if not mismatches:
        findings += diagnosis.deadlocks()
        if not findings:  # data also waits for a rank that does not receive
            findings += diagnosis.slow_network()
        findings += diagnosis.hangs()
    return tuple(findings)


def _mismatches(states: Mapping[int, RankState]) -> Iterator[StallFinding]:
    """In each group the first number under which its members made different calls."""
    calls: defaultdict[GroupKey, defaultdict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for rank, state in states.items():
        for group in state.groups:
            for number, signature in group.recent:
                calls[group.key][number][rank] = signature
    for (axis, members, _), by_number in sorted(calls.items()):
        different = [number for number, signatures in by_number.items() if len(set(signatures.values())) > 1]
        if not different:
            continue
        signatures = by_number[number := min(different)]
        common = Counter(signatures.values()).most_common()
        # Without a majority it is unknown which call is right, so all ranks are named.
        usual = common[0][0] if common[0][1] > common[1][1] else None
        odd = sorted(rank for rank, signature in signatures.items() if signature != usual)
        called = "; ".join(
            f"{name_ranks(rank for rank, other in signatures.items() if other == signature)} called {signature}"
            for signature, _ in sorted(common, key=lambda item: item[1])
        )
        where = f"collective {number} of group {axis} ({name_ranks(parse_ranks(members))})"
        yield StallFinding("mismatch", tuple(odd), f"{where} is not the same call on all ranks: {called}")


class _Diagnosis:
    """The graph of waiting ranks, and the findings that follow from it."""

    def __init__(self, states: Mapping[int, RankState], processes: Sequence[str]) -> None:
        self._states, self._processes = states, processes

    @cached_property
    def _waits(self) -> dict[int, frozenset[int]]:
        """By rank, the ranks that it waits for."""
        entered: defaultdict[GroupKey, dict[int, int]] = defaultdict(dict)
        for rank, state in self._states.items():
            for group in state.groups:
                entered[group.key][rank] = group.entered

        @cache
        def not_arrived(key: GroupKey, number: int) -> frozenset[int]:
            _, members, _ = key
            return frozenset(rank for rank in parse_ranks(members) if entered[key].get(rank, 0) < number)

        def waited_for(state: RankState) -> frozenset[int]:
            call = state.call
            if call is None:
                return frozenset(parse_ranks(state.departed))
            if call.is_message:
                return frozenset(() if call.peer is None else (call.peer,))
            return not_arrived(call.group, call.number)

        return {rank: waited_for(state) for rank, state in self._states.items() if not state.departure}

    @cached_property
    def _waiters(self) -> Counter[int]:
        """By rank, the number of ranks that wait for it."""
        return Counter(rank for waited_for in self._waits.values() for rank in waited_for)

    def left(self) -> Iterator[StallFinding]:
        """Ranks that left, and that others wait for."""
        awaited = set(self._waiters)
        awaited |= {rank for state in self._states.values() for rank in parse_ranks(state.departed)}
        by_departure: defaultdict[str, list[int]] = defaultdict(list)
        for rank, state in self._states.items():
            if state.departure and rank in awaited:
                by_departure[state.departure].append(rank)
        for departure, ranks in by_departure.items():
            yield self._finding("left", ranks, f"{self._named(ranks)} left the job: {departure}")

    def without_state(self, kind: Kind, ranks: Sequence[int]) -> list[StallFinding]:
        """The finding for ranks without a state, if there are any."""
        if not ranks:
            return []
        verb = "is" if len(ranks) == 1 else "are"
        texts = {"dead": f"{verb} {DEAD}", "unresponsive": UNRESPONSIVE, "unreachable": f"{verb} {UNREACHABLE}"}
        return [self._finding(kind, ranks, f"{self._named(ranks)} {texts[kind]}")]

    def network(self) -> Iterator[StallFinding]:
        """Hosts that do not acknowledge what ranks send to them."""
        silent = {rank: state.silent_addresses for rank, state in self._states.items()}
        verbs = "cannot be reached", "do not reach each other", "sent data again and again"
        return self._hosts_apart(silent, *verbs, "nothing is acknowledged")

    def slow_network(self) -> Iterator[StallFinding]:
        """Hosts that have not yet acknowledged all that ranks sent to them."""
        waiting = {rank: state.waiting_addresses for rank, state in self._states.items()}
        verbs = "is reached slowly", "reach each other slowly", "sent more than was acknowledged"
        return self._hosts_apart(waiting, *verbs, "data is on its way")

    def _hosts_apart(
        self, addresses: Mapping[int, Sequence[str]], one: str, several: str, verb: str, why: str
    ) -> Iterator[StallFinding]:
        """Findings about hosts with these addresses, by rank; verbs of one host, several hosts and ranks, and why."""
        host_of = {address: state.host for state in self._states.values() for address in state.addresses}
        apart: defaultdict[frozenset[str], set[int]] = defaultdict(set)
        for rank, of_rank in addresses.items():
            for address in of_rank:
                if (other := host_of.get(address, address)) != (own := self._states[rank].host):
                    apart[frozenset((own, other))].add(rank)
        while apart:
            # A host in several pairs is the one that the others do not reach.
            common = Counter(host for pair in apart for host in pair).most_common()
            host, number = common[0]
            is_alone = number > max(count for _, count in common[1:])
            pairs = [pair for pair in apart if host in pair]
            others = sorted({other for pair in pairs for other in pair if other != host})
            ranks = sorted({rank for pair in pairs for rank in apart.pop(pair)})
            if is_alone:
                text = f"host {host} {one}: {why} between it and {', '.join(others)}"
            else:
                text = f"hosts {', '.join(sorted([host, *others]))} {several}: {why}"
            yield StallFinding("network", tuple(ranks), f"{text}; {name_ranks(ranks)} {verb}")

    def outside(self) -> Iterator[StallFinding]:
        """Ranks in no communication call; first those that most ranks wait for."""
        by_activity: defaultdict[str, list[int]] = defaultdict(list)
        for rank, state in self._states.items():
            if state.call is None and not state.departure and not (state.departed and state.unrecorded_call):
                in_mpi = f"in {state.activity}" if state.unrecorded_call else ""
                activity = in_mpi or state.busy_with or "outside of communication"
                by_activity[f"{activity}{f', at {state.location}' * bool(state.location)}"].append(rank)
        for activity, ranks in sorted(
            by_activity.items(), key=lambda item: -max(self._waiters[rank] for rank in item[1])
        ):
            verb = "did not arrive" if self._waiting_for(ranks) else "did not go on"
            processes = "; ".join(
                f"host {self._states[rank].host}, process {self._states[rank].process}"
                for rank in ranks[:MOST_PROCESSES]
            )
            yield self._finding("outside", ranks, f"{name_ranks(ranks)} ({processes}) {verb}: {activity}")

    def deadlocks(self) -> Iterator[StallFinding]:
        """Ranks that wait for one another, where none of them waits for a rank that is not in a call."""
        remaining = dict(self._waits)
        while free := [rank for rank, others in remaining.items() if not others or not others <= remaining.keys()]:
            for rank in free:
                del remaining[rank]
        while remaining:
            path = [min(remaining)]
            while (following := min(remaining[path[-1]])) not in path:
                path.append(following)
            circle = path[path.index(following) :]
            yield self._deadlock(circle)
            while explained := [
                rank for rank, others in remaining.items() if rank in circle or not others <= remaining.keys()
            ]:
                for rank in explained:
                    del remaining[rank]

    def _deadlock(self, circle: Sequence[int]) -> StallFinding:
        calls = "; ".join(f"rank {rank} in {self._states[rank].call}" for rank in circle)
        most = max(self._waiters[rank] for rank in circle)
        most_awaited = [rank for rank in circle if self._waiters[rank] == most]
        named = f"; most wait for rank {most_awaited[0]}" if len(most_awaited) == 1 else ""
        return StallFinding(
            "deadlock", tuple(sorted(circle)), f"{name_ranks(circle)} wait for one another: {calls}{named}"
        )

    def hangs(self) -> Iterator[StallFinding]:
        """Calls that every rank has entered, and that do not end."""
        by_label: defaultdict[str, list[int]] = defaultdict(list)
        for rank, others in self._waits.items():
            call = self._states[rank].call
            if call is not None and not others:
                by_label[call.label].append(rank)
        for label, ranks in by_label.items():
            text = f"all ranks entered {label}, which does not end: the network or the MPI library does not go on"
            yield StallFinding("hang", tuple(ranks), text)

    def _finding(self, kind: Kind, ranks: Sequence[int], text: str) -> StallFinding:
        return StallFinding(kind, tuple(ranks), text + self._waiting_for(ranks))

    def _named(self, ranks: Sequence[int]) -> str:
        known = "; ".join(self._processes[rank] for rank in ranks[:MOST_PROCESSES] if rank < len(self._processes))
        return f"{name_ranks(ranks)}{f' ({known})' * bool(known)}"

    def _waiting_for(self, ranks: Iterable[int]) -> str:
        """The ranks that wait for any of `ranks`, and their calls; empty if none does."""
        wanted = frozenset(ranks)
        by_call: defaultdict[str, list[int]] = defaultdict(list)
        for rank, others in self._waits.items():
            state = self._states[rank]
            if state.is_waiting and others & wanted:
                call = f"MPI, at {state.unrecorded_call}" if state.call is None else state.call.label
                by_call[call + f" at {state.user_line}" * (state.user_line is not None)].append(rank)
        return "".join(
            f"; {name_ranks(waiting)} wait{'s' * (len(waiting) == 1)} in {call}" for call, waiting in by_call.items()
        )


# -- report ------------------------------------------------------------------------------------------------------------


def stall_report(record: StallRecord, folder: Path, write_error: str = "") -> str:
    """Report of a stall, several lines.

    `folder` is that of the stall files, `write_error` the reason why they could not be written; ranks without a state
    are then not reported as unresponsive.
    """
    has_departed = record.job is not None and bool(record.job.departed)
    # A missing state means nothing where no rank could write one, or where the job ended before all had answered.
    findings = [
        finding.text
        for finding in record.findings
        if finding.kind != "unresponsive" or not (write_error or has_departed)
    ]
    if write_error:
        findings.append(f"the ranks could not exchange their states: {write_error}")
    return "\n".join(
        (
            f"=== {_headline(record.job)} ===",
            *(f"* {text}" for text in findings),
            "",
            stall_table(record.states, record.size),
            "",
            f"States of all ranks: {folder}/rank-*.json; this report again: hybridnn report {folder.parent}",
            *(() if has_departed else LONGER_WORK),
        )
    )


def _headline(job: JobState | None) -> str:
    if job is not None and job.departed:
        departed = name_ranks(parse_ranks(job.departed))
        return f"the job cannot go on: {departed} left it, and others wait; the job was ended"
    limit = "" if job is None else f" for {job.limit:g} s; the job was ended"
    return f"the job stood still: no rank finished anything{limit}"


def stall_table(states: Mapping[int, RankState], size: int) -> str:
    """A table with one row for all ranks with the same call, last event and location, and one for missing ranks."""
    ranks_of: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank, state in states.items():
        last = state.finished[-1] if state.finished else MISSING
        ranks_of[state.activity, last, state.location or MISSING].append(rank)
    rows = [HEADINGS]
    for (activity, last, location), ranks in sorted(ranks_of.items(), key=lambda item: min(item[1])):
        seconds = max(states[rank].idle_seconds for rank in ranks)
        since = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
        rows.append((format_ranks(ranks), activity, MISSING if states[ranks[0]].departure else since, last, location))
    if missing := [rank for rank in range(size) if rank not in states]:
        rows.append((format_ranks(missing), "no sign", MISSING, MISSING, MISSING))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
