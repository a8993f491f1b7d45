"""What rank 0 makes of the facts and figures of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hybridnn.doctor.clock import check_clocks_agree
from hybridnn.doctor.communication import judge_all_reduce, judge_ping_pong
from hybridnn.doctor.facts import RankFacts, cores_of_nodes, ranks_by_node
from hybridnn.doctor.finding import Check, Finding, guarded
from hybridnn.doctor.placement import check_binding, check_cores, check_nodes
from hybridnn.doctor.threads import check_threads
from hybridnn.doctor.together import PING_PONG, PING_PONG_BETWEEN_NODES, SUMS

if TYPE_CHECKING:
    from hybridnn.comm.probes import Timing

__all__ = ["judge_together"]


def judge_together(
    facts: Mapping[int, RankFacts],
    timings: Mapping[str, Sequence[Timing]],
    environment: Mapping[str, str],
    library: str,
) -> list[Finding]:
    """Judge the job as a whole.

    Parameters
    ----------
    facts : mapping
        Of every rank that reported, by its number; nothing is judged where there are none.
    timings : mapping
        Of messages and sums, by the name of the try.
    environment : mapping
        Variables of rank 0.
    library : str
        Name and version of the MPI library.
    """
    if not facts:
        return []
    cores = cores_of_nodes(facts)
    crowded = any(len(ranks) > cores[node] for node, ranks in ranks_by_node(facts).items())
    checks: dict[str, Check] = {
        "nodes": lambda: check_nodes(facts, environment),
        "binding": lambda: check_binding(facts),
        "cores": lambda: check_cores(facts, environment, library),
        "threads": lambda: check_threads(facts),
        "dates": lambda: check_clocks_agree(facts),
    }
    if PING_PONG in timings:
        checks[PING_PONG] = lambda: judge_ping_pong(timings[PING_PONG], True, crowded)
    if PING_PONG_BETWEEN_NODES in timings:
        checks[PING_PONG_BETWEEN_NODES] = lambda: judge_ping_pong(timings[PING_PONG_BETWEEN_NODES], False, crowded)
    if SUMS in timings:
        checks[SUMS] = lambda: judge_all_reduce(timings[SUMS], len(facts), crowded)
    if len(facts) == 1:
        checks["messages"] = _no_messages
    return [found for name, check in checks.items() if (found := guarded(name, check)) is not None]


def _no_messages() -> Finding:
    advice = "hybridnn doctor -n 2 tries messages and sums as well"
    return Finding("messages", "ok", "not tried: there is one rank", advice)
