"""Starts benchmarks in processes of one thread each, and reads their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from hybridnn.comm.launcher import RankLauncher

__all__ = ["run_lines"]

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


STARTS = 3
"""Attempts to start: a launcher sometimes fails directly after another one has ended."""


def run_lines(ranks: int, module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a module of this package on `ranks` ranks; return its results, which it prints as one JSON object per line.

    A job that fails without output is started again.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = os.environ | ONE_THREAD
    if ranks > 1:
        launcher = RankLauncher.find(environment)
        environment |= launcher.settings(ranks, environment)
        command = launcher.command(ranks, command, environment)
    for start in range(1, STARTS + 1):
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.stdout.strip() or start == STARTS:
            done.check_returncode()
        if done.returncode == 0:
            break
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
