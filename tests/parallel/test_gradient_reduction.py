"""Buckets cover the gradient once, and overlapped reduction gives what one all-reduce gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.parallel.gradient_reduction import (
    DEVICE_BUCKETS,
    HOST_BUCKETS,
    BucketConfig,
    GradientReducer,
    plan_buckets,
)
from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from mpi4py import MPI


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 300))
def test_buckets_cover_the_buffer_once_from_its_end(sizes: list[int], least: int) -> None:
    ends = np.cumsum(sizes).tolist()
    size = ends[-1] + 1
    plan = plan_buckets(ends, size, least)
    order = sorted(plan, reverse=True)
    spans = [plan[layer] for layer in order]
    assert spans[0][1] == size
    assert spans[-1][0] == 0
    assert all(later[1] == earlier[0] for earlier, later in pairwise(spans))
    for layer, (start, stop) in plan.items():
        # Nothing is sent before the gradient of its layer is there, and only the last message may be short.
        assert start == (ends[layer - 1] if layer else 0)
        assert stop - start >= least or layer == 0


@pytest.mark.in_process(ranks=[2, 3])
@pytest.mark.parametrize("pace", [HOST_BUCKETS, DEVICE_BUCKETS])
def test_overlapped_buckets_sum_to_the_same_as_one_allreduce(comm: MPI.Intracomm, pace: BucketConfig) -> None:
    group = ProcessGrid(comm).batch_group
    ends = [50, 90, 95, 200]
    everyone = [np.random.default_rng(rank).normal(size=201) for rank in range(comm.size)]
    for overlap in (True, False):
        for bucket_bytes in (1, 8 * 60, 1 << 20):
            gradient = everyone[comm.rank].copy()
            reducer = GradientReducer(group, gradient, ends, overlap, replace(pace, bucket_bytes=bucket_bytes))
            for layer in reversed(range(4)):
                reducer.ready(layer)
            reducer.finish()
            np.testing.assert_allclose(gradient, sum(everyone), rtol=1e-14, atol=1e-14)
