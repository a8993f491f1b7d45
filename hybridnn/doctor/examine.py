"""`hybridnn doctor`: checks of each process, MPI trials of all ranks, and the report of rank 0."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, replace
from typing import Any

from hybridnn.comm.mpi import import_mpi
from hybridnn.diagnostics.failsafe import end_job
from hybridnn.doctor import mpi_trials
from hybridnn.doctor.job_checks import JobFacts, RankFacts, check_job, gather_facts
from hybridnn.doctor.mpi_trials import MpiTrials
from hybridnn.doctor.node_checks import check_allocation
from hybridnn.doctor.process_checks import (
    check_job_size,
    check_launch,
    check_process,
    check_thread_level,
    failed_start,
    rank_in_job,
    thread_pools,
)
from hybridnn.doctor.report import DoctorReport, Finding, failure, merge_reports, run_checks
from hybridnn.doctor.startup_watchdog import StartupWatchdog
from hybridnn.utils.text import name_numbers

START_SECONDS = 90.0  # time for MPI to start: ranks wait for each other, and one may still be querying its GPUs
LATER_SECONDS = 5.0  # more time for the other ranks, which a launcher may leave: rank 0 prints first
REPORT_LIMITS = 3
"""Time limits by which ranks may send their report late: one for a trial, two for the agreement before the next."""
EXIT_LIMITS = 2 * REPORT_LIMITS + 1
"""Time limits for the exit code: the first rank waits for the slowest, and then for rank 0, which waits for reports."""


def examine(
    limit: float,
    *,
    format_report: Callable[[DoctorReport], str],
    print_report: Callable[[DoctorReport], None],
) -> int:
    """Carry out all checks and print their report; returns the exit code. Collective over the ranks that MPI connects.

    Each check has `limit` seconds. A child process prints the text from
    `format_report` if MPI ends this one while it starts; `print_report` is called on one rank.
    """
    environment = dict(os.environ)  # MPI adds to it
    launched = rank_in_job(environment)
    findings, library = check_process(environment, limit)
    if launched is None:
        findings += check_allocation(environment, limit)
    level = None
    if library is not None:
        level = _start_mpi(environment, library, findings, None if launched else format_report)
    if library is None or level is None:
        report = merge_reports([findings])
        if not launched:
            print_report(report)
        return report.exit_code
    world = import_mpi().COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    findings += _check_start(environment, library, level, size)
    trials = MpiTrials(limit)
    trials.run(lambda node: gather_facts(node, environment, thread_pools()))
    gathered = _gather(findings + trials.findings, trials, environment, library, limit)
    # One process prints, by the launcher's number where there is one: each of its processes may be rank 0 of 1.
    if gathered is not None and rank == 0 and (size > 1 or not launched):
        print_report(gathered)
    return _agree_on_code(gathered, trials.stuck, limit)


def _start_mpi(
    environment: Mapping[str, str],
    library: str,
    findings: list[Finding],
    format_report: Callable[[DoctorReport], str] | None,
) -> str | None:
    """Start MPI; returns its thread level, or None after a failure, which is added to `findings`.

    A process without `format_report` ends without a report if MPI ends or blocks it.
    """

    def failed(what: str) -> Finding:
        return replace(failed_start(environment, library, what), name="launch")

    if_dead, if_stuck, seconds = "", "", START_SECONDS + LATER_SECONDS
    if format_report is not None:
        dead = failed("MPI ended this process while it started")
        stuck = failed(f"MPI did not start within {START_SECONDS:g} s")
        if_dead, if_stuck = (format_report(merge_reports([[*findings, finding]])) for finding in (dead, stuck))
        seconds = START_SECONDS
    try:
        with StartupWatchdog(if_dead, if_stuck, seconds):
            return mpi_trials.start_mpi()
    except Exception as error:  # MPI's errors have a class of their own
        lines = str(error).splitlines() or [type(error).__name__]
        findings.append(failed(f"MPI does not start: {lines[0]}"))
        return None


def _check_start(environment: Mapping[str, str], library: str, level: str, size: int) -> list[Finding]:
    findings = run_checks(
        [
            ("launch", lambda: check_launch(environment, size, library)),
            ("thread level", lambda: check_thread_level(level)),
        ]
    )
    if findings[0].verdict == "ok":  # else the size is wrong for the same reason
        findings += run_checks([("job size", lambda: check_job_size(environment, size))])
    return findings


def _gather(
    findings: list[Finding], trials: MpiTrials, environment: Mapping[str, str], library: str, limit: float
) -> DoctorReport | None:
    """Send the findings to rank 0, and make the report there; None on other ranks."""
    own_findings = [astuple(finding)[:4] for finding in findings]
    own = {"findings": own_findings, "facts": None if trials.facts is None else asdict(trials.facts)}
    texts = mpi_trials.gather_texts(json.dumps(own), REPORT_LIMITS * limit)
    if not texts:
        return None
    received: list[Any] = [None if text is None else json.loads(text) for text in texts]
    facts = {
        rank: RankFacts.from_json(content["facts"])
        for rank, content in enumerate(received)
        if content and content["facts"]
    }
    job_findings = check_job(JobFacts(facts, environment, library, trials.timings)) if facts else []
    missing = [rank for rank, content in enumerate(received) if content is None]
    if missing:
        what = f"{name_numbers('rank', missing)} sent no report within {REPORT_LIMITS * limit:g} s"
        advice = "see whether they still run, and whether the network lets them answer"
        job_findings.append(replace(failure(what, advice), name="ranks"))
        trials.stuck = True
    reports = [
        None if content is None else [Finding(*fields) for fields in content["findings"]] for content in received
    ]
    return merge_reports(reports, job_findings)


def _agree_on_code(report: DoctorReport | None, stuck: bool, limit: float) -> int:
    """Exit code of the report on every rank; ends the job where MPI is stuck."""
    code = 1 if report is None else report.exit_code
    if report is not None and report.ranks == 1:
        return code
    if stuck and report is not None:
        end_job("")
    agreed = mpi_trials.broadcast_number(code, EXIT_LIMITS * limit)
    if agreed is None:
        end_job("hybridnn doctor: rank 0 does not answer; the job ends\n")
    return agreed
