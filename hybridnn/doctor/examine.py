"""`hybridnn doctor`: checks of this process and the nodes of its allocation, or of all ranks of a job."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from dataclasses import asdict, astuple, replace
from pathlib import Path

from hybridnn.comm.agreement import gather_texts
from hybridnn.doctor.job_checks import RankFacts, check_all_reduce, check_common_folder, check_job, gather_facts
from hybridnn.doctor.node_checks import NODE_LIMITS, NodeFacts, check_allocation
from hybridnn.doctor.process_checks import GPU_SECONDS, check_process, check_start
from hybridnn.doctor.report import DoctorReport, Finding, merge_reports
from hybridnn.parallel.grid import ProcessGrid

START_SECONDS = 90.0  # time for MPI to start and all ranks to arrive: one may still be loading from a slow file system


def examine(limit: float, print_report: Callable[[DoctorReport], None], *, launched: bool) -> int:
    """Carry out all checks, each within `limit` seconds, and print their report on rank 0; returns the exit code.

    Collective over the ranks of a job that a launcher has started. A process without one (`launched` is False) does not
    start MPI itself. Raises `EnvironmentProblem` if MPI does not see all processes of the launch.
    """
    environment = dict(os.environ)  # MPI adds to it
    if launched:
        return _examine_ranks(environment, limit, print_report)
    findings = check_process(environment, limit)
    if any(finding.name == "MPI library" and finding.verdict == "ok" for finding in findings):
        findings += check_start(environment, NODE_LIMITS * limit)
    findings += check_allocation(environment, limit)
    report = merge_reports([findings], check_job([gather_facts(0, environment)]))
    print_report(report)
    return report.exit_code


def _examine_ranks(environment: dict[str, str], limit: float, print_report: Callable[[DoctorReport], None]) -> int:
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)  # Python's own code does not run while MPI starts
    grid = ProcessGrid()
    faulthandler.cancel_dump_traceback_later()
    if grid.stall_watchdog is not None:
        grid.stall_watchdog.start(grid, NODE_LIMITS * limit + GPU_SECONDS)  # others wait for the checks of a rank
    world = grid.world
    findings = check_process(environment, limit)
    # Without `run_check`: a rank that fails in a collective ends the job.
    trials = []
    if grid.nodes > 1:
        trials.append(replace(check_common_folder(grid, Path.cwd()), name="common folder"))
    if world.size > 1:
        trials.append(replace(check_all_reduce(world), name="all-reduce"))
    findings += [finding for finding in trials if world.rank == 0 or finding.verdict == "failure"]
    own = gather_facts(grid.node_group.members[0], environment)
    content = {"findings": [astuple(finding)[:4] for finding in findings], "facts": asdict(own)}
    received = [json.loads(text) for text in gather_texts(world, json.dumps(content))]
    reports = [[Finding(*fields) for fields in one["findings"]] for one in received]
    facts = [RankFacts(**{**one["facts"], "found": NodeFacts(**one["facts"]["found"])}) for one in received]
    report = merge_reports(reports, check_job(facts))
    if world.rank == 0:
        print_report(report)
    world.barrier()  # a launcher ends the job at the first rank with exit code 1, perhaps before rank 0 has printed
    return report.exit_code
