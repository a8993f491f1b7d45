"""Buckets partition the gradient buffer, and overlapped reduction equals one all-reduce."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hybridnn.comm.transport import HOST_BUCKETS, BucketConfig
from hybridnn.gpu.staging import DEVICE_BUCKETS
from hybridnn.parallel.gradient_reduction import GradientReducer, plan_buckets
from hybridnn.parallel.grid import ProcessGrid


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 300))
def test_buckets_partition_the_buffer_from_its_end(sizes: list[int], min_elements: int) -> None:
    ends = np.cumsum(sizes).tolist()
    size = ends[-1] + 1
    plan = plan_buckets(ends, size, min_elements)
    order = sorted(plan, reverse=True)
    spans = [plan[layer] for layer in order]
    assert spans[0][1] == size
    assert spans[-1][0] == 0
    assert all(later[1] == earlier[0] for earlier, later in pairwise(spans))
    for layer, (start, stop) in plan.items():
        # A bucket begins with a layer, and only the last one may be small.
        assert start == (ends[layer - 1] if layer else 0)
        assert stop - start >= min_elements or layer == 0


@pytest.mark.in_process(ranks=[2, 3])
@pytest.mark.parametrize("config", [HOST_BUCKETS, DEVICE_BUCKETS])
def test_overlapped_buckets_equal_one_allreduce(comm: MPI.Intracomm, config: BucketConfig) -> None:
    group = ProcessGrid(comm).batch_group
    ends = [50, 90, 95, 200]
    gradients = [np.random.default_rng(rank).normal(size=201) for rank in range(comm.size)]
    for overlap in (True, False):
        for bucket_bytes in (1, 8 * 60, 1 << 20):
            gradient = gradients[comm.rank].copy()
            group.transport.buckets = replace(config, bucket_bytes=bucket_bytes)
            reducer = GradientReducer(group, gradient, ends, overlap)
            for layer in reversed(range(4)):
                reducer.ready(layer)
            reducer.finish()
            np.testing.assert_allclose(gradient, sum(gradients), rtol=1e-14, atol=1e-14)
