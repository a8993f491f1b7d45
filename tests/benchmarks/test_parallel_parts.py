"""The benchmarks on two ranks with networks so small that their figures mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.cases import Case, our_run
from hybridnn import ProcessGrid
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS, BucketConfig

if TYPE_CHECKING:
    from mpi4py import MPI

pytestmark = pytest.mark.slow

TINY = Case("4-6-6-2", (4, 6, 6, 2), 8, "regression", 2, 1, stages=(2, 1))
LIMITS = {"products_share", "update_share", "gflops", "copy_bytes_per_second"}

SMALL_BUCKETS = BucketConfig(bucket_bytes=8 * 60, piece_bytes=8 * 25, in_flight=2, single_blocks=True)


@pytest.mark.mpi(ranks=[2])
def test_parts_compared_with_pytorch_have_ratios_and_limits(comm: MPI.Intracomm) -> None:
    pytest.importorskip("torch")
    from benchmarks import batch_parallel, model_parallel, pipeline
    from benchmarks.ranks import gloo

    with gloo():
        rows = [
            batch_parallel.measure(TINY, 1),
            model_parallel.measure(TINY, "columns", 1),
            pipeline.measure(TINY, "gpipe", 1),
            pipeline.measure(TINY, "1f1b", 1),
        ]
    for row in rows:
        assert set(row) > LIMITS
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"]


@pytest.mark.mpi(ranks=[2])
def test_shared_replicas_are_compared_with_one_rank_and_private_replicas(comm: MPI.Intracomm) -> None:
    from benchmarks import shared_replicas

    row = shared_replicas.measure(TINY, 1)
    assert set(row["ms_per_step"]) == {"one", "own", "shared"}
    if comm.rank == 0:
        # One pair: the ratios are those of the times themselves.
        one, own, shared = (row["ms_per_step"][name] for name in ("one", "own", "shared"))
        assert row["ratio"] == pytest.approx(one / shared)
        assert row["own_over_one"]["ratio"] == pytest.approx(one / own)
        assert row["shared_over_own"]["ratio"] == pytest.approx(own / shared)


@pytest.mark.mpi(ranks=[2])
def test_all_ways_to_move_an_allreduce_are_timed(comm: MPI.Intracomm) -> None:
    from benchmarks import progress_thread

    rows = progress_thread.measure(TINY, 1)
    assert [row["way"] for row in rows] == ["after backward", "polling", "thread", "thread, pausing"]
    assert rows[0]["ratio"] == 1


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("pause", [0.0, 0.0002])
@pytest.mark.parametrize("pace", [HOST_BUCKETS, SMALL_BUCKETS], ids=["one bucket", "many pieces"])
def test_a_thread_sums_what_the_ranks_have(comm: MPI.Intracomm, pause: float, pace: BucketConfig) -> None:
    from benchmarks.progress_thread import ThreadedReducer

    everyone = [np.random.default_rng(rank).normal(size=201) for rank in range(comm.size)]
    gradient = np.empty(201)
    ends = [50, 90, 95, 200]
    reducer = ThreadedReducer(ProcessGrid(comm).batch_group, gradient, ends, True, pace, pause=pause)
    for step in range(1, 4):
        gradient[...] = step * everyone[comm.rank]
        for layer in reversed(range(4)):
            reducer.ready(layer)
        reducer.finish()
        np.testing.assert_allclose(gradient, step * sum(everyone), rtol=1e-14, atol=1e-14)


@pytest.mark.mpi(ranks=[2])
def test_a_progress_thread_does_not_change_the_training(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from benchmarks.progress_thread import ThreadedReducer

    plain, run = our_run(TINY, ProcessGrid(comm), shared_replicas=False, overlap=False)
    run()
    monkeypatch.setattr("hybridnn.parallel.gradient_reduction.GradientReducer", partial(ThreadedReducer, pause=0.0))
    monkeypatch.setattr(
        "hybridnn.parallel.gradient_reduction.HOST_BUCKETS", BucketConfig(8, 64, 2, single_blocks=False)
    )
    threaded, run = our_run(TINY, ProcessGrid(comm), shared_replicas=False, overlap=True)
    run()
    expected = plain.weights()
    for name, weight in threaded.weights().items():
        np.testing.assert_allclose(weight, expected[name], rtol=1e-6, atol=1e-7)
