"""What the ranks try together, one after the other; after a try that was not through in time there are no more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hybridnn.doctor import probes, roll_call
from hybridnn.doctor.communication import SIZES
from hybridnn.doctor.deadline import OutOfTimeError
from hybridnn.doctor.facts import RankFacts
from hybridnn.doctor.finding import Check, Finding, guarded

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridnn.doctor.probes import Timing


PING_PONG, PING_PONG_BETWEEN_NODES, SUMS = "ping-pong", "ping-pong between nodes", "all-reduce"
MEETING_LIMITS = 2
"""Ranks come to a meeting about one time limit apart, at most."""


@dataclass
class CollectiveTrials:
    """What came of them on this rank.

    Attributes
    ----------
    facts : RankFacts or None
        None where the ranks did not find each other.
    timings : dict
        Of messages and sums, by the name of the try; on rank 0.
    stuck : bool
        Whether something did not end, so that MPI is in an unknown state.
    """

    facts: RankFacts | None = None
    timings: dict[str, list[Timing]] = field(default_factory=dict)
    stuck: bool = False


def try_together(findings: list[Finding], gather: Callable[[int], RankFacts], limit: float) -> CollectiveTrials:
    """Try everything that needs MPI; collective over all ranks, and no rank waits without end.

    Parameters
    ----------
    findings : list of Finding
        To which this rank's are added.
    gather : callable
        Gives the facts of this rank, told the lowest rank on its node.
    limit : float
        Seconds for each try.
    """
    trials = CollectiveTrials()

    def attempt(name: str, action: Check) -> None:
        def noting() -> Finding | None:
            try:
                return action()
            except OutOfTimeError:
                trials.stuck = True
                raise

        found = guarded(name, noting)
        if found is not None:
            findings.append(found)

    meeting: list[tuple[MPI.Intracomm, MPI.Intracomm, list[int]]] = []

    def meet() -> None:
        comm = roll_call.own_communicator(limit)
        meeting.append((comm, *roll_call.find_nodes(comm, limit)))

    attempt("meeting", meet)
    if not meeting:
        trials.stuck = True
        return trials
    comm, node, nodes = meeting[0]

    def all_go_on() -> bool:
        trials.stuck = not roll_call.all_agree(comm, not trials.stuck, MEETING_LIMITS * limit)
        return not trials.stuck

    if all_go_on():
        trials.facts = gather(nodes[comm.Get_rank()])
    for name, action in _tries(comm, node, nodes, trials, limit).items():
        if trials.stuck or not all_go_on():
            break
        attempt(name, action)
    else:
        all_go_on()
    return trials


def _tries(
    comm: MPI.Intracomm, node: MPI.Intracomm, nodes: list[int], trials: CollectiveTrials, limit: float
) -> Mapping[str, Check]:
    """The tries in their order, the same on every rank."""

    def note(name: str, timings: list[Timing]) -> None:
        if comm.Get_rank() == 0 and timings:
            trials.timings[name] = timings

    def ping(name: str, other: int) -> Check:
        return lambda: note(name, probes.time_ping_pong(comm, other, SIZES, limit))

    tries: dict[str, Check] = {
        "shared memory": lambda: _try_window(node, limit),
        "common folder": lambda: _try_file(comm, limit),
    }
    neighbours = [rank for rank, lowest in enumerate(nodes) if rank and lowest == nodes[0]]
    strangers = [rank for rank, lowest in enumerate(nodes) if lowest != nodes[0]]
    if neighbours:
        tries[PING_PONG] = ping(PING_PONG, neighbours[0])
    if strangers:
        tries[PING_PONG_BETWEEN_NODES] = ping(PING_PONG_BETWEEN_NODES, strangers[0])
    if len(nodes) > 1:
        tries[SUMS] = lambda: note(SUMS, probes.time_all_reduce(comm, SIZES, limit))
    return tries


def _try_window(node: MPI.Intracomm, limit: float) -> Finding:
    try:
        probes.try_window(node, limit)
    except RuntimeError as error:  # MPI's own errors are of this kind
        advice = "enlarge or empty /dev/shm; without windows train with --set data.distribution=scatter"
        return Finding("shared memory", "failure", f"no window of shared memory: {error}", advice)
    return Finding("shared memory", "ok", "the ranks of a node see what each writes to a window")


def _try_file(comm: MPI.Intracomm, limit: float) -> Finding:
    job = roll_call.spread_code(os.getpid(), limit)  # a name that no other job has taken
    path = Path.cwd() / f".hybridnn-doctor-{job}"
    try:
        probes.try_file(comm, path, limit)
    except RuntimeError as error:
        advice = "start in a folder that every node sees and every rank can write to, such as your home"
        return Finding("common folder", "failure", f"{path.parent}: {error}", advice)
    return Finding("common folder", "ok", f"what all ranks wrote to a file in {path.parent} is in it")
