"""BLAS threads: ranks times threads fit the cores, and a user's setting takes precedence."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_info, threadpool_limits

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.threads import LARGE_PRODUCT, THREAD_VARIABLES, BlasThreads, limit_blas_threads


@pytest.fixture
def no_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the user, and as many BLAS threads as cores; restores the number of threads."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(limits=len(os.sched_getaffinity(0)), user_api="blas"):
        yield


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.usefixtures("no_variable")
def test_ranks_of_a_node_share_its_cores(comm: MPI.Intracomm) -> None:
    cores = set().union(*comm.allgather(os.sched_getaffinity(0)))
    found = limit_blas_threads(ProcessGrid(comm).node_group, 1 << 40)
    expected = max(1, len(cores) // comm.size)
    assert (found.count, blas_threads()) == (expected, {expected})


@pytest.mark.usefixtures("no_variable")
def test_one_process_uses_one_thread_for_small_products_and_its_cores_for_large_ones() -> None:
    grid, cores = ProcessGrid(), len(os.sched_getaffinity(0))
    for size, expected in ((LARGE_PRODUCT, 1), (LARGE_PRODUCT + 1, cores), (0, 1)):
        found = limit_blas_threads(grid.node_group, size)
        assert (found.count, blas_threads()) == (expected, {expected})
        assert found.why.startswith("small products" if size <= LARGE_PRODUCT else f"large products, {cores} core")


@pytest.mark.usefixtures("no_variable")
def test_threads_follow_from_the_network_and_not_from_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a repeated training would not be bit-identical."""
    seen = []
    for load in (0.0, 99.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load,) * 3)
        trainer = Trainer(MLP([16, 64, 4], "relu"), SGD(lr=0.1), batch_size=32)
        seen.append((trainer.threads, blas_threads()))
    assert seen == [(BlasThreads(1, "small products"), {1})] * 2
    wide = Trainer(MLP([1024, 1024, 4], "relu"), SGD(lr=0.1), batch_size=257)
    assert wide.threads.count == len(os.sched_getaffinity(0))
    assert np.isfinite(next(iter(wide.weights().values()))).all()


def test_a_variable_is_given_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = blas_threads()
    assert limit_blas_threads(ProcessGrid().node_group).why == "OMP_NUM_THREADS=3"
    assert blas_threads() == before
