"""The round of all checks: what each rank finds alone, what the ranks try together, and what rank 0 makes of it.

What rank 0 makes of the facts and figures of all ranks.

The report: the findings of all ranks, how many of each verdict, and the exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hybridnn.comm.mpi import import_mpi
from hybridnn.doctor import roll_call
from hybridnn.doctor.clock import check_clocks_agree
from hybridnn.doctor.communication import judge_all_reduce, judge_ping_pong
from hybridnn.doctor.cores import check_binding, check_cores, check_nodes, check_threads
from hybridnn.doctor.facts import RankFacts, cores_of_nodes, gather_facts, ranks_by_node
from hybridnn.doctor.finding import Check, Finding, Merged, Verdict, guarded, merge, worst
from hybridnn.doctor.launch import check_job_size, check_launch, check_thread_level, failed_start, launched_place
from hybridnn.doctor.node import look_alone, thread_pools
from hybridnn.doctor.startup_watchdog import StartupWatchdog
from hybridnn.doctor.together import PING_PONG, PING_PONG_BETWEEN_NODES, SUMS, CollectiveTrials, try_together
from hybridnn.utils.text import name_numbers

if TYPE_CHECKING:
    from hybridnn.doctor.probes import Timing


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


SAME_EVERYWHERE = ("python", "packages", "MPI library", "BLAS")
"""Findings in which ranks must not differ, or they would not train the same network alike."""


@dataclass(frozen=True)
class DoctorReport:
    """What doctor says in the end.

    Attributes
    ----------
    merged : tuple of Merged
        In the order of the checks.
    ranks : int
        Ranks that MPI sees.
    """

    merged: tuple[Merged, ...]
    ranks: int

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst(entry.finding for entry in self.merged)

    def count(self, verdict: Verdict) -> int:
        """How many findings have this verdict."""
        return Counter(entry.finding.verdict for entry in self.merged)[verdict]

    def exit_code(self, strict: bool) -> int:
        """1 if something failed, or, where `strict`, was warned of; otherwise 0."""
        return int(self.verdict == "failure" or (strict and self.verdict == "warning"))


def report_of(reports: Sequence[Sequence[Finding] | None], together: Sequence[Finding] = ()) -> DoctorReport:
    """Merge the findings of every rank, None for one without a report, and add what is about all of them together."""
    merged = [*merge(reports, SAME_EVERYWHERE), *(Merged(finding) for finding in together)]
    return DoctorReport(tuple(merged), len(reports))


START_SECONDS = 90.0
"""What starting MPI may take: ranks wait there for each other, and one may still be asking its GPUs."""
REPORT_LIMITS = 3
"""Ranks may come so many time limits apart to the report: one for a try, two for the meeting before the next."""
FAREWELL_LIMITS = 2 * REPORT_LIMITS + 1
"""A rank that came first waits for the slowest one, and then for rank 0, which waits for those that never come."""


@dataclass(frozen=True)
class Examination:
    """What came out, on one rank.

    Attributes
    ----------
    report : DoctorReport or None
        None on ranks that have handed their findings to rank 0.
    speaks : bool
        Whether this process prints.
    stuck : bool
        Whether MPI must not be called again.
    limit : float
        Seconds, the time limit of the checks.
    """

    report: DoctorReport | None
    speaks: bool
    stuck: bool
    limit: float

    def agree_on_code(self, strict: bool) -> int:
        """Exit code of the report, the same on every rank; ends the job where MPI is stuck. Call it last."""
        code = 1 if self.report is None else self.report.exit_code(strict)
        if self.report is not None and self.report.ranks == 1:
            return code
        if self.stuck and self.report is not None:
            roll_call.end_job(1)
        agreed = roll_call.spread_code(code, FAREWELL_LIMITS * self.limit)
        if agreed is None:
            print("hybridnn doctor: rank 0 does not answer; the job ends", file=sys.stderr, flush=True)
            roll_call.end_job(1)
        return 1 if agreed is None else agreed


def examine(limit: float, say: Callable[[DoctorReport], str]) -> Examination:
    """Carry out all checks; collective over the ranks that find each other.

    Parameters
    ----------
    limit : float
        Seconds for each check.
    say : callable
        Writes a report as text, for a child process to print if MPI ends this one while it starts.
    """
    environment = dict(os.environ)  # MPI adds to it
    place, _ = launched_place(environment)
    findings, library = look_alone(environment, limit)
    level = None if library is None else _start(environment, library, findings, say, speaks=not place)
    if library is None or level is None:
        return Examination(report_of([findings]), not place, False, limit)
    world = import_mpi().COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    launch = guarded("launch", lambda: check_launch(environment, size, library))
    last: dict[str, Check] = {"thread level": lambda: check_thread_level(level)}
    if launch is not None and launch.verdict == "ok":  # else the size of the job is that of the same trouble
        last["job size"] = lambda: check_job_size(environment, size)
    found = [launch, *(guarded(name, check) for name, check in last.items())]
    findings += [finding for finding in found if finding is not None]
    # A process that a launcher numbered speaks by that number: every one of them may be rank 0 of 1.
    speaks = rank == 0 and (size > 1 or not place)
    trials = try_together(findings, lambda node: gather_facts(node, environment, thread_pools()), limit)
    report = _gather(findings, trials, environment, library, limit)
    return Examination(report, speaks, trials.stuck or (report is not None and _is_missing(report)), limit)


def _start(
    environment: Mapping[str, str],
    library: str,
    findings: list[Finding],
    say: Callable[[DoctorReport], str],
    *,
    speaks: bool,
) -> str | None:
    """Start MPI; its thread level, or None after a finding if that fails."""

    def words(what: str) -> str:
        return say(report_of([[*findings, failed_start(environment, library, what)]]))

    dead = "MPI ended this process while it started"
    stuck = f"MPI did not start within {START_SECONDS:g} s"
    watch = StartupWatchdog(words(dead), words(stuck), START_SECONDS) if speaks else contextlib.nullcontext()
    try:
        with watch:
            return roll_call.start_mpi()
    except Exception as error:  # what the library could not do is its own kind of error
        lines = str(error).splitlines() or [type(error).__name__]
        findings.append(failed_start(environment, library, f"MPI does not start: {lines[0]}"))
        return None


def _gather(
    findings: list[Finding], trials: CollectiveTrials, environment: Mapping[str, str], library: str, limit: float
) -> DoctorReport | None:
    """Hand everything to rank 0, and there make the report."""
    mine = {"findings": [asdict(finding) for finding in findings], "facts": trials.facts and asdict(trials.facts)}
    texts = roll_call.collect_texts(json.dumps(mine), REPORT_LIMITS * limit)
    if not texts:
        return None
    heard: list[dict[str, Any] | None] = [None if text is None else json.loads(text) for text in texts]
    facts = {rank: RankFacts.from_json(said["facts"]) for rank, said in enumerate(heard) if said and said["facts"]}
    missing = [rank for rank, said in enumerate(heard) if said is None]
    together = judge_together(facts, trials.timings, environment, library)
    if missing:
        what = f"{name_numbers('rank', missing)} sent no report within {REPORT_LIMITS * limit:g} s"
        together.append(
            Finding("ranks", "failure", what, "see whether they still run, and whether the network lets them answer")
        )
    reports = [None if said is None else [Finding(**found) for found in said["findings"]] for said in heard]
    return report_of(reports, together)


def _is_missing(report: DoctorReport) -> bool:
    return any(entry.finding.name == "ranks" for entry in report.merged)
