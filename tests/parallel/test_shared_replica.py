"""Reduction of gradients: buckets of private replicas, and slices of shared ones."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hybridnn.comm.transport import HOST_BUCKETS, BucketConfig
from hybridnn.gpu.staging import DEVICE_BUCKETS
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.optimizers import SGD, Adam, Optimizer, OptimizerState
from hybridnn.parallel import shared_replica
from hybridnn.parallel.gradient_reduction import GradientReducer, plan_buckets
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.shared_replica import SharedReplica, Sharing, share_replicas, slice_bounds
from reference.ranks import on_nodes

NODES: dict[int, list[Sequence[int]]] = {
    2: [(0, 0)],
    3: [(0, 0, 0), (0, 0, 1), (0, 1, 0)],
    4: [(0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 2, 2)],
}
"""Node of every rank: one node, equal nodes, and nodes of unequal size."""

RANKS = list(NODES)


def shared(comm: MPI.Intracomm, nodes: Sequence[int], **axes: int) -> tuple[ProcessGrid, Sharing]:
    grid = ProcessGrid(on_nodes(comm, nodes), **axes)
    sharing = share_replicas(grid)
    assert sharing is not None
    return grid, sharing


@given(st.integers(1, 500).map(lambda units: 16 * units), st.integers(1, 40))
def test_slices_cover_the_buffer_in_whole_units(size: int, slices: int) -> None:
    bounds = [slice_bounds(size, slices, number) for number in range(slices)]
    assert [place for pair in bounds for place in range(*pair)] == list(range(size))
    assert all(start % 64 == 0 or start == size for start, _ in bounds)
    lengths = [stop - start for start, stop in bounds]
    assert lengths[0] == max(lengths)
    assert max(lengths) - min(lengths) < 2 * 64


@pytest.mark.in_process(ranks=RANKS)
def test_every_slice_has_one_owner_on_every_node(comm: MPI.Intracomm) -> None:
    for nodes in NODES[comm.size]:
        grid, sharing = shared(comm, nodes)
        widths = [list(nodes).count(node) for node in set(nodes)]
        assert sharing.slices == max(widths)
        owned = np.zeros((comm.size, sharing.slices), np.int64)
        owned[grid.rank, [item.number for item in sharing.owned]] = 1
        grid.world.allreduce(owned)
        assert (owned.sum(axis=0) == len(widths)).all(), "a slice has an owner on every node"
        of_node = owned[list(grid.node_group.members)].sum(axis=1)
        assert max(of_node) - min(of_node) <= 1
        for item in sharing.owned:
            owners = {grid.rank} if item.owners is None else set(item.owners.members)
            assert owners == set(np.flatnonzero(owned[:, item.number]).tolist())


@pytest.mark.in_process(ranks=[2, 3, 4])
def test_only_batch_ranks_share_a_replica(comm: MPI.Intracomm) -> None:
    assert share_replicas(ProcessGrid(comm, batch=1, model=comm.size)) is None
    assert share_replicas(ProcessGrid(on_nodes(comm, range(comm.size)))) is None, "every rank is on a different node"
    if comm.size == 4:
        grid, sharing = shared(comm, (0, 0, 0, 0), model=2)
        assert sharing.memory.group.members == grid.batch_group.members


def steps_of(
    comm: MPI.Intracomm, nodes: Sequence[int], optimizer: Optimizer, size: int, *, into_other: bool, clips: bool
) -> None:
    """Three updates with random gradients, compared with updates of private weights with their sum."""
    _, sharing = shared(comm, nodes)
    replica = SharedReplica(sharing, size, "float64", arrays=2 + len(optimizer.slot_names))
    weights, other = replica.new_array(), replica.new_array()
    state = replica.new_state(optimizer, weights)
    random = np.random.default_rng(0)
    start = random.standard_normal(size)
    if replica.is_leader:
        weights[...] = start
    replica.publish()
    private, slots = start.copy(), {name: np.zeros(size) for name in optimizer.slot_names}
    expected = OptimizerState(slots, np.empty(2 * size), NUMPY)
    for step in range(3):
        gradients = random.standard_normal((comm.size, size))
        losses = random.standard_normal(comm.size)
        rank = sharing.batch.rank
        replica.gradient[...], replica.loss[...] = gradients[rank], losses[rank]
        replica.finish()
        total = gradients.sum(axis=0)
        assert replica.total_loss == pytest.approx(losses.sum(), rel=1e-13)
        if clips:
            norm = np.zeros(1)
            replica.squared_norm_into(norm)
            assert sqrt(norm[0]) == pytest.approx(np.linalg.norm(total), rel=1e-13)
            replica.clip(norm, 2 * sqrt(norm[0]))  # above the norm: no effect
            replica.clip(norm, 0.5 * sqrt(norm[0]))
            total *= 0.5
        replica.update(optimizer, weights, state, 0.1 * (step + 1), other if into_other else None)
        if into_other:
            weights, other = other, weights
        optimizer.update(private, total, expected, 0.1 * (step + 1))
        np.testing.assert_allclose(weights, private, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(replica.full_gradient(), total, rtol=1e-12, atol=1e-13)
        for name, slot in expected.slots.items():
            np.testing.assert_allclose(state.slots[name], slot, rtol=1e-12, atol=1e-13)
        assert state.updates == step + 1


@pytest.mark.parametrize("block", [shared_replica.SUM_BLOCK, 48], ids=["one block", "several blocks, the last short"])
@pytest.mark.in_process(ranks=RANKS)
def test_updates_equal_those_of_one_rank_with_the_summed_gradient(comm, block, monkeypatch) -> None:
    monkeypatch.setattr(shared_replica, "SUM_BLOCK", block)
    for number, nodes in enumerate(NODES[comm.size]):
        for size in (16, 720):  # fewer units than ranks, and more
            optimizer = (SGD(momentum=0.0), Adam(0.01, weight_decay=0.1), SGD(nesterov=True))[number % 3]
            steps_of(comm, nodes, optimizer, size, into_other=number % 2 == 1, clips=block == 48)


@pytest.mark.in_process(ranks=RANKS)
def test_weights_are_bitwise_equal_on_all_ranks(comm: MPI.Intracomm) -> None:
    size = 1600
    for nodes in NODES[comm.size]:
        grid, sharing = shared(comm, nodes)
        replica = SharedReplica(sharing, size, "float32", arrays=2)
        weights = replica.new_array()
        state = replica.new_state(SGD(), weights)
        random = np.random.default_rng(grid.rank)
        for _ in range(3):
            replica.gradient[...] = random.standard_normal(size)
            replica.finish()
            norm = np.zeros(1)
            replica.squared_norm_into(norm)
            replica.clip(norm, 1.0)
            replica.update(SGD(), weights, state, 0.1)
        extremes = np.stack([weights, -weights])
        grid.world.allreduce(extremes, "max")
        assert (extremes[0] == -extremes[1]).all()
        assert weights.any()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_node_has_one_copy_and_a_rank_counts_its_share(comm: MPI.Intracomm) -> None:
    _, sharing = shared(comm, [0] * comm.size)
    replica = SharedReplica(sharing, 160, "float32", arrays=1)
    weights = replica.new_array()
    if comm.rank == comm.size - 1:
        weights[...] = 7
    replica.publish()
    assert (weights == 7).all(), "a write of one rank is visible to all"
    assert replica.bytes_per_rank(weights.nbytes) == -(-640 // comm.size)
    assert weights.ctypes.data % 64 == 0, "slices begin at multiples of a cache line"
    with pytest.raises(StopIteration):
        replica.new_array()
    replica.publish()


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
