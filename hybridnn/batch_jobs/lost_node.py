"""Search for a failed node after a run of a Slurm job: exit code 0 of ``python -m hybridnn.batch_jobs.lost_node``.

The failure of a node ends a run on several nodes within seconds, but Slurm may notice it minutes later. If the batch
script ended with the run, Slurm would count the job as failed, and would not requeue it. So the script asks here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

from hybridnn.utils.processes import ChildResult, run_child

__all__ = ["find_lost_node"]

TRIAL_SECONDS = 60.0
QUERY_SECONDS = 30.0
NOTICE_SECONDS = 300.0
"""Time in which Slurm notices a failed node: it asks every node three times per SlurmdTimeout, by default 300 s."""
POLL_SECONDS = 2.0
LOST = ("down", "fail", "error")
NO_ANSWER = "*"
"""Mark behind the state of a node that does not answer, which ``sinfo`` writes."""

RunChild = Callable[[list[str], float, Mapping[str, str]], ChildResult]


def find_lost_node(
    environment: Mapping[str, str],
    run: RunChild = run_child,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Node of this job that has failed, with its state; None if a program starts on all of them, or Slurm lists none.

    If a program does not start on all nodes, Slurm has `NOTICE_SECONDS` to notice the failure.
    """
    nodes, names = environment.get("SLURM_JOB_NUM_NODES", "1"), environment.get("SLURM_JOB_NODELIST", "")
    if nodes == "1" or not names:  # this program runs on the only node
        return None
    trial = ["srun", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "true"]
    query = ["sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T"]
    try:
        ended = run(trial, TRIAL_SECONDS, environment)
        if ended.code == 0 and not ended.timed_out:
            return None
        print(f"a program on all {nodes} nodes {ended.summary}: has one of them failed?", file=sys.stderr, flush=True)
        end = clock() + NOTICE_SECONDS
        while clock() < end:
            for line in run(query, QUERY_SECONDS, environment).output.splitlines():
                name, _, state = line.strip().partition(" ")
                if state.endswith(NO_ANSWER) or state.startswith(LOST):
                    return f"{name} ({state})"
            sleep(POLL_SECONDS)
    except OSError as error:  # there is no srun or sinfo
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
    return None


def _main() -> int:
    lost = find_lost_node(os.environ)
    if lost is not None:
        print(f"node failure: {lost}", file=sys.stderr)
    return int(lost is None)


if __name__ == "__main__":
    sys.exit(_main())
