"""BLAS threads in real jobs: ranks x threads fit the cores, and a user's own setting stands."""

from __future__ import annotations

import os
import re

import pytest

from mpi_runner.launch import run_mpi

SAY_THREADS = """
import numpy as np
import hybridnn
from threadpoolctl import threadpool_info
from hybridnn.comm.threads import limit_blas_threads
threads = limit_blas_threads(hybridnn.ProcessGrid())
pools = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
print(f"threads={threads} pools={sorted(pools)}", flush=True)
"""

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
UNSET: dict[str, str | None] = dict.fromkeys(VARIABLES)


def said(stdout: str) -> list[tuple[str, str]]:
    """What every rank printed, wherever mpirun put the ends of lines."""
    return re.findall(r"threads=(\d+) pools=\[(\d+)\]", stdout)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_a_node_share_its_cores(ranks: int) -> None:
    cores = len(os.sched_getaffinity(0))
    result = run_mpi(ranks, SAY_THREADS, timeout=40, env=UNSET)
    assert result.returncode == 0, result.stderr
    expected = max(1, cores // ranks)
    assert said(result.stdout) == [(str(expected), str(expected))] * ranks


def test_a_users_own_setting_stands() -> None:
    result = run_mpi(2, SAY_THREADS, timeout=40, env=UNSET | {"OPENBLAS_NUM_THREADS": "2"})
    assert result.returncode == 0, result.stderr
    assert said(result.stdout) == [("2", "2")] * 2
